"""Scores of a split as tables for the terminal, at most 80 characters wide for four classes."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeGuard

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from yolo_lightning.evaluation.average_precision import AT_50, NO_GROUND_TRUTH
from yolo_lightning.evaluation.drift import CHALLENGE_MONTHS, DriftScores, RankingScores, month_name
from yolo_lightning.evaluation.ultralytics_metrics import ThresholdCurves, UltralyticsScores
from yolo_lightning.utils.plain_text import one_line

SCORE_LABELS = {
    "map_50": "mAP50",
    "map": "mAP50-95",
    "map_75": "mAP75",
    "mar_1": "AR@1",
    "mar_10": "AR@10",
    "mar_100": "AR@100",
    "balanced": "balanced",
    "cov": "CoV",
}
"""Labels of the logged scores, which docs/score_definitions.md defines."""

NARROW_HEADINGS = ("mAP\n50", "mAP\n50-95")
"""Labels of `map_50` and `map` in two lines, no wider than a score."""

MISSING = "-"


def number_table(first: str, headings: Iterable[str], caption: str | None = None, *, wraps: bool = False) -> Table:
    """Return an empty table: text in the first column, which wraps with `wraps`, and numbers in the others."""
    table = Table(
        box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False, collapse_padding=True, caption=caption, caption_justify="left"
    )
    table.add_column(first, no_wrap=not wraps)
    for heading in headings:
        table.add_column(heading, justify="right", vertical="bottom", no_wrap=True)
    return table


def score_table(scores: DriftScores, class_names: Sequence[str]) -> Table | str:
    """Return one row for all frames and one per month, with the remaining scores below.

    Without months, which only some datasets have, return the scores of all frames as lines.
    """
    overall = scores.overall
    summary = drift_summary(scores)
    if not scores.monthly:
        parts = [f"{overall.frames:,} frames, {overall.annotated.sum():,} objects"]
        parts.append(scores_text(overall.scalars(), ("map_50", "map")))
        return f"{', '.join(filter(None, parts))}\n{summary}".strip()
    headings = ("frames", "objects", *NARROW_HEADINGS, *map(_cell_text, class_names))
    caption = f"{summary}\ncolumns of classes: {SCORE_LABELS['map_50']}".strip()
    table = number_table("month", headings, caption)
    for row in month_rows(scores, range(len(class_names))):
        table.add_row(*row)
    return table


def month_rows(scores: DriftScores, labels: Iterable[int], missing: str = MISSING) -> list[list[str]]:
    """Return month, frames, objects, `map_50`, `map`, and `map_50` of some classes, for all frames and each month."""
    parts = {"all": scores.overall} | {month_name(month): part for month, part in scores.monthly.items()}
    rows = []
    for name, part in parts.items():
        values = (part.map(AT_50), part.map(), *(part.of_class(label)["map_50"] for label in labels))
        cells = [score_text(value, missing) for value in values]
        rows.append([name, f"{part.frames:,}", f"{part.annotated.sum():,}", *cells])
    return rows


def class_table(
    scores: DriftScores, curves: ThresholdCurves, ultralytics: UltralyticsScores, class_names: Sequence[str]
) -> Table:
    """Return one row for all classes and one per class; below, the scores to compare with those of Ultralytics."""
    caption = f"precision, recall, f1: IoU 0.5, score threshold {curves.best_threshold():.3f}"
    comparison = ultralytics_text(ultralytics)
    if comparison:
        caption += f"\n{comparison}"
    headings = ("objects", "precision", "recall", "f1", SCORE_LABELS["map_50"], SCORE_LABELS["map"])
    table = number_table("class", headings, caption, wraps=True)
    for name, *values in class_rows(scores, curves, class_names):
        table.add_row(_cell_text(name), *values)
    return table


def class_rows(
    scores: DriftScores, curves: ThresholdCurves, class_names: Sequence[str], missing: str = MISSING
) -> list[list[str]]:
    """Return name, objects, precision, recall, F1, `map_50` and `map` of all classes and of each annotated class."""
    annotated = scores.overall.annotated
    parts = [("all", int(annotated.sum()), curves.scalars(), scores.overall.scalars())]
    for label in curves.labels.tolist():
        coco = scores.overall.of_class(label)
        parts.append((class_names[label], int(annotated[label]), curves.of_class(label), coco))
    rows = []
    for name, objects, at_best, coco in parts:
        values = (*at_best.values(), coco["map_50"], coco["map"])
        rows.append([name, f"{objects:,}", *(score_text(value, missing) for value in values)])
    return rows


def ultralytics_text(ultralytics: UltralyticsScores) -> str:
    """Return the scores to compare with those of Ultralytics' `val`; empty without ground truth."""
    values = ultralytics.scalars()
    named = {name: values[f"ultralytics_{name}"] for name in ("map_50", "map")}
    shown = scores_text(named, named)
    return f"as Ultralytics defines them: {shown}" if shown else ""


