"""What the balanced score would be without one kind of error, which shows where points can be gained."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from yolo_lightning.data.array_types import Float64Array, Int64Array
from yolo_lightning.evaluation.average_precision import AT_50
from yolo_lightning.evaluation.drift import (
    DriftScores,
    balanced_score,
    coefficient_of_variation,
    drift_scores,
    month_name,
)
from yolo_lightning.evaluation.matching import BACKGROUND, DUPLICATE, LOCALIZED, Matches


@dataclass(frozen=True, slots=True)
class Oracle:
    """Scores under a condition."""

    condition: str
    map_50: float
    variation: float | None
    balanced: float


def oracles(matches: Matches, class_names: Sequence[str]) -> list[Oracle]:
    """Return the scores as they are, and under each condition; nothing if the matches contain no error types.

    Errors of detections are removed at IoU 0.5. A class that is as good as the best class has its average precision,
    in each month too. A month that is as good as the best month changes the variation only.
    """
    hits = matches.hits.numpy().view(np.uint16)
    if not (hits & LOCALIZED).any():  # nothing is detected, or the record was written without error types
        return []
    usual = drift_scores(matches)
    every = torch.ones(len(matches.counts), dtype=torch.bool)
    localized = np.where(hits & LOCALIZED, hits | 1, hits)
    rows = [
        _of_scores("as it is", usual),
        _of_scores(
            "all boxes localized", drift_scores(replace(matches, hits=torch.from_numpy(localized.view(np.int16))))
        ),
        *(
            _of_scores(condition, drift_scores(matches.chosen(every, torch.from_numpy(hits & error == 0))))
            for condition, error in (("no duplicates", DUPLICATE), ("no background errors", BACKGROUND))
        ),
    ]
    for label in np.flatnonzero(usual.overall.annotated).tolist():
        parts = {month: usual.monthly[month] for month in usual.compared()}
        monthly = {month: _with_best(part.precision[AT_50], part.annotated, label) for month, part in parts.items()}
        overall = _with_best(usual.overall.precision[AT_50], usual.overall.annotated, label)
        rows.append(_of_months(f"{class_names[label]} like the best class", overall, monthly))
    compared = usual.compared()
    for month in compared if len(compared) > 1 else ():
        raised = compared | {month: max(compared.values())}
        rows.append(_of_months(f"{month_name(month)} like the best month", rows[0].map_50, raised))
    return rows


def _of_scores(condition: str, scores: DriftScores) -> Oracle:
    return _of_months(condition, scores.overall.scalars()["map_50"], scores.compared())


def _of_months(condition: str, map_50: float, monthly: Mapping[int, float]) -> Oracle:
    variation = coefficient_of_variation(list(monthly.values()))
    return Oracle(condition, map_50, variation, balanced_score(map_50, variation))


def _with_best(precision: Float64Array, annotated: Int64Array, label: int) -> float:
    """Return the mean over the annotated classes if class `label` had the largest average precision among them."""
    raised = precision.copy()
    raised[label] = precision[annotated > 0].max()
    return float(raised[annotated > 0].mean())
