"""Scores of a split as tables for the terminal, at most 80 characters wide for four classes."""

import math
from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from yolo_lightning.evaluation.average_precision import NO_GROUND_TRUTH, PartScores
from yolo_lightning.evaluation.drift import CHALLENGE_MONTHS, DriftScores, month_name
from yolo_lightning.evaluation.ultralytics_metrics import GRID, UltralyticsScores
from yolo_lightning.utils.plain_text import one_line


def number_table(first: str, headings: Iterable[str], caption: str | None = None, *, wraps: bool = False) -> Table:
    """Return an empty table: text in the first column, which wraps with `wraps`, and numbers in the others."""
    table = Table(
        box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False, collapse_padding=True, caption=caption, caption_justify="left"
    )
    table.add_column(first, no_wrap=not wraps)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def score_table(scores: DriftScores, class_names: Sequence[str]) -> Table:
    """Return one row for all frames and one per month, with the remaining scores below."""
    table = number_table(
        "", ("frames", "objects", "map", "map_50", *map(cell_text, class_names)), drift_summary(scores)
    )
    table.add_row("all", *cells(scores.overall))
    for month, part in scores.monthly.items():
        table.add_row(month_name(month), *cells(part))
    return table


def class_table(scores: DriftScores, ultralytics: UltralyticsScores, class_names: Sequence[str]) -> Table:
    """Return one row for all classes and one per class, with the scores of Ultralytics and COCO."""
    averages = (f"{source}\n{name}" for source in ("ultra-\nlytics", "\ncoco") for name in ("map_50", "map"))
    score_threshold = GRID[ultralytics.best_point()]
    caption = f"precision, recall and f1 at score threshold {score_threshold:.3f}, IoU 0.5"
    table = number_table("", ("objects", "precision", "recall", "f1", *averages), caption, wraps=True)
    coco, annotated = scores.overall.scalars(), scores.overall.annotated
    values = (*ultralytics.scalars().values(), coco["map_50"], coco["map"])
    table.add_row("all", f"{annotated.sum():,}", *map(score_text, values))
    for label in ultralytics.labels.tolist():
        coco = scores.overall.of_class(label)
        values = (*ultralytics.of_class(label).values(), coco["map_50"], coco["map"])
        table.add_row(cell_text(class_names[label]), f"{annotated[label]:,}", *map(score_text, values))
    return table


def cell_text(name: str) -> str:
    """Return a class name for a cell or heading, in which rich interprets text in square brackets as a style."""
    return escape(one_line(name))


def cells(part: PartScores) -> list[str]:
    """Return frames, objects, `map`, `map_50`, and `map_50` of each class."""
    scalars = part.scalars()
    per_class = (part.of_class(label)["map_50"] for label in range(len(part.observed)))
    values = map(score_text, (scalars["map"], scalars["map_50"], *per_class))
    return [f"{part.frames:,}", f"{part.annotated.sum():,}", *values]


def score_text(value: float | None) -> str:
    """Return a score with four digits, or a dash if it is None, NaN or without ground truth."""
    return "-" if value is None or math.isnan(value) or value == NO_GROUND_TRUTH else f"{value:.4f}"


def drift_summary(scores: DriftScores) -> str:
    """Return the scores without a column, and the variation over the months."""
    scalars = scores.overall.scalars()
    first = ", ".join(f"{name} {score_text(scalars[name])}" for name in ("map_75", "mar_1", "mar_10", "mar_100"))
    lines = [f"{first}; of classes map_50"]
    variation, compared = scores.variation(), len(scores.compared())
    if variation is not None:
        lines.append(f"CoV of map_50 over {compared} months {variation:.4f}, balanced {scores.balanced():.4f}")
    elif scores.monthly:
        lines.append(f"{compared} of the challenge's {len(CHALLENGE_MONTHS)} months annotated: no CoV")
    return "\n".join(lines)
