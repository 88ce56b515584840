"""Frames, clips, boxes and temperature of a split by month, as a table."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rich import box
from rich.table import Table

from yolo_lightning.data.formats.ltdv2 import CLASS_NAMES
from yolo_lightning.data.index.split_index import SplitIndex

MOST_CLASS_COLUMNS = 8
"""With more classes, boxes are counted by class and not by class and month."""

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
    count, classes = len(months), len(index.facts.class_names)
    boxes_per_frame = np.diff(index.box_offsets())
    boxes = np.bincount(np.repeat(row, boxes_per_frame) * classes + index.all_labels(), minlength=count * classes)
    clips = np.unique(np.stack((row, index.clips())), axis=1)
    temperature = index.temperatures().astype(np.float64)
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
        class_names=index.facts.class_names,
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
    known = ~np.isnan(counts.temperature)
    result = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        show_footer=True,
        padding=0,
        caption="empty: frames without boxes" + ("; °C: mean air temperature" if known.any() else ""),
        caption_justify="left",
    )
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
    if known.any():
        mean = np.average(counts.temperature[known], weights=counts.frames[known])
        result.add_column("°C", f"{mean:.1f}", justify="right", no_wrap=True, min_width=5)
    for row, month in enumerate(counts.months.tolist()):
        cells = [f"{values[row]:,}" for values in columns]
        degrees = f"{counts.temperature[row]:.1f}" if known[row] else ""
        result.add_row(month_name(month), *cells, *([degrees] if known.any() else []))
    return result


def month_name(month: int) -> str:
    return f"{month // 100}-{month % 100:02d}" if month else "unknown"
