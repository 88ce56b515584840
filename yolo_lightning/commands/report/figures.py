"""Figures of the report as SVG elements in the colours of the page, light or dark."""

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from itertools import cycle
from typing import Literal

import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, StrMethodFormatter

from yolo_lightning.commands.report.metrics_curves import Metrics, Series
from yolo_lightning.data.array_types import Float64Array
from yolo_lightning.evaluation.average_precision import AT_50, PartScores
from yolo_lightning.evaluation.drawing import CLASS_COLOURS, class_colour
from yolo_lightning.evaluation.drift import CHALLENGE_MONTHS, month_name
from yolo_lightning.evaluation.score_table import SCORE_LABELS
from yolo_lightning.evaluation.ultralytics_metrics import GRID, ThresholdCurves
from yolo_lightning.supervision.incident import IncidentReport
from yolo_lightning.utils.plain_text import without_math

INK = "#010203"
FAINT = "#040506"
PAPER = "#070809"
COLOURS = tuple(f"#0a0b{number:02x}" for number in range(8))
ALARM = COLOURS[3]
VARIABLES = {INK: "var(--ink)", FAINT: "var(--faint)", PAPER: "var(--paper)"} | {
    colour: f"var(--series-{number})" for number, colour in enumerate(COLOURS)
}
"""Placeholder colours, and the CSS variables of the page that replace them."""

LINE_STYLES = ("-", "--", ":")  # they separate the curves of classes with equal colours

Scale = Literal["scores", "logarithmic"]
"""Vertical axis: for scores, or logarithmic if the values span a decade, else from 0."""

