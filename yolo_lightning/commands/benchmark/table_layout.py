"""How the tables of a benchmark are laid out, and numbers in them."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from yolo_lightning.commands.benchmark.comparison import Result, ratio
from yolo_lightning.commands.benchmark.timing import Spread

COLUMN_GAP = 2
NOTHING = "-"


def head(console: Console, title: str, subtitle: str) -> None:
    """A line with the title, a line with what is to be known about the numbers."""
    console.print()
    console.rule(Text(title, "bold"), align="left", characters="-")
    console.print(Text(subtitle, "dim"))


def print_table(
    console: Console, headings: Sequence[str], rows: list[list[str]], second_part: str | None = None
) -> None:
    """Print columns side by side where they fit; else in two parts or more, the first column with each.

    Args:
        console: Where.
        headings: Of the columns.
        rows: Their cells.
        second_part: Heading of the column that begins a second part, should one be needed.
    """
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    if second_part is not None and sum(widths) + COLUMN_GAP * (len(widths) - 1) > console.width:
        start = headings.index(second_part)
        print_table(console, headings[:start], [row[:start] for row in rows])
        print_table(console, [headings[0], *headings[start:]], [[row[0], *row[start:]] for row in rows])
        return
    waiting = list(range(1, len(headings)))
    while waiting:
        shown, width = [0], widths[0]
        while waiting and (len(shown) == 1 or width + COLUMN_GAP + widths[waiting[0]] <= console.width):
            shown.append(waiting.pop(0))
            width += COLUMN_GAP + widths[shown[-1]]
        table = Table(box=None, padding=(0, COLUMN_GAP, 0, 0), pad_edge=False, header_style="cyan")
        for column in shown:
            table.add_column(headings[column], justify="right" if column else "left", no_wrap=True)
        for row in rows:
            table.add_row(*(Text(row[column]) for column in shown))
        console.print(table)


def number(value: float | None, digits: int) -> str:
    """With thousands separated; a dash for None."""
    return NOTHING if value is None else f"{value:,.{digits}f}"


def ms(time_s: float) -> str:
    """Milliseconds, three digits or more."""
    value = time_s * 1000
    return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 10 else f"{value:,.1f}"


def median(spread: Spread | None) -> str:
    """The median in milliseconds."""
    return NOTHING if spread is None else ms(spread.median_s)


def spread_range(spread: Spread | None) -> str:
    """Shortest and longest sample in milliseconds."""
    return NOTHING if spread is None else f"{ms(spread.minimum_s)}-{ms(spread.maximum_s)}"


def ratio_text(result: Result, to: Result | None) -> str:
    """How many times as long as another result."""
    value = ratio(result, to)
    return NOTHING if value is None else f"{value:.2f}"


def share(stage: Spread | None, total: Spread | None) -> str:
    """Part of the whole, in per cent."""
    return NOTHING if stage is None or total is None else f"{stage.median_s / total.median_s:.0%}"


def hours(time_s: float) -> str:
    """Seconds as hours."""
    return f"{time_s / 3600:.2f}"


def days(time_s: float) -> str:
    """Seconds as days."""
    return f"{time_s / 86400:.2f}"
