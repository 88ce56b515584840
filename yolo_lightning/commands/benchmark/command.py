"""`python -m yolo_lightning benchmark gpu OUT`: all stages on one device."""

import signal
import sys
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from yolo_lightning.commands.benchmark.gpu_page import answer, page
from yolo_lightning.commands.benchmark.stage_record import FORMAT, Stage, StageState, read_record
from yolo_lightning.commands.benchmark.stages import DEFAULT_BUDGET_S, run_stages
from yolo_lightning.commands.option_limits import check_device
from yolo_lightning.data.image_size import STRIDE, ImageSize
from yolo_lightning.errors import UserError
from yolo_lightning.utils.choices import check_range
from yolo_lightning.utils.exit_codes import INTERRUPTED, ExitCode
from yolo_lightning.utils.files import write_bytes, write_json
from yolo_lightning.utils.paths import real_path, user_path
from yolo_lightning.utils.stop_signals import pasteable

PAGE = "gpu.md"
RESULTS = "gpu.json"
StageName = Literal["machine", "correctness", "layers", "step"]


def gpu(
    out: Path,
    *,
    device: str = "auto",
    stages: StageName | list[StageName] | None = None,
    batch_size: int = 8,
    image_size: int = 640,
    quick: bool = False,
    budget_s: float = DEFAULT_BUDGET_S,
) -> None:
    """Measure a GPU, or another device, in ten minutes, and write one page and one JSON file.

    The page answers: does it compute right, is it faster than native and by how much per layer, which settings to use.
    Each stage runs in a child process with a time limit and its result is written at once: a crash or hang loses one
    stage only. A second call with the same options runs the stages that have not finished.

    Exit code 0 if no stage failed, crashed or timed out, else 1; 130 after Ctrl-C.

    Args:
        out: Folder for the results: gpu.md, gpu.json, and one JSON file per stage.
        device: auto, cpu, cuda, cuda:1, xpu, mps; auto selects the accelerator if there is one.
        stages: Stages to run, of machine, correctness, layers and step; null runs all. The page also contains
            the stages of earlier calls with the same options.
        batch_size: Images per step in layers and step.
        image_size: Side of the input in pixels in layers and step, a multiple of 32.
        quick: Rehearse all stages with small shapes and few repetitions; its times say nothing about speed.
        budget_s: Time limit for this call in seconds, at least 60. Stages that do not fit do not run.
    """
    check_device(device)
    if not 60 <= budget_s < float("inf"):
        raise UserError(f"budget_s must be finite and >= 60, got {budget_s}")
    check_range("batch_size", batch_size, ">= 1")
    ImageSize(image_size, image_size).check("image_size", 2 * STRIDE)
    if out.exists() and not out.is_dir():
        raise UserError(f"out must be a folder, got the file {out}")
    out = real_path(user_path(out))
    settings = {"device": device, "quick": quick, "batch_size": batch_size, "image_size": image_size}
    folder = out / ("rehearsal" if quick else "stages") / f"{device}-{batch_size}x{image_size}"
    names = [stages] if isinstance(stages, str) else stages
    selected = [stage for stage in Stage if names is None or stage in names]
    command = pasteable([sys.executable, "-m", "yolo_lightning", *sys.argv[1:]])
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    is_interrupted = False
    try:
        run_stages(folder, settings, selected, budget_s)
    except KeyboardInterrupt:
        is_interrupted = True
        print(f"benchmark: interrupted; run the other stages with: {command}", file=sys.stderr)
    states = write_results(out, folder, settings, command)
    print(f"page: {out / PAGE}")
    if is_interrupted:
        raise SystemExit(INTERRUPTED)
    if any(state is not StageState.PASSED for state in states):
        raise SystemExit(ExitCode.FAILED)


def write_results(out: Path, folder: Path, settings: Mapping[str, Any], command: str) -> list[StageState]:
    """Write the page and the JSON file from the records of all stages, print the answers, and return the states."""
    records = [record for stage in Stage if (record := read_record(folder, stage)) is not None]
    date = datetime.now().astimezone().isoformat(timespec="seconds")
    environment = {"date": date, "command": command.replace(sys.executable, "python"), **settings}
    content = {"format": FORMAT, **environment, "stages": {record.stage: asdict(record) for record in records}}
    write_json(out / RESULTS, content)
    write_bytes(out / PAGE, page(records, environment).encode())
    print("\n".join(answer(record, record.stage) for record in records))
    return [record.state for record in records]


benchmark = {"gpu": gpu}
"""Functions by the word after `benchmark`."""
