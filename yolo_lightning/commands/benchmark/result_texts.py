"""Tables and numbers of a page in Markdown. No torch."""

import math
from collections.abc import Iterable, Sequence

NOT_MEASURED = "-"


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
