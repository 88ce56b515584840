"""Frames, clips, boxes and temperature of a split by month, as a table."""

import numpy as np
import numpy.typing as npt
from rich import box
from rich.table import Table

from yolo_lightning.data.index.split_index import SplitIndex

MOST_CLASS_COLUMNS = 8
"""With more classes, boxes are counted by class and not by class and month."""

Counts = npt.NDArray[np.int64]


def tables(index: SplitIndex) -> list[Table]:
    """Return the counts of a split by month and, if there are many classes, by class."""
    months, counts, temperature = monthly_counts(index)
    if len(index.facts.class_names) <= MOST_CLASS_COLUMNS:
        return [month_table(months, counts, temperature)]
    of_classes = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0)
    for header in ("class", "boxes", "share"):
        of_classes.add_column(header, justify="left" if header == "class" else "right", no_wrap=header != "class")
    boxes = np.bincount(index.all_labels(), minlength=len(index.facts.class_names))
    for label in np.argsort(-boxes, kind="stable").tolist():
        of_classes.add_row(
            index.facts.class_names[label], f"{boxes[label]:,}", f"{boxes[label] / max(1, boxes.sum()):.2%}"
        )
    return [month_table(months, counts[:4], temperature), of_classes]


def monthly_counts(index: SplitIndex) -> tuple[Counts, list[tuple[str, Counts]], npt.NDArray[np.float64]]:
    """Return the counts of a split by month.

    Returns:
        The months `(K,)` as YYYYMM, ascending, 0 if unknown; the columns of the table, each a heading and the numbers
        `(K,)` of frames, frames without boxes, clips, boxes or boxes of a class; the mean temperature `(K,)` of the
        frames that have one, degrees Celsius, NaN if unknown.
    """
    months, row = np.unique(index.months(), return_inverse=True)
    count, classes = len(months), len(index.facts.class_names)
    boxes_per_frame = np.diff(index.box_offsets())
    boxes = np.bincount(np.repeat(row, boxes_per_frame) * classes + index.all_labels(), minlength=count * classes)
    by_class = boxes.reshape(-1, classes).T
    clips = np.unique(np.stack((row, index.clips())), axis=1)
    temperature = index.temperatures().astype(np.float64)
    known = ~np.isnan(temperature)
    with np.errstate(invalid="ignore"):  # 0 / 0 is NaN: unknown
        mean = np.bincount(row[known], temperature[known], count) / np.bincount(row[known], minlength=count)
    counts = [
        ("frames", np.bincount(row, minlength=count)),
        ("empty", np.bincount(row[boxes_per_frame == 0], minlength=count)),
        ("clips", np.bincount(clips[0], minlength=count)),
        ("boxes", by_class.sum(axis=0)),
        *zip(index.facts.class_names, by_class, strict=True),
    ]
    return months.astype(np.int64), counts, mean


def month_table(months: Counts, counts: list[tuple[str, Counts]], temperature: npt.NDArray[np.float64]) -> Table:
    """Return the counts with a line of totals; fits into a terminal of 80 columns at the size of LTDv2."""
    known = ~np.isnan(temperature)
    result = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        show_footer=True,
        padding=0,
        caption="empty: frames without boxes" + ("; °C: mean air temperature" if known.any() else ""),
        caption_justify="left",
    )
    result.add_column("month", "total", no_wrap=True)
    for name, values in counts:
        header = name.replace("motorcycle", "motor-\ncycle")
        result.add_column(header, f"{values.sum():,}", justify="right", no_wrap=True)
    if known.any():
        mean = np.average(temperature[known], weights=counts[0][1][known])
        result.add_column("°C", f"{mean:.1f}", justify="right", no_wrap=True, min_width=5)
    for row, month in enumerate(months.tolist()):
        cells = [f"{values[row]:,}" for _, values in counts]
        degrees = f"{temperature[row]:.1f}" if known[row] else ""
        result.add_row(month_name(month), *cells, *([degrees] if known.any() else []))
    return result


def month_name(month: int) -> str:
    return f"{month // 100}-{month % 100:02d}" if month else "unknown"
