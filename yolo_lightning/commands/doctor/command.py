"""`python -m yolo_lightning doctor`: inspects this machine and recommends settings."""

import json as json_format
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import yaml
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from yolo_lightning.commands.command_line import wide_console
from yolo_lightning.commands.doctor.advice import Command, Option, recommended_commands, recommended_options
from yolo_lightning.commands.doctor.machine import MachineFacts, inspect_machine
from yolo_lightning.commands.doctor.machine_findings import Finding, Severity, machine_findings, worst
from yolo_lightning.commands.doctor.probes import probe_findings, run_probes
from yolo_lightning.utils.exit_codes import INTERRUPTED

STYLES = {Severity.OK: "green", Severity.NOTE: "cyan", Severity.WARNING: "yellow", Severity.BAD: "bold red"}
REASON_COLUMN = 40


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
        results = run_probes(device, probe_timeout_s) if probes else []
    except KeyboardInterrupt:
        print("interrupted: the running test was ended", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None
    found = [*machine_findings(machine), *probe_findings(results)]
    options, commands = recommended_options(machine, results), recommended_commands(machine, results)
    if json:
        content = {
            "verdict": worst(found),
            "findings": [asdict(finding) for finding in found],
            "recommended": {"options": [asdict(one) for one in options], "commands": [asdict(one) for one in commands]},
            "machine": asdict(machine),
            "probes": [asdict(result) for result in results],
        }
        print(json_format.dumps(content, indent=2))
    else:
        show(wide_console(), machine, found, options, commands)
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


def show(
    console: Console,
    machine: MachineFacts,
    found: Sequence[Finding],
    options: Sequence[Option],
    commands: Sequence[Command],
) -> None:
    """Print the table of findings, the number of findings per severity and the recommended settings."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("check")
    table.add_column("finding", ratio=1)
    table.add_column("severity", no_wrap=True)
    for finding in found:
        style = STYLES[finding.verdict]
        advice = f"\n[dim]> {escape(finding.advice)}[/dim]" if finding.advice else ""
        table.add_row(escape(finding.check), escape(finding.found) + advice, f"[{style}]{finding.verdict}[/{style}]")
    counts = [(severity, sum(finding.verdict is severity for finding in found)) for severity in reversed(Severity)]
    summary = ", ".join(f"{severity}: {count}" for severity, count in counts if count)
    console.print(f"{machine.system}, {machine.processor}", highlight=False, markup=False)
    console.print(table)
    console.print(summary, style=STYLES[worst(found)], highlight=False)
    lines = "\n".join(f"# {command.reason}\n{command.text}" for command in commands)
    for title, text in (
        ("save as a configuration file, give it with a further --config", yaml_text(options, console.width)),
        ("run in the shell before training", lines),
    ):
        if text:
            console.print(f"\n# {title}", style="dim", highlight=False)
            console.print(text, highlight=False, markup=False, soft_wrap=True)  # unchanged, to be copied


def yaml_text(options: Sequence[Option], columns: int) -> str:
    """Return nested YAML; the reason of a value is a comment behind it, or above it if the line would be too wide."""
    lines: list[str] = []
    before: list[str] = []
    for option in options:
        *parents, name = option.key.split(".")
        for depth, parent in enumerate(parents):
            if before[: depth + 1] != parents[: depth + 1]:
                lines.append(f"{'  ' * depth}{parent}:")
        before, indent = parents, "  " * len(parents)
        value = yaml.safe_dump(option.value, default_flow_style=True).removesuffix("\n...\n").strip()
        line = f"{indent}{name}: {value}  ".ljust(REASON_COLUMN) + f"# {option.reason}"
        lines += [line] if len(line) <= columns else [f"{indent}# {option.reason}", f"{indent}{name}: {value}"]
    return "\n".join(lines)
