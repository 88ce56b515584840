"""Runs the stages of the GPU benchmark in child processes within a time budget, and records each at once. No torch."""

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from yolo_lightning.commands.benchmark_gpu.stage_records import (
    FINISHED,
    STAGES_FOLDER,
    Stage,
    StageRecord,
    StageState,
    partial_path,
    read_partial,
    read_record_of,
    time_limit_s,
    write_record,
)
from yolo_lightning.supervision.child_process import Ended, run_child
from yolo_lightning.utils.files import write_json

SETTINGS = "settings.json"
PROGRESS = "stage: "
"""Prefix of the lines on stderr by which the process of a stage names its next operation."""
KEPT_LINES = 12
PAGE_S = 5.0
"""Part of the budget for killing a process and writing the page, seconds."""
FINISHING_S = 10.0
"""Part of a time limit in which a stage should end by itself, seconds: 1/10 of the limit, at most this."""

Launch = Callable[[Stage, float], Ended]


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What must be equal in all calls that write into one folder."""

    device: str  # auto, cpu, cuda, cuda:1, ...
    quick: bool  # whether small shapes and counts rehearse the benchmark


def check_folder(out: Path, settings: RunSettings) -> None:
    """Create the folder of results, or check that it contains results with the same settings.

    Raises:
        ValueError: If `out` is a file, or contains results with other settings.
    """
    if out.exists() and not out.is_dir():
        raise ValueError(f"out must be a folder, got the file {out}")
    (out / STAGES_FOLDER).mkdir(parents=True, exist_ok=True)
    file = out / SETTINGS
    if not file.exists():
        write_json(file, asdict(settings))
        return
    try:
        before = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"out must be a folder of this command, but {file} cannot be read: {error}") from error
    if before != asdict(settings):
        raise ValueError(f"out must be a new folder for other settings: {out} contains results with {before}")


def command_of(out: Path, settings: RunSettings) -> Callable[[Stage, float], list[str]]:
    """Return a function that builds the command line of the process of a stage from its time limit in seconds."""
    module = "yolo_lightning.commands.benchmark_gpu.stage_process"

    def command(stage: Stage, limit_s: float) -> list[str]:
        options = json.dumps({**asdict(settings), "out": str(out), "limit_s": limit_s - min(limit_s / 10, FINISHING_S)})
        return [sys.executable, "-m", module, stage, options]

    return command


def run_stages(
    out: Path,
    settings: RunSettings,
    stages: Sequence[Stage],
    budget_s: float,
    launch: Launch | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> list[StageRecord]:
    """Run the stages that `out` contains no finished record of, and return the records of all of them.

    Args:
        out: Folder of results, prepared by `check_folder`.
        settings: Settings of the stages.
        stages: The stages to run, in this order.
        budget_s: Time limit for this call in seconds. A stage that does not fit is recorded as skipped.
        launch: Runs the process of a stage with a time limit in seconds; tests replace it.
        clock: Returns the time in seconds.

    Raises:
        KeyboardInterrupt: After Ctrl-C; the running stage was killed and is recorded as interrupted.
    """
    began_s, command = clock(), command_of(out, settings)
    run = launch or (lambda stage, limit_s: run_child(command(stage, limit_s), limit_s))
    known = {stage: read_record_of(out, stage) for stage in stages}
    records: list[StageRecord] = []
    waiting = [stage for stage in stages if (one := known[stage]) is None or one.state not in FINISHED]
    for stage in stages:
        before = known[stage]
        if before is not None and stage not in waiting:
            _say(f"{stage}: {before.state} in an earlier call")
            records.append(before)
            continue
        waiting.remove(stage)
        left_s = budget_s - PAGE_S - (clock() - began_s)
        limit_s = time_limit_s(stage, waiting, left_s, budget_s)
        if limit_s is None:
            reason = f"{max(left_s, 0):.0f} s of {budget_s:g} s were left, too few; call the command again to run it"
            record = StageRecord(stage=stage, state=StageState.SKIPPED, reason=reason)
            if before is not None and before.result:  # keep what an earlier call has measured
                record.result = before.result
        else:
            _say(f"{stage}: started, at most {limit_s:.0f} s")
            record = _run(out, stage, limit_s, run)
        write_record(out, record)
        partial_path(out, stage).unlink(missing_ok=True)
        _say(f"{stage}: {record.state}" + (f", {record.seconds:.1f} s" if record.seconds else "")
             + (f": {record.reason}" if record.reason else ""))  # fmt: skip
        records.append(record)
    return records


def _run(out: Path, stage: Stage, limit_s: float, run: Launch) -> StageRecord:
    partial_path(out, stage).unlink(missing_ok=True)
    try:
        ended = run(stage, limit_s)
    except KeyboardInterrupt:
        result = read_partial(out, stage)
        write_record(
            out, StageRecord(stage=stage, state=StageState.INTERRUPTED, reason="stopped by the user", result=result)
        )
        partial_path(out, stage).unlink(missing_ok=True)
        raise
    except OSError as error:
        return StageRecord(stage=stage, state=StageState.CRASHED, reason=f"the process could not be started: {error}")
    return record_of_end(stage, limit_s, ended, read_partial(out, stage))


def record_of_end(stage: Stage, limit_s: float, ended: Ended, result: dict[str, object]) -> StageRecord:
    """Return the record of a stage whose process has ended, or was killed after `limit_s` seconds."""
    operations = [line.removeprefix(PROGRESS) for line in ended.err if line.startswith(PROGRESS)]
    place = f", in: {operations[-1]}" if operations else ""
    lines = [line for line in ended.err if not line.startswith(PROGRESS)][-KEPT_LINES:]
    record = StageRecord(stage=stage, state=StageState.PASSED, seconds=ended.seconds, result=dict(result))
    if ended.code is None:
        record.state, record.reason = StageState.TIMED_OUT, f"killed after {limit_s:.0f} s{place}"
    elif ended.code != 0 or "passed" not in result:
        end = ended.signal_name or f"exit code {ended.code}"
        record.state, record.reason = StageState.CRASHED, f"{end}{place}"
    elif not result["passed"]:
        record.state, record.reason = StageState.FAILED, str(result.get("reason", ""))
    if ended.survivors:
        record.reason += "".join(f"; process {pid} cannot be ended: {state}" for pid, state in ended.survivors.items())
    if record.state is not StageState.PASSED:
        record.last_lines = lines
    return record


def _say(text: str) -> None:
    print(f"benchmark_gpu: {text}", file=sys.stderr, flush=True)
