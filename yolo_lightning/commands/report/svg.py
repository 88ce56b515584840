"""Figures as SVG that stands in a page and takes the page's colours, light or dark."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

INK, FAINT, PAPER = "#010203", "#040506", "#070809"
"""Colours that nobody else uses; the page's own take their place."""

SERIES = tuple(f"#0a0b{number:02x}" for number in range(8))
"""For lines and bars, likewise."""

VARIABLES = {INK: "var(--ink)", FAINT: "var(--faint)", PAPER: "var(--paper)"} | {
    colour: f"var(--series-{number})" for number, colour in enumerate(SERIES)
}
WIDTH_INCHES = 6.0
SETTINGS = {
    "svg.fonttype": "none",  # text stays text: small, searchable
    "svg.hashsalt": "report",  # the same run gives the same file
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.5,
    "grid.alpha": 0.5,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "legend.fontsize": 9,
}


@contextmanager
def page_style() -> Iterator[None]:
    """Draw figures for the page inside."""
    with rc_context(SETTINGS):
        yield


def one_plot(height_inches: float = 2.9) -> tuple[Figure, Axes]:
    """A figure with one pair of axes; call inside `page_style`."""
    figure = Figure(figsize=(WIDTH_INCHES, height_inches), layout="constrained", facecolor="none")
    return figure, figure.subplots()


def as_svg(figure: Figure, name: str, title: str) -> str:
    """The figure as an `<svg>` element; call inside `page_style`.

    Args:
        figure: Drawn with the colours of this file.
        name: Letters and hyphens, another for each figure of a page, as its parts refer to each other by name.
        title: For readers who do not see it; plain words.
    """
    text = StringIO()
    FigureCanvasSVG(figure).print_svg(text, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    element = text.getvalue()
    element = element[element.index("<svg") :]
    element = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", element)  # a page needs none
    element = re.sub(r'\s(width|height)="[\d.]+pt"', "", element, count=2)
    element = re.sub(r'(\sid="|href="#|url\(#)', rf"\g<1>{name}-", element)
    for colour, variable in VARIABLES.items():
        element = element.replace(colour, variable)
    return element.replace("<svg", f'<svg role="img" aria-label="{title}"', 1)
