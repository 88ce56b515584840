"""What a section has found: an answer, Markdown lines and the measured values. No torch."""

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from yolo_lightning.utils.exit_codes import ExitCode

FORMAT = 5
"""Version of the JSON files; increases when the meaning of a key changes or a key is removed."""
MIB = 2**20
NOT_MEASURED = "-"
PROGRESS = "benchmark: measuring "
"""Prefix of the lines on stderr by which a section names its next operation."""


@dataclass(kw_only=True)
class Findings:
    """Findings of a section, or the part that was measured before it ended."""

    passed: bool = True
    reason: str = ""  # the checks that failed
    verdict: str = ""  # yes, no or unknown, the answer to the question of the page; empty: yes if passed
    answer: str = ""  # the most important result, one line
    lines: list[str] = field(default_factory=list)  # Markdown: explanations and tables
    measured: dict[str, Any] = field(default_factory=dict)  # all values: seconds and bytes

    def add(self, *lines: str) -> None:
        """Append lines, and an empty line after them."""
        self.lines += [*lines, ""] if lines else []

    def fail(self, reasons: Sequence[str]) -> None:
        """Record checks that failed, if there are any."""
        self.passed, self.reason = self.passed and not reasons, "; ".join(filter(None, [self.reason, *reasons]))

    def finish(self) -> None:
        """Print the lines; exit with code 1 if a check failed."""
        print("\n".join(self.lines))
        if not self.passed:
            print(f"benchmark: failed: {self.reason}", file=sys.stderr)
            raise SystemExit(ExitCode.FAILED)


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return a Markdown table."""
    cells = [[str(cell).replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    return [f"| {' | '.join(row)} |" for row in (headings, ["---"] * len(headings), *cells)]


def ms(seconds: float) -> str:
    """Return milliseconds with about three significant digits."""
    value = seconds * 1000
    if math.isnan(value):
        return NOT_MEASURED
    return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def first_line(error: Exception) -> str:
    """Return the type and the first line of an error."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}".rstrip(": ")
