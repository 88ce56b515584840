"""`python -m yolo_lightning benchmark_gpu OUT`: everything to measure on a new GPU, in minutes, as one page."""

import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Literal, get_args

from yolo_lightning.commands.benchmark_gpu.gpu_page import key_figure, page
from yolo_lightning.commands.benchmark_gpu.stage_records import (
    DEFAULT_BUDGET_S,
    Stage,
    StageRecord,
    StageState,
    read_record_of,
)
from yolo_lightning.commands.benchmark_gpu.stage_runner import RunSettings, check_folder, run_stages
from yolo_lightning.utils.exit_codes import INTERRUPTED, ExitCode
from yolo_lightning.utils.files import replacing, write_json
from yolo_lightning.utils.stop_signals import pasteable

PAGE, RESULTS = "gpu.md", "gpu.json"
BAD = frozenset({StageState.FAILED, StageState.CRASHED, StageState.TIMED_OUT})
StageName = Literal["machine", "correctness", "products", "speed", "waits", "memory", "stability", "resume", "inductor"]
STAGE_NAMES: tuple[StageName, ...] = get_args(StageName)
FORMAT = 1
"""Version of gpu.json; increases when the meaning of a key changes or a key is removed."""


def benchmark_gpu(
    out: Path,
    *,
    device: str = "auto",
    quick: bool = False,
    budget_s: float = DEFAULT_BUDGET_S,
    stages: StageName | tuple[StageName, ...] = STAGE_NAMES,
) -> None:
    """Measure everything that matters on a new GPU within minutes, and write one page and one JSON file.

    Stages: the machine and `doctor`; every convolution algorithm and kernel against float64; the rate of the matrix
    products; network and training step beside native and further baselines; waits for the device; memory, also within
    6 GiB; stability; a training that is killed and resumed; inductor's Triton convolutions. Each stage runs in a child
    process with a time limit and its result is written at once: a crash or hang loses one stage only. A second call
    with the same folder runs the stages that have not finished.

    Exit code 0 if all stages passed or were skipped, 1 if one failed, crashed or timed out, 130 after Ctrl-C.

    Args:
        out: Folder for the results: gpu.md, gpu.json, and one JSON file per stage.
        device: auto, cpu, cuda, cuda:1, xpu, mps; auto selects the accelerator if there is one.
        quick: Rehearse all stages with small shapes and few repetitions; its times say nothing about speed.
        budget_s: Time limit for this call in seconds, at least 60. Stages that do not fit are skipped.
        stages: The stages to run, all by default, one, or several as [machine,speed].

    Raises:
        ValueError: If a value is not allowed, or `out` contains results of other settings.
        SystemExit: With code 1 or 130, see above.
    """
    if not 60 <= budget_s < float("inf"):
        raise ValueError(f"budget_s must be finite and >= 60, got {budget_s}")
    chosen = [stages] if isinstance(stages, str) else [*stages]
    check_stages(chosen)
    out, settings = out.expanduser().resolve(), RunSettings(device, quick)
    check_folder(out, settings)
    words = [sys.executable, "-m", "yolo_lightning", *sys.argv[1:]]
    command = pasteable(words)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        run_stages(out, settings, [one for one in Stage if one in chosen], budget_s)
    except KeyboardInterrupt:
        write_results(out, settings, command)
        print(f"benchmark_gpu: interrupted; finished stages are kept in {out}", file=sys.stderr)
        print(f"benchmark_gpu: run the other stages with: {command}", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None
    records = write_results(out, settings, command)
    print("\n".join(summary(out, records)))
    if any(record.state in BAD for record in records):
        raise SystemExit(ExitCode.FAILED)


def check_stages(names: Sequence[str]) -> None:
    """Raise a `ValueError` if there is no stage, or one with another name."""
    for name in names or [""]:
        if name not in STAGE_NAMES:
            raise ValueError(f"stages must contain some of {', '.join(STAGE_NAMES)}, got {name or 'none'}")


def write_results(out: Path, settings: RunSettings, command: str) -> list[StageRecord]:
    """Write the page and the JSON file from the records of all stages, and return the records."""
    records = [record for stage in Stage if (record := read_record_of(out, stage)) is not None]
    date = datetime.now().astimezone().isoformat(timespec="seconds")
    environment = {"date": date, "command": command.replace(sys.executable, "python"), **asdict(settings)}
    write_json(
        out / RESULTS,
        {"format": FORMAT, **environment, "stages": {record.stage: asdict(record) for record in records}},
    )
    with replacing(out / PAGE) as temporary:
        temporary.write_text(page(records, environment), encoding="utf-8")
    return records


def summary(out: Path, records: Sequence[StageRecord]) -> list[str]:
    """Return the lines printed at the end: the key figure of each stage, the number of states, and the paths."""
    counts = {state: sum(record.state is state for record in records) for state in StageState}
    return [
        *(f"{record.stage:<12} {record.state:<10} {key_figure(record)}" for record in records),
        ", ".join(f"{state}: {count}" for state, count in counts.items() if count),
        f"page: {out / PAGE}",
        f"all results: {out / RESULTS}",
    ]
