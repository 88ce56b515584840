"""The doctor's report: a table with lines to copy, or JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict

import yaml
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from yolo_lightning.commands.doctor.advice import Advice, Option
from yolo_lightning.commands.doctor.finding import Finding, Severity, worst
from yolo_lightning.commands.doctor.machine import MachineFacts
from yolo_lightning.commands.doctor.probes import ProbeOutcome

STYLES = {Severity.OK: "green", Severity.NOTE: "cyan", Severity.WARNING: "yellow", Severity.BAD: "bold red"}
PIPE_COLUMNS = 120
"""Width of the report if the output is not a terminal."""

REASON_COLUMN = 34


def show(console: Console, machine: MachineFacts, found: Sequence[Finding], advice: Advice) -> None:
    """Print the table of findings and the recommended settings."""
    console.print(f"{machine.system}, {machine.processor}", highlight=False, markup=False)
    console.print(findings_table(found))
    console.print(summary(found), style=STYLES[worst(found)], highlight=False)
    blocks = [
        ("save as a configuration file, give it with a further --config", yaml_text(advice.options, console.width))
    ]
    if advice.commands:
        lines = "\n".join(f"# {command.reason}\n{command.text}" for command in advice.commands)
        blocks.append(("run in the shell before training", lines))
    for title, lines in blocks:
        console.print(f"\n# {title}", style="dim", highlight=False)
        console.print(lines, highlight=False, markup=False, soft_wrap=True)  # unchanged, to be copied


def findings_table(found: Sequence[Finding]) -> Table:
    """Return a table with one row per finding."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("check")
    table.add_column("finding", ratio=1)
    table.add_column("severity", no_wrap=True)
    for finding in found:
        style = STYLES[finding.verdict]
        advice = f"\n[dim]> {escape(finding.advice)}[/dim]" if finding.advice else ""
        table.add_row(escape(finding.check), escape(finding.found) + advice, f"[{style}]{finding.verdict}[/{style}]")
    return table


def summary(found: Sequence[Finding]) -> str:
    """Return the number of findings per severity, most severe first."""
    counts = [(severity, sum(finding.verdict is severity for finding in found)) for severity in reversed(Severity)]
    return ", ".join(f"{severity}: {count}" for severity, count in counts if count)


def yaml_text(options: Sequence[Option], columns: int = PIPE_COLUMNS) -> str:
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
        line = f"{indent}{name}: {value}".ljust(REASON_COLUMN) + f"# {option.reason}"
        lines += [line] if len(line) <= columns else [f"{indent}# {option.reason}", f"{indent}{name}: {value}"]
    return "\n".join(lines)


def json_text(machine: MachineFacts, results: Sequence[ProbeOutcome], found: Sequence[Finding], advice: Advice) -> str:
    """Return findings, recommendations, facts and probe results as one JSON object."""
    content = {
        "verdict": worst(found),
        "findings": [asdict(finding) for finding in found],
        "recommended": asdict(advice),
        "machine": asdict(machine),
        "probes": [asdict(result) for result in results],
    }
    return json.dumps(content, indent=2)
