"""Limits and ticks of the axes of the report's figures."""

from collections.abc import Sequence
from datetime import datetime

import numpy as np
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, DateFormatter, date2num
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

from yolo_lightning.commands.report.metrics_curves import Floats

LOWEST_SCORE_TOP = 0.1  # scores of 0 have an axis too
OUTLIER_SHARE = 0.02  # share of a curve's points, but at least one, that may lie outside the axis
LEAST_POINTS = 3  # curves with fewer points have no outliers
MOST_FLATTENED = 1 / 3  # share of the axis that the other points may be squeezed into by outliers

MOST_POWERS = 6  # ticks of a logarithmic axis at powers of 10
FINE_RATIO = 300.0  # of the ends of a logarithmic axis, up to which it has ticks at 1, 2 and 5 times the powers of 10
DAY_S = 86400.0
TICK_FORMS = ((6 * DAY_S, "%m-%d"), (DAY_S, "%m-%d\n%H:%M"), (300.0, "%H:%M"), (0.0, "%H:%M:%S"))
"""Shortest timeline of each form of ticks in seconds, and the form."""


def plain_ticks(axes: Axes) -> None:
    """Write the values at the ticks of a linear vertical axis in full, without a common factor or offset above."""
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))


def logarithmic_ticks(axes: Axes) -> None:
    """Write the values at the ticks of a logarithmic vertical axis in full: powers of 10, on short axes 1, 2 and 5."""
    low, high = axes.get_ylim()
    subs = (1.0, 2.0, 5.0) if high <= low * FINE_RATIO else (1.0,)
    axes.yaxis.set_major_locator(LogLocator(subs=subs, numticks=MOST_POWERS))
    axes.yaxis.set_minor_locator(NullLocator())
    plain_ticks(axes)


def show_scores(axes: Axes, values: Sequence[float] | Floats) -> None:
    """Set a vertical axis for scores: from 0, or from below a negative balanced score, to a positive value."""
    lowest, highest = float(np.min(values)), float(np.max(values))
    axes.set_ylim(min(0.0, 1.1 * lowest), max(LOWEST_SCORE_TOP, 1.1 * highest))
    plain_ticks(axes)


def robust_top(curves: Sequence[Floats]) -> float | None:
    """Return the upper limit of an axis that leaves outliers of curves out; None if no outlier flattens the curves.

    Args:
        curves: Values of each curve, `(N,)`, finite.
    """
    usual = []
    for values in curves:
        allowed = max(1, int(OUTLIER_SHARE * len(values))) if len(values) >= LEAST_POINTS else 0
        usual.append(float(np.sort(values)[-1 - allowed]))
    lowest, highest = (float(pick([pick(values) for values in curves])) for pick in (min, max))
    span = max(usual) - lowest
    if span >= MOST_FLATTENED * (highest - lowest):
        return None
    # the margin contains the points slightly above the usual ones, for example at the start of a falling loss
    return max(usual) + 0.5 * span


def mark_outliers(axes: Axes, steps: Floats, values: Floats, colour: str) -> None:
    """Draw triangles at the upper edge of the axes above points that lie outside."""
    width = axes.get_xlim()[1] - axes.get_xlim()[0]
    is_outside = values > axes.get_ylim()[1]
    # at most one hundred triangles, because a curve may have any number of points
    if not is_outside.any():
        return  # an empty line that is not clipped would take part in the layout, at the corner of the figure
    places = np.unique((steps[is_outside] / width * 100).round()) * width / 100
    edge = axes.get_xaxis_transform()
    axes.plot(places, np.ones(len(places)), "^", color=colour, markersize=6, transform=edge, clip_on=False)


def show_clock(axes: Axes, times_s: Sequence[float]) -> None:
    """Set a horizontal axis of dates: clock times at the ticks, the days below the axis.

    Args:
        axes: Axes whose horizontal coordinates are matplotlib's dates in local time.
        times_s: All times shown, seconds since 1970.
    """
    first_s, last_s = min(times_s), max(times_s)
    span_s = last_s - first_s
    margin_s = max(30.0, 0.04 * span_s)
    edges = (datetime.fromtimestamp(time_s) for time_s in (first_s - margin_s, last_s + margin_s))
    axes.set_xlim(*(float(date2num(edge)) for edge in edges))
    axes.xaxis.set_major_locator(AutoDateLocator(minticks=3, maxticks=7))
    form = next(form for from_s, form in TICK_FORMS if span_s >= from_s)
    axes.xaxis.set_major_formatter(DateFormatter(form))
    days = (f"{datetime.fromtimestamp(time_s):%Y-%m-%d}" for time_s in (first_s, last_s))
    axes.set_xlabel(" to ".join(dict.fromkeys(days)))
