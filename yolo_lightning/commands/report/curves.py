"""Figures over steps and hours: losses, scores, learning rates, pace, and what happened when."""

from collections.abc import Sequence
from datetime import datetime

import numpy as np
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from yolo_lightning.commands.report.contents import Contents, IncidentSummary
from yolo_lightning.commands.report.metrics_curves import Metrics, Series
from yolo_lightning.commands.report.svg import FAINT, INK, PAPER, SERIES, as_svg, one_plot, page_style

MOST_POINTS = 400
"""Of one line: more cannot be seen."""

TOTAL_LOSS = "train/loss"
SHOWN_SCORES = ("map_50", "map", "balanced")
HOUR_S, MINUTE_S = 3600.0, 60.0


def loss_figure(metrics: Metrics, incidents: Sequence[IncidentSummary]) -> str | None:
    """Total and parts of training, the same parts of validation as dots; None where nothing was logged."""
    parts = [name.removeprefix("train/") for name in metrics.names("train/") if name.endswith("_loss")]
    parts = list(
        dict.fromkeys([*parts, *(n.removeprefix("val/") for n in metrics.names("val/") if n.endswith("_loss"))])
    )
    total = metrics.series(TOTAL_LOSS)
    if not len(total) and not any(
        len(metrics.series(f"{stage}/{part}")) for part in parts for stage in ("train", "val")
    ):
        return None
    with page_style():
        figure, axes = one_plot()
        draw_line(axes, total, INK, "all, training")
        for number, part in enumerate(parts):
            colour = SERIES[number % len(SERIES)]
            word = part.removesuffix("_loss")
            draw_line(axes, metrics.series(f"train/{part}"), colour, word)
            draw_dots(axes, metrics.series(f"val/{part}"), colour, f"{word}, validation")
        return finished(figure, axes, metrics, incidents, "loss", "loss")


def score_figure(metrics: Metrics, incidents: Sequence[IncidentSummary]) -> str | None:
    """Scores of every validation; None where there was none."""
    found = {name: series for name in SHOWN_SCORES if len(series := metrics.series(f"val/{name}"))}
    if not found:
        return None
    with page_style():
        figure, axes = one_plot()
        for number, (name, series) in enumerate(found.items()):
            draw_dots(axes, series, SERIES[number], name, joined=True)
        axes.set_ylim(bottom=min(0.0, *(float(series.values.min()) for series in found.values())))
        return finished(figure, axes, metrics, incidents, "scores", "validation score, 0 to 1")


def rate_figure(metrics: Metrics, incidents: Sequence[IncidentSummary]) -> str | None:
    """Learning rates of all groups; None where none was logged."""
    names = [name for name in metrics.names("lr/") if len(metrics.series(name))]
    if not names:
        return None
    with page_style():
        figure, axes = one_plot()
        styles = ("-", "--", ":", "-.")  # groups often have the same rate: lines that lie on each other must be seen
        for number, name in enumerate(names):
            draw_line(
                axes, metrics.series(name), SERIES[number % len(SERIES)], name.removeprefix("lr/"), styles[number % 4]
            )
        axes.set_yscale("log" if all((metrics.series(name).values > 0).all() for name in names) else "linear")
        return finished(figure, axes, metrics, incidents, "rates", "learning rate")


def pace_figure(metrics: Metrics, incidents: Sequence[IncidentSummary]) -> str | None:
    """Batches per second, validations left out; None for fewer than two rows."""
    pace = metrics.pace()
    if not len(pace):
        return None
    with page_style():
        figure, axes = one_plot()
        draw_line(axes, pace, SERIES[0], "batches per second")
        median = float(np.median(pace.values))
        axes.axhline(median, color=INK, linewidth=0.8, linestyle=":", label=f"median {median:.3g}")
        axes.set_ylim(bottom=0)
        return finished(figure, axes, metrics, incidents, "pace", "batches / s")


def draw_line(axes: Axes, series: Series, colour: str, label: str, style: str = "-") -> None:
    """A line; of many points the mean of neighbours, in the band between the least and the largest of them."""
    if not len(series):
        return
    if len(series) <= MOST_POINTS:
        axes.plot(series.steps, series.values, style, color=colour, linewidth=1.4, label=label)
        return
    cuts = np.linspace(0, len(series), MOST_POINTS + 1).astype(int)[:-1]
    counts = np.diff(np.append(cuts, len(series)))
    steps = np.add.reduceat(series.steps, cuts) / counts
    axes.plot(steps, np.add.reduceat(series.values, cuts) / counts, style, color=colour, linewidth=1.4, label=label)
    low, high = np.minimum.reduceat(series.values, cuts), np.maximum.reduceat(series.values, cuts)
    axes.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)


