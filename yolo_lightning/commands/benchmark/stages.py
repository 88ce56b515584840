"""Stages of `benchmark gpu`: child processes within a time budget, and one record for each.

Without torch, except in the process of a stage: `python -m yolo_lightning.commands.benchmark.stages STAGE OPTIONS`.
"""

import faulthandler
import json
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from yolo_lightning.commands.benchmark.stage_record import (
    FINISHED,
    Stage,
    StageRecord,
    StageState,
    read_record,
    record_file,
)
from yolo_lightning.supervision.child_process import Ended, run_child
from yolo_lightning.utils.announced_operations import announce, last_operation
from yolo_lightning.utils.files import write_json

MODULE = "yolo_lightning.commands.benchmark.stages"
KEPT_LINES = 12
PAGE_S = 5.0
"""Part of the budget for killing a process and writing the page, seconds."""
FINISHING_S = 10.0
"""Part of a time limit in which a stage should end by itself, seconds: 1/10 of the limit, at most this."""
DEFAULT_BUDGET_S = 600.0
LEAST_S = 10.0
ROUNDS = 7
QUICK_IMAGES = 2
QUICK_PIXELS = 64
USABLE = ("works", "is slower")
"""Outcomes of doctor's test of the native convolutions after which they can be measured."""


class StageWork(NamedTuple):
    """Module with a function of the stage's name, and the part of the remaining time that the stage may use.

    The function is called with a `Section`. A stage that ends early leaves time to the later ones.
    """

    module: str
    part: int
    opens_device: bool = True  # a process that uses a GPU must not fork: false for stages that start processes


WORK = {
    Stage.MACHINE: StageWork("machine_facts", 110, opens_device=False),
    Stage.CORRECTNESS: StageWork("correctness", 100),
    Stage.LAYERS: StageWork("layer_speed", 60),
    Stage.STEP: StageWork("training_step", 130),
}


def _launch_stage(folder: Path, settings: Mapping[str, Any], stage: Stage, limit_s: float) -> Ended:
    """Run the process of a stage; it is killed after `limit_s` seconds."""
    options = {**settings, "folder": str(folder), "limit_s": limit_s - min(limit_s / 10, FINISHING_S)}
    return run_child([sys.executable, "-m", MODULE, stage, json.dumps(options)], limit_s)


def run_stages(
    folder: Path,
    settings: Mapping[str, Any],
    stages: Sequence[Stage],
    budget_s: float,
    launch: Callable[..., Ended] = _launch_stage,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Run the stages that `folder` contains no finished record of, in this order, within `budget_s` seconds.

    `settings` are the options of the user. A stage whose part of the remaining time is too short does not run. `launch`
    and `clock` are replaced in tests.
    """
    began_s = clock()
    folder.mkdir(parents=True, exist_ok=True)
    waiting = []
    for stage in stages:
        record = read_record(folder, stage)
        if record is not None and record.state in FINISHED:
            _print_line(f"{stage}: finished in an earlier call")
        else:
            waiting.append(stage)
    for number, stage in enumerate(waiting):
        remaining_s = budget_s - PAGE_S - (clock() - began_s)
        limit_s = remaining_s * WORK[stage].part / sum(WORK[later].part for later in waiting[number:])
        if limit_s < LEAST_S:
            remaining = f"{max(remaining_s, 0):.0f} s of {budget_s:g} s are left"
            _print_line(f"{stage}: not run, {remaining}; call the command again")
            continue
        _print_line(f"{stage}: started, at most {limit_s:.0f} s")
        record_file(folder, stage).unlink(missing_ok=True)
        ended = launch(folder, settings, stage, limit_s)
        record = record_of_end(read_record(folder, stage) or StageRecord(stage=stage), limit_s, ended)
        write_json(record_file(folder, stage), asdict(record))
        _print_line(f"{stage}: {record.seconds:.1f} s, {record.outcome}")


def record_of_end(record: StageRecord, limit_s: float, ended: Ended) -> StageRecord:
    """Complete the record of a stage whose process has ended, or was killed after `limit_s` seconds."""
    operation, messages = last_operation(ended.err)
    place = f", in: {operation}" if operation else ""
    record.seconds = ended.seconds
    if ended.code is None:
        record.state = StageState.TIMED_OUT
        record.reason = f"killed after {limit_s:.0f} s{place}"
    elif ended.code != 0 or record.state is StageState.INTERRUPTED:
        record.state = StageState.CRASHED
        record.reason = f"{ended.signal_name or f'exit code {ended.code}'}{place}"
    if ended.killed.survivors:
        record.reason += f"; cannot be ended: {ended.killed}"
    if record.state is not StageState.PASSED:
        record.last_lines = messages[-KEPT_LINES:]
    return record


def _print_line(text: str) -> None:
    print(f"benchmark: {text}", file=sys.stderr, flush=True)


def main() -> None:
    """Run the stage of the command line."""
    began_s = time.monotonic()
    stage = Stage(sys.argv[1])
    options = json.loads(sys.argv[2])
    folder = Path(options["folder"])
    is_quick = options["quick"]
    faulthandler.enable()
    # Decisions and kernels of a user's earlier runs must not influence the results.
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", module=r"lightning\.")
    for name in ("lightning.pytorch", "lightning.fabric"):  # reports of the hardware and advice
        logging.getLogger(name).setLevel(logging.ERROR)
    announce("the imports of torch and of the package")
    from yolo_lightning.commands.benchmark.section import Section, device_called, open_device
    from yolo_lightning.data.image_size import ImageSize

    work = WORK[stage]
    find_device = open_device if work.opens_device else device_called
    device = find_device(options["device"])
    batch_size = options["batch_size"]
    pixels = options["image_size"]
    rounds = ROUNDS
    if is_quick:
        batch_size = QUICK_IMAGES
        pixels = QUICK_PIXELS
        rounds = 1
    problem = native_problem(read_record(folder, Stage.MACHINE))
    record = StageRecord(stage=stage)
    if problem:
        record.add(f"The native convolutions are not measured: {problem}")
    section = Section(
        device=device,
        batch_size=batch_size,
        image_size=ImageSize(pixels, pixels),
        rounds=rounds,
        quick=is_quick,
        folder=folder / "work",
        file=record_file(folder, stage),
        deadline_s=began_s + options["limit_s"],
        skips_native=bool(problem),
        record=record,
    )
    getattr(import_module(f"yolo_lightning.commands.benchmark.{work.module}"), stage)(section)
    record.state = StageState.FAILED if record.reason else StageState.PASSED
    section.save()


def native_problem(record: StageRecord | None) -> str:
    """Return why the native convolutions cannot be measured on this machine, by doctor; empty if they can."""
    if record is None:
        return ""
    if record.state is StageState.TIMED_OUT:
        return f"the tests of doctor hang: {record.reason}"
    for probe in record.measured.get("doctor", {}).get("probes", ()):
        if probe["probe"] == "convolution" and probe["outcome"] not in USABLE:
            return f"{probe['outcome']}: {probe['detail']}"
    return ""


if __name__ == "__main__":
    main()
