"""`python -m yolo_lightning doctor`: inspects this machine and recommends settings."""

import sys
from pathlib import Path

from rich.console import Console

from yolo_lightning.commands.doctor.advice import advise
from yolo_lightning.commands.doctor.doctor_report import PIPE_COLUMNS, json_text, show
from yolo_lightning.commands.doctor.finding import Severity, worst
from yolo_lightning.commands.doctor.inspection import inspect_machine
from yolo_lightning.commands.doctor.machine_findings import machine_findings
from yolo_lightning.commands.doctor.probes import probe_findings, run_probes
from yolo_lightning.utils.exit_codes import INTERRUPTED


def doctor(
    *,
    device: str = "auto",
    run: str = "runs",
    data_root: str | None = None,
    probes: bool = True,
    probe_timeout_s: float = 180.0,
    json: bool = False,
) -> None:
    """Inspect this machine, test what can hang or crash in child processes, and recommend settings.

    Exit code 0 if no finding is bad, 1 if one is, 2 for an invalid option. docs/doctor.md explains the checks.

    Args:
        device: auto, cpu, cuda or cuda:1; auto selects the GPU that torch finds, else the CPU.
        run: Parent folder of run folders; its free disk space is checked.
        data_root: Dataset folder; its free disk space is checked.
        probes: Also run tests on the device, which takes half a minute, or longer if one hangs.
        probe_timeout_s: Time limit of each test in seconds; vendor libraries compile kernels at first use.
        json: Print one JSON object instead of tables.

    Raises:
        ValueError: If an option is invalid.
        SystemExit: With code 1 if a finding is bad.
    """
    check_device(device)
    if not probe_timeout_s > 0:
        raise ValueError(f"--probe_timeout_s must be > 0, got {probe_timeout_s}.")
    data = None if data_root is None else Path(data_root).expanduser()
    if data is not None and not data.is_dir():
        raise ValueError(f"--data_root must be an existing folder, got '{data}'.")
    machine = inspect_machine(Path(run).expanduser(), data)
    try:
        results = run_probes(device, probe_timeout_s, report_test) if probes else []
    except KeyboardInterrupt:
        print("interrupted: the running test was ended", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None
    found = [*machine_findings(machine), *probe_findings(results)]
    advice = advise(machine, results)
    if json:
        print(json_text(machine, results, found, advice))
    else:
        terminal = Console()
        show(terminal if terminal.is_terminal else Console(width=PIPE_COLUMNS), machine, found, advice)
    if worst(found) is Severity.BAD:
        raise SystemExit(1)


def check_device(device: str) -> None:
    """Check the form of a device name without importing torch.

    Raises:
        ValueError: If torch accepts no such name.
    """
    name, _, number = device.partition(":")
    if device not in ("auto", "cpu", "cuda") and not (name == "cuda" and number.isdigit()):
        raise ValueError(f"--device must be auto, cpu, cuda or cuda:N with a number N, got {device!r}.")


def report_test(title: str) -> None:
    """Print the running test to stderr, which keeps stdout free for JSON."""
    print(f"testing: {title}", file=sys.stderr, flush=True)
