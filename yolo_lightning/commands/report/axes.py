"""Limits and ticks of the axes of the report's figures."""

from collections.abc import Sequence
from datetime import datetime

import numpy as np
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

from yolo_lightning.commands.report.metrics_curves import Floats

FINE_RATIO = 300.0  # of the ends of a logarithmic axis, up to which it has ticks at 1, 2 and 5 times the powers of 10


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


def show_scores(axes: Axes, values: Sequence[float] | Floats) -> None:
    """Set a vertical axis for scores: from 0, or from below a negative balanced score, to a positive value."""
    lowest, highest = float(np.min(values)), float(np.max(values))
    axes.set_ylim(min(0.0, 1.1 * lowest), max(0.1, 1.1 * highest))  # scores of 0 have an axis too
    plain_ticks(axes)


def show_clock(axes: Axes, times_s: Sequence[float]) -> None:
    """Set a horizontal axis of dates: times or dates at the ticks, the days below the axis.

    Args:
        axes: Axes whose horizontal coordinates are matplotlib's dates in local time.
        times_s: All times shown, seconds since 1970.
    """
    first_s, last_s = min(times_s), max(times_s)
    margin_s = max(30.0, 0.04 * (last_s - first_s))
    edges = (datetime.fromtimestamp(time_s) for time_s in (first_s - margin_s, last_s + margin_s))
    axes.set_xlim(*(float(date2num(edge)) for edge in edges))
    locator = AutoDateLocator(minticks=3, maxticks=7)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, show_offset=False))
    days = (f"{datetime.fromtimestamp(time_s):%Y-%m-%d}" for time_s in (first_s, last_s))
    axes.set_xlabel(" to ".join(dict.fromkeys(days)))
