"""`python -m yolo_lightning doctor`: what this machine is, what is wrong with it, and which settings suit it."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.live import Live

from yolo_lightning.commands.doctor.advice import advise
from yolo_lightning.commands.doctor.doctor_report import PIPE_COLUMNS, json_text, show
from yolo_lightning.commands.doctor.finding import Severity, worst
from yolo_lightning.commands.doctor.findings import findings
from yolo_lightning.commands.doctor.look import look
from yolo_lightning.commands.doctor.probes import probe_findings, run_probes
from yolo_lightning.commands.doctor.study import INTERRUPTED, Study, run_study


def doctor(
    *,
    device: str = "auto",
    run: str = "runs",
    data_root: str | None = None,
    probes: bool = True,
    probe_timeout_s: float = 180.0,
    json: bool = False,
    hang_study: bool = False,
    hours_per_arm: float = 1.0,
    study_folder: str = "hang-study",
) -> None:
    """Look at this machine, try what may hang or crash in child processes, and recommend settings.

    Exit code 0 if nothing is bad, 1 if something is, 2 if an option is not allowed. docs/doctor.md explains the checks.

    Args:
        device: auto, cpu, cuda, cuda:1; auto takes the GPU that torch sees.
        run: Where run folders go; its free space counts.
        data_root: Dataset folder, where there is one; its free space counts.
        probes: Also compute and load something on the device, about half a minute, longer where something hangs.
        probe_timeout_s: Seconds after which one of these counts as hung; vendor libraries compile at first use.
        json: Print everything as JSON instead of tables.
        hang_study: Instead of all that, find out what stalls the queues of an AMD card: six arms, forked and spawned
            workers times three ways to copy a batch, hours long, unattended. What is done is not done again.
        hours_per_arm: Length of one arm of the study.
        study_folder: Where the study keeps a CSV file per arm, and its table.

    Raises:
        ValueError: If a value is not allowed.
        SystemExit: With code 1 if something is bad.
    """
    check_device(device)
    if not probe_timeout_s > 0:
        raise ValueError(f"probe_timeout_s is {probe_timeout_s}, allowed are numbers above 0")
    if hang_study:
        study = Study(folder=Path(study_folder).expanduser(), device=device, seconds=3600 * hours_per_arm)
        raise SystemExit(run_study(study, lambda text: print(text, flush=True)))
    data = None if data_root is None else Path(data_root).expanduser()
    if data is not None and not data.is_dir():
        raise ValueError(f"data_root is {data}: there is no such folder")
    machine = look(Path(run).expanduser(), data)
    try:
        with saying() as say:
            results = run_probes(device, probe_timeout_s, say) if probes else []
    except KeyboardInterrupt:
        print("interrupted: what was being tried has been ended", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None
    found = [*findings(machine), *probe_findings(results)]
    advice = advise(machine, results)
    if json:
        print(json_text(machine, results, found, advice))
    else:
        terminal = Console()
        show(terminal if terminal.is_terminal else Console(width=PIPE_COLUMNS), machine, found, advice)
    if worst(found) is Severity.BAD:
        raise SystemExit(1)


def check_device(device: str) -> None:
    """Refuse what no torch knows, before anything is started.

    Raises:
        ValueError: If it is no name of a device.
    """
    name, _, number = device.partition(":")
    if device not in ("auto", "cpu", "cuda") and not (name == "cuda" and number.isdigit()):
        raise ValueError(f"device is {device!r}, allowed are auto, cpu, cuda and cuda:1, cuda:2, ...")


@contextmanager
def saying() -> Iterator[Callable[[str], None]]:
    """Gives a function that says what is tried now: in a terminal in a line that goes away, without a thread."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: console.print(f"trying: {text}", highlight=False)
        return
    with Live("looking", console=console, auto_refresh=False, transient=True) as live:
        yield lambda text: live.update(f"trying: {text}", refresh=True)
