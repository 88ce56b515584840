"""`python -m yolo_lightning benchmark SECTION`: convolutions, training step, loader, or everything on a GPU."""

import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from yolo_lightning.commands.benchmark.findings import FORMAT
from yolo_lightning.commands.benchmark.gpu_page import answer, page
from yolo_lightning.commands.benchmark.stages import DEFAULT_BUDGET_S, Stage, StageState, read_record, run_stages
from yolo_lightning.errors import UserError
from yolo_lightning.utils.exit_codes import INTERRUPTED, ExitCode
from yolo_lightning.utils.files import replacing, write_json
from yolo_lightning.utils.paths import real_path, user_path
from yolo_lightning.utils.stop_signals import pasteable

PAGE, RESULTS = "gpu.md", "gpu.json"
CONVOLUTIONS = ("layers", "graph", "step")


def function_of(words: Sequence[str]) -> tuple[Callable[..., None], list[str]]:
    """Return the function of the section that the first word names, and the words of its command line.

    Raises:
        UserError: If the first word is no section.
    """
    name = "".join(words[:1])
    if name == "gpu":
        return gpu, list(words[1:])
    if name == "loader":
        from yolo_lightning.commands.benchmark.loader_speed import loader

        return loader, list(words[1:])
    if name in (*CONVOLUTIONS, "-h", "--help"):
        from yolo_lightning.commands.benchmark.speed import convolutions

        return convolutions, list(words)
    sections = ", ".join([*CONVOLUTIONS, "loader", "gpu"])
    raise UserError(
        f"benchmark needs a section, one of {sections}, got {name or 'none'}; for example: benchmark gpu OUT"
    )


def gpu(
    out: Path,
    *,
    device: str = "auto",
    quick: bool = False,
    budget_s: float = DEFAULT_BUDGET_S,
) -> None:
    """Measure everything that matters on a new GPU in ten minutes, and write one page and one JSON file.

    The page answers: does it compute right, is it faster than native and by how much per layer, does training run, does
    kill and resume hold, which settings to use. Each stage runs in a child process with a time limit and its result is
    written at once: a crash or hang loses one stage only. A second call with the same options runs the stages that have
    not finished.

    Exit code 0 if no stage failed, crashed or timed out, else 1; 130 after Ctrl-C.

    Args:
        out: Folder for the results: gpu.md, gpu.json, and one JSON file per stage.
        device: auto, cpu, cuda, cuda:1, xpu, mps; auto selects the accelerator if there is one.
        quick: Rehearse all stages with small shapes and few repetitions; its times say nothing about speed.
        budget_s: Time limit for this call in seconds, at least 60. Stages that do not fit do not run.
    """
    if not 60 <= budget_s < float("inf"):
        raise UserError(f"budget_s must be finite and >= 60, got {budget_s}")
    if out.exists() and not out.is_dir():
        raise UserError(f"out must be a folder, got the file {out}")
    out, settings = real_path(user_path(out)), {"device": device, "quick": quick}
    folder = out / ("rehearsal" if quick else "stages") / device
    command = pasteable([sys.executable, "-m", "yolo_lightning", *sys.argv[1:]])
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    code = 0
    try:
        run_stages(folder, settings, list(Stage), budget_s)
    except KeyboardInterrupt:
        code = INTERRUPTED
        print(f"benchmark: interrupted; run the other stages with: {command}", file=sys.stderr)
    states = write_results(out, folder, settings, command)
    print(f"page: {out / PAGE}")
    if code or any(state is not StageState.PASSED for state in states):
        raise SystemExit(code or ExitCode.FAILED)


def write_results(out: Path, folder: Path, settings: dict[str, Any], command: str) -> list[StageState]:
    """Write the page and the JSON file from the records of all stages, print the answers, and return the states."""
    records = [record for stage in Stage if (record := read_record(folder, stage)) is not None]
    date = datetime.now().astimezone().isoformat(timespec="seconds")
    environment = {"date": date, "command": command.replace(sys.executable, "python"), **settings}
    content = {"format": FORMAT, **environment, "stages": {record.stage: asdict(record) for record in records}}
    write_json(out / RESULTS, content)
    with replacing(out / PAGE) as temporary:
        temporary.write_text(page(records, environment), encoding="utf-8")
    print("\n".join(answer(record, record.stage) for record in records))
    return [record.state for record in records]
