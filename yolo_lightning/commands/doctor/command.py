"""`python -m yolo_lightning doctor`: inspects this machine and tests what can hang or crash."""

import json as json_format
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from yolo_lightning.commands.command_line import wide_console
from yolo_lightning.commands.doctor.inspect_machine import inspect_machine
from yolo_lightning.commands.doctor.machine_findings import Finding, Severity, machine_findings, worst
from yolo_lightning.commands.doctor.probes import probe_findings, run_probes
from yolo_lightning.commands.option_limits import check_device
from yolo_lightning.errors import UserError
from yolo_lightning.utils.exit_codes import INTERRUPTED
from yolo_lightning.utils.files import CONVOLUTION_VERDICTS, cache_folder
from yolo_lightning.utils.paths import user_path

STYLES = {Severity.OK: "green", Severity.NOTE: "cyan", Severity.WARNING: "yellow", Severity.BAD: "bold red"}


def doctor(
    *,
    device: str = "auto",
    run: str = "runs",
    probes: bool = True,
    probe_timeout_s: float = 180.0,
    json: bool = False,
    retry: bool = False,
) -> None:
    """Inspect this machine, and test what can hang or crash in child processes.

    Exit code 0 if no finding is bad, 1 if one is, 2 for an invalid option. docs/doctor.md explains the checks.

    Args:
        device: auto, cpu, cuda, cuda:1, xpu or mps; auto selects the GPU that torch finds, else the CPU.
        run: Parent folder of run folders; its free disk space is checked.
        probes: Also run tests on the device, which takes half a minute, or longer if one hangs.
        probe_timeout_s: Time limit of each test in seconds; vendor libraries compile kernels at first use.
        json: Print one JSON object instead of tables.
        retry: Delete the stored results of native convolutions, also failures in a training, so that
            `model.convolution.backend: auto` tests them again.

    Raises:
        UserError: If an option is invalid.
        SystemExit: With code 1 if a finding is bad.
    """
    check_device(device)
    if not probe_timeout_s > 0:
        raise UserError(f"--probe_timeout_s must be > 0, got {probe_timeout_s}.")
    if retry:
        verdicts = cache_folder() / CONVOLUTION_VERDICTS
        try:
            verdicts.unlink(missing_ok=True)
        except OSError as error:
            raise UserError(f"--retry cannot delete {verdicts} ({error.strerror}).") from error
    if user_path(run).is_file():
        raise UserError(f"--run must be the parent folder of run folders, got the file {run}.")
    machine = inspect_machine(user_path(run))
    results = []
    try:
        if probes:
            results = run_probes(device, probe_timeout_s)
    except KeyboardInterrupt:
        print("interrupted: the running test was ended", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None
    findings = [*machine_findings(machine), *probe_findings(results)]
    if json:
        content = {
            "verdict": worst(findings),
            "findings": list(map(asdict, findings)),
            "machine": asdict(machine),
            "probes": list(map(asdict, results)),
        }
        print(json_format.dumps(content, indent=2))
    else:
        console = wide_console()
        console.print(f"{machine.system}, {machine.processor}", markup=False)
        show_findings(console, findings)
    if worst(findings) is Severity.BAD:
        raise SystemExit(1)


def show_findings(console: Console, findings: Sequence[Finding]) -> None:
    """Print the table of findings and the number of findings per severity."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("check")
    table.add_column("finding", ratio=1)
    table.add_column("severity", no_wrap=True)
    for finding in findings:
        lines = escape(finding.result)
        if finding.advice:
            lines += f"\n[dim]> {escape(finding.advice)}[/dim]"
        style = STYLES[finding.verdict]
        table.add_row(escape(finding.check), lines, f"[{style}]{finding.verdict}[/{style}]")
    counts = Counter(finding.verdict for finding in findings)
    summary = ", ".join(f"{severity}: {counts[severity]}" for severity in reversed(Severity) if counts[severity])
    console.print(table)
    console.print(summary, style=STYLES[worst(findings)], highlight=False)
