"""Elements of HTML; all text is escaped."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from html import escape


def section(name: str, title: str, *parts: str) -> str:
    """Return a section under a heading; `name` is the target of links."""
    return f'<section id="{name}"><h2>{escape(title)}</h2>\n{"".join(parts)}</section>\n'


def figure(title: str, element: str | None, missing: str) -> str:
    """Return an element under its title, or a note with the reason if there is no element."""
    if element is None:
        return note(f"{title}: {missing}")
    return f'<figure class="chart"><figcaption>{escape(title)}</figcaption>{element}</figure>\n'


def grid(*parts: str) -> str:
    """Return figures side by side, followed by the notes among `parts`."""
    shown = [part for part in parts if part.startswith("<figure")]
    notes = "".join(part for part in parts if not part.startswith("<figure"))
    return (f'<div class="grid">{"".join(shown)}</div>\n' if shown else "") + notes


def note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>\n'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers_from: int = 1) -> str:
    """Return a table; the columns from `numbers_from` on are aligned to the right."""

    def line(cells: Sequence[str], tag: str) -> str:
        marks = ("" if at < numbers_from else ' class="number"' for at in range(len(cells)))
        return "".join(f"<{tag}{mark}>{escape(cell)}</{tag}>" for mark, cell in zip(marks, cells, strict=True))

    body = "".join(f"<tr>{line(cells, 'td')}</tr>\n" for cells in rows)
    top = f"<thead><tr>{line(head, 'th')}</tr></thead>"
    return f'<div class="wide"><table>{top}<tbody>\n{body}</tbody></table></div>\n'


def confusion_table(class_names: Sequence[str], counts: Sequence[Sequence[int]]) -> str:
    """Return a confusion matrix by annotated and detected class, coloured by the share of the row."""
    names = [*class_names, "background"]
    head = "".join(f'<th class="number">{escape(name)}</th>' for name in names)
    lines = []
    for name, row in zip(names, counts, strict=True):
        total = max(1, sum(row))
        cells = (f'<td class="number" style="--share:{count / total:.3f}">{count:,}</td>' for count in row)
        lines.append(f"<tr><th>{escape(name)}</th>{''.join(cells)}</tr>\n")
    top = f"<thead><tr><th>annotated ↓ detected →</th>{head}</tr></thead>"
    return f'<div class="wide"><table class="confusion">{top}<tbody>\n{"".join(lines)}</tbody></table></div>\n'


def folded(title: str, element: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{element}</details>\n"


def facts(pairs: Mapping[str, str]) -> str:
    """Return a list of names with their values."""
    items = (f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in pairs.items())
    return f"<dl>{''.join(items)}</dl>\n"


def timestamp(time_s: float) -> str:
    """Return local date and time."""
    return datetime.fromtimestamp(time_s).strftime("%Y-%m-%d %H:%M:%S")
