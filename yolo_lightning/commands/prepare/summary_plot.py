"""The picture of what a split holds, month by month."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from yolo_lightning.commands.prepare.summary import MonthlyCounts, month_name
from yolo_lightning.data.formats.ltdv2 import CLASS_NAMES
from yolo_lightning.utils.files import replacing

COLOURS = ("#2a6f97", "#e9a03b", "#c1443c", "#5b8c5a")
"""One per class."""
FRAMES_COLOUR, EMPTY_COLOUR, TEMPERATURE_COLOUR = "#6c757d", "#d3d7da", "#333333"

MONTH_WIDTH_INCHES, LEAST_WIDTH_INCHES = 0.95, 6.5
FRAMES_HEIGHT_INCHES, BOXES_HEIGHT_INCHES, TEMPERATURE_HEIGHT_INCHES = 2.5, 3.3, 1.8
DOTS_PER_INCH = 120


def save_picture(counts: MonthlyCounts, path: Path) -> None:
    """Draw frames, boxes per class and mean temperature of each month; what is not known at all is left out.

    Args:
        counts: What to draw.
        path: PNG file to write; its folder is made.

    Raises:
        OSError: If it cannot be written.
    """
    panels = [(draw_frames, FRAMES_HEIGHT_INCHES)]
    if counts.boxes.any():
        panels.append((draw_boxes, BOXES_HEIGHT_INCHES))
    if not np.isnan(counts.temperature).all():
        panels.append((draw_temperature, TEMPERATURE_HEIGHT_INCHES))
    heights = [height for _, height in panels]
    width = max(LEAST_WIDTH_INCHES, 2 + MONTH_WIDTH_INCHES * len(counts.months))
    figure = Figure(figsize=(width, sum(heights)), dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axis, (draw, _) in zip(axes, panels, strict=True):
        draw(axis, counts)
        axis.grid(axis="y", linewidth=0.5, color="#e3e3e3")
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1].set_xticks(range(len(counts.months)), [month_name(month) for month in counts.months.tolist()])
    axes[-1].set_xlim(-0.6, len(counts.months) - 0.4)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png")


def draw_frames(axis: Axes, counts: MonthlyCounts) -> None:
    """Bars of frames, those without boxes set apart."""
    months = np.arange(len(counts.months))
    filled = counts.frames - counts.empty_frames
    axis.bar(months, filled, 0.62, color=FRAMES_COLOUR, label="with boxes")
    axis.bar(months, counts.empty_frames, 0.62, bottom=filled, color=EMPTY_COLOUR, label="without boxes")
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    title = f"{counts.frames.sum():,} frames in {counts.clips.sum():,} clips" + (
        "" if counts.boxes.any() else ", no boxes"
    )
    axis.set_title(title, loc="left", fontsize=10)
    axis.set_ylabel("frames")
    axis.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False, fontsize=8, borderpad=0)


def draw_boxes(axis: Axes, counts: MonthlyCounts) -> None:
    """Bars of boxes per class; logarithmic, because the rarest class has a 200th of the boxes of the most frequent."""
    months = np.arange(len(counts.months))
    bar = 0.8 / len(CLASS_NAMES)
    for label, name in enumerate(CLASS_NAMES):
        places = months + (label - (len(CLASS_NAMES) - 1) / 2) * bar
        axis.bar(places, counts.boxes[:, label], bar * 0.92, color=COLOURS[label], label=name)
    axis.set_yscale("log")
    axis.set_ylim(bottom=0.8)
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axis.set_title(f"{counts.boxes.sum():,} boxes", loc="left", fontsize=10)
    axis.set_ylabel("boxes, log scale")
    axis.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=4, frameon=False, fontsize=8, borderpad=0)


def draw_temperature(axis: Axes, counts: MonthlyCounts) -> None:
    """Points of the mean temperature, where it is known."""
    months = np.arange(len(counts.months))
    known = ~np.isnan(counts.temperature)
    axis.plot(months[known], counts.temperature[known], "o", color=TEMPERATURE_COLOUR, markersize=5)
    axis.set_ylabel("°C")
    axis.set_title("mean air temperature", loc="left", fontsize=10)
    axis.margins(y=0.25)
