"""Frames, clips, boxes and temperature of a split by month, as a table and as a picture."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter
from rich import box
from rich.table import Table

from yolo_lightning.data.formats.annotations import TEMPERATURE
from yolo_lightning.data.formats.ltdv2 import CLASS_NAMES
from yolo_lightning.data.index.split_index import SplitIndex
from yolo_lightning.evaluation.class_colours import class_colour
from yolo_lightning.utils.files import replacing

FRAMES_COLOUR, EMPTY_COLOUR, TEMPERATURE_COLOUR = "#6c757d", "#d3d7da", "#333333"

MOST_CLASS_COLUMNS = 8
"""With more classes, boxes are counted by class and not by class and month."""
MOST_CLASS_BARS = 40

MONTH_WIDTH_INCHES, LEAST_WIDTH_INCHES = 0.95, 6.5
FRAMES_HEIGHT_INCHES, BOXES_HEIGHT_INCHES, TEMPERATURE_HEIGHT_INCHES = 2.5, 3.3, 1.8
DOTS_PER_INCH = 120

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class MonthlyCounts:
    """Counts of a split by month; row `k` of each array belongs to `months[k]`."""

    months: Counts  # `(K,)` int64, YYYYMM, ascending; 0 is an unknown month
    frames: Counts  # `(K,)` int64
    empty_frames: Counts  # `(K,)` int64, frames without boxes
    clips: Counts  # `(K,)` int64
    boxes: Counts  # `(K, C)` int64, by class index
    # `(K,)` float64, mean over the frames with a temperature, degrees Celsius; NaN if unknown
    temperature: npt.NDArray[np.float64]
    class_names: Sequence[str] = CLASS_NAMES  # C names


def monthly_counts(index: SplitIndex) -> MonthlyCounts:
    months, row = np.unique(index.months(), return_inverse=True)
    count, classes = len(months), len(index.class_names)
    boxes_per_frame = np.diff(index.box_offsets())
    boxes = np.bincount(np.repeat(row, boxes_per_frame) * classes + index.all_labels(), minlength=count * classes)
    clips = np.unique(np.stack((row, index.clips())), axis=1)
    temperature = index.weather()[TEMPERATURE].astype(np.float64)
    known = ~np.isnan(temperature)
    with np.errstate(invalid="ignore"):  # 0 / 0 is NaN: unknown
        mean = np.bincount(row[known], temperature[known], count) / np.bincount(row[known], minlength=count)
    return MonthlyCounts(
        months=months.astype(np.int64),
        frames=np.bincount(row, minlength=count),
        empty_frames=np.bincount(row[boxes_per_frame == 0], minlength=count),
        clips=np.bincount(clips[0], minlength=count),
        boxes=boxes.reshape(-1, classes),
        temperature=mean,
        class_names=index.class_names,
    )


def tables(counts: MonthlyCounts) -> list[Table]:
    """Return the counts by month and, if there are many classes, by class."""
    return [table(counts)] + ([] if len(counts.class_names) <= MOST_CLASS_COLUMNS else [_class_counts_table(counts)])


def _class_counts_table(counts: MonthlyCounts) -> Table:
    """Return the boxes of each class and their share, the most frequent class first."""
    result = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0)
    result.add_column("class")
    for header in ("boxes", "share"):
        result.add_column(header, justify="right", no_wrap=True)
    boxes = counts.boxes.sum(axis=0)
    for label in np.argsort(-boxes, kind="stable").tolist():
        share = boxes[label] / max(1, boxes.sum())
        result.add_row(counts.class_names[label], f"{boxes[label]:,}", f"{share:.2%}")
    return result


def table(counts: MonthlyCounts) -> Table:
    """Return the counts with a line of totals; fits into a terminal of 80 columns at the size of LTDv2."""
    result = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        show_footer=True,
        padding=0,
        caption="empty: frames without boxes; °C: mean air temperature",
        caption_justify="left",
    )
    known = ~np.isnan(counts.temperature)
    mean = np.average(counts.temperature[known], weights=counts.frames[known]) if known.any() else np.nan
    few = len(counts.class_names) <= MOST_CLASS_COLUMNS
    names = counts.class_names if few else ()
    columns = (
        counts.frames,
        counts.empty_frames,
        counts.clips,
        counts.boxes.sum(axis=1),
        *counts.boxes.T[: len(names)],
    )
    result.add_column("month", "total", no_wrap=True)
    for name, values in zip(("frames", "empty", "clips", "boxes", *names), columns, strict=True):
        header = name.replace("motorcycle", "motor-\ncycle")
        result.add_column(header, f"{values.sum():,}", justify="right", no_wrap=True)
    result.add_column("°C", degrees(mean), justify="right", no_wrap=True, min_width=5)
    for row, month in enumerate(counts.months.tolist()):
        cells = [f"{values[row]:,}" for values in columns]
        result.add_row(month_name(month), *cells, degrees(counts.temperature[row]))
    return result


def month_name(month: int) -> str:
    return f"{month // 100}-{month % 100:02d}" if month else "unknown"


def degrees(temperature: float) -> str:
    return "" if np.isnan(temperature) else f"{temperature:.1f}"


def save_picture(counts: MonthlyCounts, path: Path) -> None:
    """Draw frames, boxes per class and mean temperature of each month, if known, into a PNG file.

    With many classes, the boxes of the most frequent ones are drawn instead.
    """
    if len(counts.class_names) > MOST_CLASS_COLUMNS:
        _save_class_picture(counts, path)
        return
    panels = [(draw_frames, FRAMES_HEIGHT_INCHES)]
    if counts.boxes.any():
        panels.append((_draw_boxes, BOXES_HEIGHT_INCHES))
    if not np.isnan(counts.temperature).all():
        panels.append((_draw_temperature, TEMPERATURE_HEIGHT_INCHES))
    heights = [height for _, height in panels]
    width = max(LEAST_WIDTH_INCHES, 2 + MONTH_WIDTH_INCHES * len(counts.months))
    figure = Figure(figsize=(width, sum(heights)), dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axis, (draw, _) in zip(axes, panels, strict=True):
        draw(axis, counts, np.arange(len(counts.months)))
        axis.grid(axis="y", linewidth=0.5, color="#e3e3e3")
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1].set_xticks(range(len(counts.months)), [month_name(month) for month in counts.months.tolist()])
    axes[-1].set_xlim(-0.6, len(counts.months) - 0.4)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png")


def _save_class_picture(counts: MonthlyCounts, path: Path) -> None:
    """Draw the boxes of the most frequent classes as bars on a log scale."""
    boxes = counts.boxes.sum(axis=0)
    chosen = np.argsort(-boxes, kind="stable")[:MOST_CLASS_BARS]
    figure = Figure(figsize=(LEAST_WIDTH_INCHES, 1.2 + 0.2 * len(chosen)), dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.add_subplot()
    axis.barh(
        [counts.class_names[label] for label in chosen.tolist()],
        boxes[chosen],
        0.7,
        color=[class_colour(label) for label in chosen.tolist()],
    )
    axis.invert_yaxis()
    axis.set_xscale("log")
    axis.set_xlim(left=0.8)
    axis.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axis.tick_params(axis="y", labelsize=7)
    axis.spines[["top", "right"]].set_visible(False)
    shown = "" if len(chosen) == len(boxes) else f", the {len(chosen)} most frequent of {len(boxes)} classes"
    axis.set_title(f"{boxes.sum():,} boxes in {counts.frames.sum():,} frames{shown}", loc="left", fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png")


def draw_frames(axis: Axes, counts: MonthlyCounts, places: Counts) -> None:
    filled = counts.frames - counts.empty_frames
    axis.bar(places, filled, 0.62, color=FRAMES_COLOUR, label="with boxes")
    axis.bar(places, counts.empty_frames, 0.62, bottom=filled, color=EMPTY_COLOUR, label="without boxes")
    boxes = "" if counts.boxes.any() else ", no boxes"
    finish(axis, f"{counts.frames.sum():,} frames in {counts.clips.sum():,} clips{boxes}", "frames")


def _draw_boxes(axis: Axes, counts: MonthlyCounts, places: Counts) -> None:
    """Draw bars per class on a log scale: the rarest class has a 200th of the boxes of the most frequent class."""
    bar = 0.8 / len(counts.class_names)
    for label, name in enumerate(counts.class_names):
        shifted = places + (label - (len(counts.class_names) - 1) / 2) * bar
        axis.bar(shifted, counts.boxes[:, label], bar * 0.92, color=class_colour(label), label=name)
    axis.set_yscale("log")
    axis.set_ylim(bottom=0.8)
    finish(axis, f"{counts.boxes.sum():,} boxes", "boxes, log scale")


def _draw_temperature(axis: Axes, counts: MonthlyCounts, places: Counts) -> None:
    known = ~np.isnan(counts.temperature)
    axis.plot(places[known], counts.temperature[known], "o", color=TEMPERATURE_COLOUR, markersize=5)
    axis.set_ylabel("°C")
    axis.set_title("mean air temperature", loc="left", fontsize=10)
    axis.margins(y=0.25)


def finish(axis: Axes, title: str, label: str) -> None:
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axis.set_title(title, loc="left", fontsize=10)
    axis.set_ylabel(label)
    axis.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=4, frameon=False, fontsize=8, borderpad=0)