def draw_dots(axes: Axes, series: Series, colour: str, label: str, *, joined: bool = False) -> None:
    """A dot per value, with a line between them where `joined`."""
    if len(series):
        style = "o-" if joined else "o--"
        axes.plot(
            series.steps,
            series.values,
            style,
            color=colour,
            markersize=4,
            linewidth=1.4 if joined else 0.6,
            label=label,
        )


def finished(
    figure: Figure, axes: Axes, metrics: Metrics, incidents: Sequence[IncidentSummary], name: str, label: str
) -> str:
    """Put labels, hours and incidents to a figure, and make it text."""
    axes.set_xlabel("batches trained")
    axes.set_ylabel(label)
    steps = metrics.columns["step"]
    last = max(1.0, float(steps.max()))
    axes.set_xlim(min(0.0, float(steps.min())), 1.015 * last)  # the last dot is seen whole
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    mark_incidents(axes, incidents)
    add_hours(axes, metrics)
    figure.legend(loc="outside lower center", ncols=4, columnspacing=1.2, handlelength=1.6)
    return as_svg(figure, name, f"{label} over the batches trained")


def mark_incidents(axes: Axes, incidents: Sequence[IncidentSummary]) -> None:
    """A numbered line at the step of each incident that names one."""
    for number, incident in enumerate(incidents, 1):
        if incident.step is not None:
            axes.axvline(incident.step, color=SERIES[3], linewidth=1, linestyle="--")
            axes.annotate(
                str(number), (incident.step, 1), xycoords=("data", "axes fraction"), xytext=(3, -9),
                textcoords="offset points", color=SERIES[3], fontsize=9,
            )  # fmt: skip


def add_hours(axes: Axes, metrics: Metrics) -> None:
    """The time trained at the upper edge; it runs unevenly, as validations take time and no step."""
    steps, times_s = metrics.columns["step"], metrics.columns["time_s"]
    unit_s, unit = (HOUR_S, "hours") if times_s.max() >= 2 * HOUR_S else (MINUTE_S, "minutes")
    times = np.maximum.accumulate(times_s) / unit_s
    marks = [mark for mark in MaxNLocator(6).tick_values(0, float(times[-1])) if times[0] <= mark <= times[-1]]
    top = axes.twiny()
    top.set_xlim(axes.get_xlim())
    top.set_xticks(np.interp(marks, times, steps), [f"{mark:g}" for mark in marks])
    top.set_xlabel(f"{unit} trained", fontsize=9)
    top.spines["top"].set_visible(True)
    top.grid(visible=False)


def timeline_figure(contents: Contents) -> str | None:
    """Starts, incidents, checkpoints and the last sign of life by the clock; None where none of them is known."""
    checkpoints = [contents.read_s - one.age_s for one in contents.checkpoints]
    numbered = [(number, one.time_s) for number, one in enumerate(contents.incidents, 1) if one.time_s is not None]
    rows = [
        ("last sign", [contents.last_sign_s] if contents.last_sign_s is not None else [], "s", INK),
        ("checkpoints", checkpoints, "o", SERIES[2]),
        ("incidents", [time_s for _, time_s in numbered], "X", SERIES[3]),
        ("starts", list(contents.starts_s), ">", SERIES[0]),
    ]
    rows = [row for row in rows if row[1]]
    if not rows:
        return None
    with page_style():
        figure, axes = one_plot(0.8 + 0.3 * len(rows))
        for height, (_, times_s, marker, colour) in enumerate(rows):
            moments = [date2num(datetime.fromtimestamp(time_s)) for time_s in times_s]
            axes.plot(moments, [height] * len(moments), marker, color=colour, markersize=8, markeredgecolor=PAPER)
        height = next((at for at, row in enumerate(rows) if row[0] == "incidents"), 0)
        for number, time_s in numbered:
            place = (date2num(datetime.fromtimestamp(time_s)), height)
            axes.annotate(str(number), place, xytext=(6, 3), textcoords="offset points", fontsize=9, color=SERIES[3])
        axes.set_yticks(range(len(rows)), [row[0] for row in rows])
        axes.set_ylim(-0.6, len(rows) - 0.4)
        axes.margins(x=0.04)
        locator = AutoDateLocator(minticks=3, maxticks=7)
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
        axes.spines["left"].set_color(FAINT)
        return as_svg(figure, "timeline", "what happened when, by the clock")
