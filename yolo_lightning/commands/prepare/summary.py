"""What a split holds, month by month: counted from its index and laid out as a table."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rich import box
from rich.table import Table

from yolo_lightning.data.formats.ltdv2 import CLASS_NAMES
from yolo_lightning.data.formats.recording import TEMPERATURE
from yolo_lightning.data.index.annotation_index import SplitIndex

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class MonthlyCounts:
    """A split, counted by month; row `k` of each array is `months[k]`.

    Attributes:
        months: `(K,)` int64, YYYYMM, ascending; 0 holds the frames whose month is unknown.
        frames: `(K,)` int64.
        empty_frames: `(K,)` int64, frames without boxes.
        clips: `(K,)` int64.
        boxes: `(K, 4)` int64, by class index.
        temperature: `(K,)` float64, mean over the frames that have one, degrees Celsius; NaN where none has.
    """

    months: Counts
    frames: Counts
    empty_frames: Counts
    clips: Counts
    boxes: Counts
    temperature: npt.NDArray[np.float64]


def monthly_counts(index: SplitIndex) -> MonthlyCounts:
    """Count a split by month."""
    months, row = np.unique(index.months(), return_inverse=True)
    boxes_per_frame = np.diff(index.box_offsets())
    classes = len(CLASS_NAMES)
    boxes = np.bincount(np.repeat(row, boxes_per_frame) * classes + index.all_labels(), minlength=len(months) * classes)
    clips = np.unique(np.stack((row, index.clips())), axis=1)
    temperature = index.weather()[TEMPERATURE].astype(np.float64)
    known = ~np.isnan(temperature)
    with np.errstate(invalid="ignore"):  # 0 / 0 is the NaN that is wanted
        mean = by_row(row[known], len(months), temperature[known]) / by_row(row[known], len(months))
    return MonthlyCounts(
        months=months.astype(np.int64),
        frames=np.bincount(row, minlength=len(months)),
        empty_frames=np.bincount(row[boxes_per_frame == 0], minlength=len(months)),
        clips=np.bincount(clips[0], minlength=len(months)),
        boxes=boxes.reshape(-1, classes),
        temperature=mean,
    )


def by_row(
    rows: npt.NDArray[np.integer], count: int, weights: npt.NDArray[np.float64] | None = None
) -> npt.NDArray[np.float64]:
    """`(count,)` sum of the weights, or of ones, in each row."""
    return np.bincount(rows, weights=weights, minlength=count).astype(np.float64)


def table(counts: MonthlyCounts) -> Table:
    """The counts with a line of totals; fits a terminal of 80 columns at the size of LTDv2."""
    result = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        show_footer=True,
        padding=0,
        caption="empty: frames without boxes; °C: mean air temperature",
        caption_justify="left",
    )
    totals = (counts.frames, counts.empty_frames, counts.clips, counts.boxes, *counts.boxes.T)
    result.add_column("month", "total", no_wrap=True)
    for name, values in zip(("frames", "empty", "clips", "boxes", *CLASS_NAMES), totals, strict=True):
        header = name.replace("motorcycle", "motor-\ncycle")
        result.add_column(header, f"{values.sum():,}", justify="right", no_wrap=True)
    result.add_column("°C", degrees(mean_temperature(counts)), justify="right", no_wrap=True, min_width=5)
    for row, month in enumerate(counts.months.tolist()):
        whole = (counts.frames[row], counts.empty_frames[row], counts.clips[row], counts.boxes[row].sum())
        cells = [f"{number:,}" for number in (*whole, *counts.boxes[row])]
        result.add_row(month_name(month), *cells, degrees(float(counts.temperature[row])))
    return result


def mean_temperature(counts: MonthlyCounts) -> float:
    """Mean over the months that have a temperature, weighted by their frames, degrees Celsius; NaN if none has."""
    known = ~np.isnan(counts.temperature)
    return float(np.average(counts.temperature[known], weights=counts.frames[known])) if known.any() else float("nan")


def month_name(month: int) -> str:
    """`YYYY-MM` of a month as YYYYMM; 0 is unknown."""
    return f"{month // 100}-{month % 100:02d}" if month else "unknown"


def degrees(temperature: float) -> str:
    """A temperature to a tenth of a degree; nothing where it is unknown."""
    return "" if np.isnan(temperature) else f"{temperature:.1f}"
