"""Findings of a stage: an answer, Markdown lines and the measured values. No torch."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

FORMAT = 6
"""Version of the JSON files; increases when the meaning of a key changes or a key is removed."""
NOT_MEASURED = "-"
PROGRESS = "benchmark: measuring "
"""Prefix of the lines on stderr by which a stage names its next operation."""


@dataclass(kw_only=True)
class Findings:
    """Findings of a stage, or the part that was measured before it ended."""

    passed: bool = True
    reason: str = ""  # the checks that failed
    verdict: str = ""  # yes, no or unknown, the answer to the question of the page; empty: yes if passed
    answer: str = ""  # the most important result, one line
    lines: list[str] = field(default_factory=list)  # Markdown: explanations and tables
    measured: dict[str, Any] = field(default_factory=dict)  # all values: seconds and bytes

    def add(self, *lines: str) -> None:
        """Append lines, and an empty line after them."""
        if lines:
            self.lines += [*lines, ""]

    def fail(self, reasons: Sequence[str]) -> None:
        """Record checks that failed, if there are any."""
        if reasons:
            self.passed = False
            self.reason = "; ".join(filter(None, [self.reason, *reasons]))


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return a Markdown table."""
    lines = []
    for row in (headings, ["---"] * len(headings), *rows):
        cells = [str(cell).replace("|", "\\|").replace("\n", " ") for cell in row]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def ms(seconds: float) -> str:
    """Return milliseconds with about three significant digits."""
    value = seconds * 1000
    if math.isnan(value):
        return NOT_MEASURED
    if value < 1:
        return f"{value:.3f}"
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def first_line(error: Exception) -> str:
    """Return the type and the first line of an error."""
    message = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {message}".rstrip(": ")