def oracle_table(oracles: Mapping[str, RankingScores]) -> Table:
    headings, lines = oracle_cells(oracles)
    table = number_table(headings[0], headings[1:])
    for condition, *values in lines:
        table.add_row(_cell_text(condition), *values)
    return table


def oracle_cells(oracles: Mapping[str, RankingScores]) -> tuple[list[str], list[list[str]]]:
    """Return headings, and a line for the scores as they are and for each condition, with the gain.

    Without months to compare, only `map_50` is shown.
    """
    names = ["map_50"]
    usual = next(iter(oracles.values()))
    if usual.variation is not None:
        names += ["cov", "balanced"]
    lines = []
    for condition, scores in oracles.items():
        gain = "" if scores is usual else f"{scores.balanced - usual.balanced:+.4f}"
        lines.append([condition, *ranking_cells(scores)[: len(names)], gain])
    return ["if ...", *(SCORE_LABELS[name] for name in names), "gain"], lines


def ranking_cells(scores: RankingScores) -> list[str]:
    """Return `map_50`, the variation and the balanced score."""
    return [score_text(score) for score in (scores.map_50, scores.variation, scores.balanced)]


def _cell_text(name: str) -> str:
    """Return a class name for a cell or heading, in which rich interprets text in square brackets as a style."""
    return escape(one_line(name))


def is_defined(value: float | None) -> TypeGuard[float]:
    """Return whether a score exists: neither None, NaN, nor without ground truth."""
    return value is not None and not math.isnan(value) and value != NO_GROUND_TRUTH


def score_text(value: float | None, missing: str = MISSING) -> str:
    """Return a score with four digits, or `missing` if the score does not exist."""
    return f"{value:.4f}" if is_defined(value) else missing


def scores_text(scores: Mapping[str, float], names: Iterable[str]) -> str:
    """Return labels and values of the scores that exist: `mAP50 0.5000, mAP50-95 0.2500`; may be empty."""
    return ", ".join(f"{SCORE_LABELS[name]} {scores[name]:.4f}" for name in names if is_defined(scores.get(name)))


def drift_summary(scores: DriftScores) -> str:
    """Return the scores without a column, and the variation over the months; only scores that exist."""
    lines = [scores_text(scores.overall.scalars(), ("map_75", "mar_1", "mar_10", "mar_100"))]
    ranking = scores.ranking()
    variation = ranking.variation
    compared = len(scores.compared())
    if variation is not None and math.isnan(variation):
        lines.append(f"{SCORE_LABELS['map_50']} is 0 in all {compared} months: no CoV, no balanced score")
    elif variation is not None:
        label = SCORE_LABELS["map_50"]
        lines.append(f"CoV of {label} over {compared} months {variation:.4f}, balanced {ranking.balanced:.4f}")
    elif compared:
        lines.append(f"{compared} of the challenge's {len(CHALLENGE_MONTHS)} months annotated: no CoV")
    return "\n".join(filter(None, lines))