WIDTH_INCHES = 5.5  # text has the size of the page's on a wide screen and remains legible on a telephone
STYLE = {
    "svg.fonttype": "none",  # text remains text: small and searchable
    "svg.hashsalt": "report",  # reproducible ids
    "path.simplify_threshold": 0.5,
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.facecolor": "none",
    "axes.prop_cycle": cycler("color", COLOURS),
    "figure.facecolor": "none",
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
"""Call all functions of this file inside `rc_context(STYLE)`."""

FINE_RATIO = 300.0  # of the ends of a logarithmic axis, up to which it has ticks at 1, 2 and 5 times the powers of 10
LEAST_LOGARITHMIC = 10.0  # ratio of the highest to the lowest value of a logarithmic axis
LEGEND_CHARACTERS = 60  # of a line of a legend below a figure
MAX_POINTS = 400  # points of a line; longer curves are averaged

MAX_NAMED_CLASSES = 20  # with more classes, curves of single classes are gray and have no names

SHOWN_SCORES = ("map_50", "map")
COMPARED_MONTHS = frozenset(map(month_name, CHALLENGE_MONTHS.values()))


@dataclass(frozen=True, slots=True)
class CurveLine:
    """A curve with its label, colour and matplotlib format."""

    series: Series
    label: str
    colour: str
    style: str = "-"


def loss_figure(metrics: Metrics, incidents: Sequence[IncidentReport]) -> str | None:
    """Plot the total loss and its parts in training, and the parts in validation; None if none was logged."""
    logged = (*metrics.names("train/"), *metrics.names("val/"))
    parts = dict.fromkeys(name.partition("/")[2] for name in logged if name.endswith("_loss"))
    lines = [CurveLine(metrics.series("train/loss"), "all, training", INK)]
    for number, part in enumerate(parts):
        colour = COLOURS[number % len(COLOURS)]
        name = part.removesuffix("_loss")
        lines.append(CurveLine(metrics.series(f"train/{part}"), name, colour))
        lines.append(CurveLine(metrics.series(f"val/{part}"), f"{name}, validation", colour, "o:"))
    return _step_figure("loss", "loss", lines, metrics, incidents, scale="logarithmic")


def score_figure(metrics: Metrics, incidents: Sequence[IncidentReport]) -> str | None:
    """Plot the scores of the validations, the balanced score only if months were compared; None without validation."""
    names = (*SHOWN_SCORES, "balanced") if len(metrics.series("val/cov")) else SHOWN_SCORES
    scores = zip(names, COLOURS, strict=False)
    lines = [CurveLine(metrics.series(f"val/{name}"), SCORE_LABELS[name], colour, "o-") for name, colour in scores]
    return _step_figure("scores", "validation score", lines, metrics, incidents, scale="scores")


def rate_figure(metrics: Metrics, incidents: Sequence[IncidentReport]) -> str | None:
    """Plot the learning rates of all groups, with different dashes because they are often equal; None if none."""
    lines = []
    styles = zip(metrics.names("lr/"), cycle(COLOURS), cycle(("-", "--", "-.", ":")), strict=False)
    for name, colour, style in styles:
        lines.append(CurveLine(metrics.series(name), name.removeprefix("lr/"), colour, style))
    return _step_figure("rates", "learning rate", lines, metrics, incidents, scale="logarithmic")


def _step_figure(
    name: str,
    label: str,
    lines: Sequence[CurveLine],
    metrics: Metrics,
    incidents: Sequence[IncidentReport],
    scale: Scale,
) -> str | None:
    """Plot lines over trained batches, with incidents; None if all lines are empty.

    Incidents are marked at their steps by their numbers.
    """
    lines = [line for line in lines if len(line.series)]
    if not lines:
        return None
    steps = metrics.columns["step"]
    figure, axes = _lines_plot(lines, "batches trained", label, float(steps.max()), scale)
    for number, incident in enumerate(incidents, 1):
        if incident.step is not None:
            axes.axvline(incident.step, color=ALARM, linewidth=1, linestyle="--")
            axes.text(incident.step, 0.98, f" {number}", transform=axes.get_xaxis_transform(), color=ALARM, va="top")
    figure.legend(loc="outside lower center", ncols=4, columnspacing=1.2, handlelength=1.6)
    return _as_svg(figure, name, f"{label} over the batches trained")


def runs_figure(name: str, xlabel: str, label: str, curves: Mapping[str, Series], scale: Scale) -> str | None:
    """Plot one curve of each of several runs, by the name of the run; None if all curves are empty."""
    lines = []
    marker = "o" if scale == "scores" else ""
    for number, (run, series) in enumerate(curves.items()):
        dashes = LINE_STYLES[number // len(COLOURS) % len(LINE_STYLES)]
        if len(series):
            lines.append(CurveLine(series, without_math(run), COLOURS[number % len(COLOURS)], f"{marker}{dashes}"))
    if not lines:
        return None
    figure, _ = _lines_plot(lines, xlabel, label, max(line.series.positions[-1] for line in lines), scale)
    longest = max(len(line.label) for line in lines)
    figure.legend(loc="outside lower center", ncols=max(1, LEGEND_CHARACTERS // longest))
    return _as_svg(figure, name, f"{label} over {xlabel}")


def _lines_plot(lines: Sequence[CurveLine], xlabel: str, label: str, end: float, scale: Scale) -> tuple[Figure, Axes]:
    """Plot lines whose positions are >= 0 and at most `end`."""
    figure, axes = _one_plot()
    for line in lines:
        _draw_line(axes, line)
    axes.set(xlabel=xlabel, ylabel=label)
    axes.set_xlim(0.0, 1.015 * max(1.0, end))  # the last marker is complete
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    _scale_vertically(axes, lines, scale)
    return figure, axes


def _scale_vertically(axes: Axes, lines: Sequence[CurveLine], scale: Scale) -> None:
    """Set the vertical axis of drawn lines."""
    values = np.concatenate([line.series.values for line in lines])
    if scale == "logarithmic" and 0 < LEAST_LOGARITHMIC * values.min() <= values.max():
        axes.set_yscale("log")
        logarithmic_ticks(axes)
    elif scale == "scores":
        show_scores(axes, values)
    else:
        plain_ticks(axes)
        axes.set_ylim(bottom=0.0)


def plain_ticks(axes: Axes) -> None:
    """Write the values at the ticks of a linear vertical axis in full, without a common factor or offset above."""
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))


def logarithmic_ticks(axes: Axes) -> None:
    """Write the values at the ticks of a logarithmic vertical axis in full: powers of 10, on short axes 1, 2 and 5."""
    low, high = axes.get_ylim()
    subs = (1.0, 2.0, 5.0) if high <= low * FINE_RATIO else (1.0,)
    axes.yaxis.set_major_locator(LogLocator(subs=subs, numticks=6))
    axes.yaxis.set_minor_locator(NullLocator())
    plain_ticks(axes)


def show_scores(axes: Axes, values: Sequence[float] | Float64Array) -> None:
    """Set a vertical axis for scores: from 0, or from below a negative balanced score, to a positive value."""
    axes.set_ylim(
        min(0.0, 1.1 * float(np.min(values))), max(0.1, 1.1 * float(np.max(values)))
    )  # scores of 0 have an axis too
    plain_ticks(axes)


def _draw_line(axes: Axes, line: CurveLine) -> None:
    """Plot a line; of more than `MAX_POINTS` points, the mean of neighbours in the band of their extremes."""
    positions = line.series.positions
    values = line.series.values
    if len(positions) > MAX_POINTS and "o" not in line.style:
        cuts = np.linspace(0, len(positions), MAX_POINTS + 1).astype(int)[:-1]
        counts = np.diff(np.append(cuts, len(positions)))
        low = np.minimum.reduceat(values, cuts)
        high = np.maximum.reduceat(values, cuts)
        positions = np.add.reduceat(positions, cuts) / counts
        values = np.add.reduceat(values, cuts) / counts
        axes.fill_between(positions, low, high, color=line.colour, alpha=0.15, linewidth=0)
    width = 0.8 if ":" in line.style else 1.4
    axes.plot(positions, values, line.style, color=line.colour, markersize=4, linewidth=width, label=line.label)


def month_figure(stage: str, months: Mapping[str, float], overall: float | None) -> str | None:
    """Plot mAP50 by month (YYYY-MM) and of all frames (`overall`); None for fewer than two months.

    Months that the challenge compares are coloured.
    """
    if len(months) < 2:
        return None
    names = sorted(months)
    figure, axes = _one_plot()
    colours = [COLOURS[0] if name in COMPARED_MONTHS else FAINT for name in names]
    rotation = 0
    bar_rotation = 0
    if len(names) > 12:
        rotation = 90
        bar_rotation = 90
    elif len(names) > 6:
        rotation = 30
    bars = axes.bar(range(len(names)), [months[name] for name in names], color=colours, width=0.7)
    axes.bar_label(
        bars, [f"{months[name]:.3f}" for name in names], fontsize=8, padding=2, color=INK, rotation=bar_rotation
    )
    if overall is not None:
        axes.axhline(overall, color=INK, linewidth=1, linestyle=":", label=f"all frames {overall:.4f}")
        figure.legend(loc="outside lower center")
    axes.set_xticks(range(len(names)), names, rotation=rotation)
    axes.set_ylabel("mAP50")
    show_scores(axes, [*months.values(), overall or 0.0])
    axes.grid(visible=False, axis="x")
    return _as_svg(figure, f"{stage}-months", "mAP at IoU 0.5 by month")


def class_curves_figure(
    stage: str, class_names: Sequence[str], curves: ThresholdCurves, scores: PartScores
) -> str | None:
    """Plot precision over recall at IoU 0.5, per annotated class and on average; None without annotated objects."""
    if not len(curves.labels):
        return None
    figure, axes = _one_plot(3.4)
    axes.set(xlim=(0, 1), ylim=(0, 1.005), xlabel="recall", ylabel="precision")
    names = [f"{without_math(class_names[label])} {scores.precision[AT_50, label]:.3f}" for label in curves.labels]
    _draw_classes(axes, curves.labels.tolist(), curves.precision_by_recall, names, width=1.6)
    mean = curves.precision_by_recall.mean(axis=0)
    axes.plot(GRID, mean, color=INK, linewidth=2.8, label=f"all {scores.map(AT_50):.3f}")
    figure.legend(loc="outside right upper", title=SCORE_LABELS["map_50"])
    return _as_svg(figure, f"{stage}-precision-recall", "precision over recall of each class at IoU 0.5")


def threshold_figure(stage: str, class_names: Sequence[str], curves: ThresholdCurves) -> str | None:
    """Plot the means of precision, recall and F1, and the F1 of each class, over the score threshold at IoU 0.5.

    The threshold with the highest mean F1 is marked. None without annotated objects.
    """
    if not len(curves.labels):
        return None
    figure, axes = _one_plot(3.4)
    axes.set(xlim=(0, 1), ylim=(0, 1.005), xlabel="score threshold", ylabel="precision, recall, F1")
    f1 = curves.f1_by_score()
    names = [f"F1 {without_math(class_names[label])}" for label in curves.labels]
    _draw_classes(axes, curves.labels.tolist(), f1, names, width=0.9)
    best = curves.best_threshold()
    axes.axvline(best, color=FAINT, linewidth=1.2, linestyle="--", label=f"best F1 at {best:.3f}")
    axes.plot(GRID, curves.precision_by_score.mean(axis=0), "--", color=INK, linewidth=1.4, label="precision")
    axes.plot(GRID, curves.recall_by_score.mean(axis=0), ":", color=INK, linewidth=1.8, label="recall")
    axes.plot(GRID, f1.mean(axis=0), color=INK, linewidth=2.8, label="F1")
    figure.legend(loc="outside right upper")
    return _as_svg(figure, f"{stage}-thresholds", "precision, recall and F1 over the score threshold")


def _draw_classes(axes: Axes, labels: Sequence[int], curves: Float64Array, names: Sequence[str], width: float) -> None:
    """Plot the curve of each class over `GRID`; with many classes, all are gray and have one name."""
    if len(labels) > MAX_NAMED_CLASSES:
        axes.plot(GRID, curves.T, color=FAINT, linewidth=0.7)
        axes.lines[0].set_label(f"{len(labels)} classes")
        return
    for label, values, name in zip(labels, curves, names, strict=True):
        style = LINE_STYLES[label // len(CLASS_COLOURS) % len(LINE_STYLES)]
        axes.plot(GRID, values, style, color=class_colour(label), linewidth=width, label=name)


def _one_plot(height_inches: float = 2.9) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH_INCHES, height_inches), layout="constrained")
    return figure, figure.subplots()


def _as_svg(figure: Figure, name: str, title: str) -> str:
    """Return an `<svg>` element with the page's colours. Its ids get the prefix `name`; screen readers read `title`."""
    file = StringIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph .* missing from font")  # the browser has fonts for all scripts
        FigureCanvasSVG(figure).print_svg(file, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    element = file.getvalue()
    element = element[element.index("<svg") :]
    element = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", element)  # HTML needs no namespaces
    element = re.sub(r'\s(width|height)="[\d.]+pt"', "", element, count=2)
    element = re.sub(r'(\sid="|href="#|url\(#)', rf"\g<1>{name}-", element)
    for colour, variable in VARIABLES.items():
        element = element.replace(colour, variable)
    return element.replace("<svg", f'<svg role="img" aria-label="{title}"', 1)
