"""The scores of a split as a table for people, at most 80 characters wide for four classes."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table

from yolo_lightning.evaluation.average_precision import NO_GROUND_TRUTH, PartScores
from yolo_lightning.evaluation.drift import CHALLENGE_MONTHS, DriftScores, month_name
from yolo_lightning.evaluation.ultralytics_metrics import GRID, UltralyticsScores


def score_table(scores: DriftScores, class_names: Sequence[str]) -> Table:
    """One row for all frames and one per month; below it what does not fit into columns."""
    table = Table(
        box=SIMPLE_HEAD,
        padding=(0, 1),
        pad_edge=False,
        collapse_padding=True,
        caption=summary(scores),
        caption_justify="left",
    )
    table.add_column("", no_wrap=True)
    for name in ("frames", "objects", "map", "map_50", *class_names):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_row("all", *cells(scores.overall))
    for month, part in scores.monthly.items():
        table.add_row(month_name(month), *cells(part))
    return table


def class_table(scores: DriftScores, ultralytics: UltralyticsScores, class_names: Sequence[str]) -> Table:
    """One row for all classes and one per class: Ultralytics' numbers beside COCO's, each under its own name."""
    score_threshold = GRID[ultralytics.best_point()]
    table = Table(
        box=SIMPLE_HEAD,
        padding=(0, 1),
        pad_edge=False,
        collapse_padding=True,
        caption=f"precision, recall and f1 at confidence {score_threshold:.3f}, IoU 0.5",
        caption_justify="left",
    )
    table.add_column("")  # a long name takes a second line, a number never
    precision_and_such = ("precision", "recall", "f1")
    averages = (f"{source}\n{name}" for source in ("ultra-\nlytics", "\ncoco") for name in ("map_50", "map"))
    for name in ("objects", *precision_and_such, *averages):
        table.add_column(name, justify="right", no_wrap=True)
    coco = scores.overall.scalars()
    table.add_row(
        "all",
        f"{scores.overall.annotated.sum():,}",
        *map(shown, (*ultralytics.scalars().values(), coco["map_50"], coco["map"])),
    )
    for label in ultralytics.labels.tolist():
        of_class = scores.overall.of_class(label)
        values = (*ultralytics.of_class(label).values(), of_class["map_50"], of_class["map"])
        table.add_row(class_names[label], f"{scores.overall.annotated[label]:,}", *map(shown, values))
    return table


def cells(part: PartScores) -> list[str]:
    """Frames, objects, `map`, `map_50`, and `map_50` of each class."""
    scalars = part.scalars()
    per_class = (part.of_class(label)["map_50"] for label in range(len(part.observed)))
    return [
        f"{part.frames:,}",
        f"{part.annotated.sum():,}",
        *map(shown, (scalars["map"], scalars["map_50"], *per_class)),
    ]


def shown(value: float) -> str:
    """A score to four digits, or a dash where nothing was annotated."""
    return "-" if value == NO_GROUND_TRUTH else f"{value:.4f}"


def summary(scores: DriftScores) -> str:
    """The scalars without a column, and how the months vary."""
    scalars = scores.overall.scalars()
    first = ", ".join(f"{name} {shown(scalars[name])}" for name in ("map_75", "mar_1", "mar_10", "mar_100"))
    lines = [f"{first}; of classes map_50"]
    variation, compared = scores.variation(), len(scores.compared())
    if variation is None:
        if scores.monthly:
            lines.append(f"{compared} of the challenge's {len(CHALLENGE_MONTHS)} months annotated: no CoV")
    else:
        lines.append(f"CoV of map_50 over {compared} months {variation:.4f}, balanced {scores.balanced():.4f}")
    return "\n".join(lines)
