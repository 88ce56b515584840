"""The doctor's report: a table, lines to paste, or JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

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
"""Width where there is no terminal."""
REASON_COLUMN = 34


def show(console: Console, machine: MachineFacts, found: Sequence[Finding], advice: Advice) -> None:
    """Print the table, then what to write where."""
    console.print(f"{machine.system}, {machine.processor}", highlight=False, markup=False)
    console.print(findings_table(found))
    console.print(summary(found), style=STYLES[worst(found)], highlight=False)
    console.print("\n# into a configuration file, given with --config after the others", style="dim", highlight=False)
    print_plainly(console, yaml_text(advice.options, console.width))
    if advice.commands:
        console.print("\n# into a shell, before the training", style="dim", highlight=False)
        for command in advice.commands:
            print_plainly(console, f"# {command.reason}\n{command.text}")


def print_plainly(console: Console, text: str) -> None:
    """Print lines that are to be copied: not wrapped, not coloured."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def findings_table(found: Sequence[Finding]) -> Table:
    """One row per finding: check, finding with its advice, verdict."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("check")
    table.add_column("finding", ratio=1)
    table.add_column("verdict", no_wrap=True)
    for finding in found:
        style = STYLES[finding.verdict]
        advice = f"\n[dim]> {escape(finding.advice)}[/dim]" if finding.advice else ""
        table.add_row(escape(finding.check), escape(finding.found) + advice, f"[{style}]{finding.verdict}[/{style}]")
    return table


def summary(found: Sequence[Finding]) -> str:
    """The verdicts, counted, worst first."""
    counts = [(verdict, sum(finding.verdict is verdict for finding in found)) for verdict in reversed(Severity)]
    return ", ".join(f"{verdict}: {count}" for verdict, count in counts if count)


def yaml_text(options: Sequence[Option], columns: int = PIPE_COLUMNS) -> str:
    """Nested YAML; each value has its reason as a comment, behind it or, where that is too wide, before it."""
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
        too_wide = len(line) > columns
        lines += [f"{indent}# {option.reason}", f"{indent}{name}: {value}"] if too_wide else [line]
    return "\n".join(lines)


def json_text(machine: MachineFacts, results: Sequence[ProbeOutcome], found: Sequence[Finding], advice: Advice) -> str:
    """Everything, for programs."""
    content: dict[str, Any] = {
        "verdict": worst(found),
        "findings": [asdict(finding) for finding in found],
        "recommended": asdict(advice),
        "machine": asdict(machine),
        "probes": [asdict(result) for result in results],
    }
    return json.dumps(content, indent=2)
