"""What the balanced score would be without one kind of error, which shows where points can be gained."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from yolo_lightning.evaluation.average_precision import AT_50, PartScores
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
    localized_hits = np.where(hits & LOCALIZED, hits | 1, hits)
    localized = replace(matches, hits=torch.from_numpy(localized_hits.view(np.int16)))
    rows = [_of_scores("as it is", usual), _of_scores("all boxes localized", drift_scores(localized))]
    for condition, error in (("no duplicates", DUPLICATE), ("no background errors", BACKGROUND)):
        remaining = matches.chosen(every, torch.from_numpy(hits & error == 0))
        rows.append(_of_scores(condition, drift_scores(remaining)))
    compared = usual.compared()
    for label in np.flatnonzero(usual.overall.annotated).tolist():
        monthly = {month: _with_best(usual.monthly[month], label) for month in compared}
        rows.append(_of_months(f"{class_names[label]} like the best class", _with_best(usual.overall, label), monthly))
    if len(compared) > 1:
        for month in compared:
            raised = compared | {month: max(compared.values())}
            rows.append(_of_months(f"{month_name(month)} like the best month", rows[0].map_50, raised))
    return rows


def _of_scores(condition: str, scores: DriftScores) -> Oracle:
    return _of_months(condition, scores.overall.map(AT_50), scores.compared())


def _of_months(condition: str, map_50: float, monthly: Mapping[int, float]) -> Oracle:
    variation = coefficient_of_variation(list(monthly.values()))
    return Oracle(condition, map_50, variation, balanced_score(map_50, variation))


def _with_best(part: PartScores, label: int) -> float:
    """Return `map_50` if class `label` had the largest average precision of all annotated classes."""
    precision = part.precision[AT_50].copy()
    precision[label] = precision[part.annotated > 0].max()
    return float(precision[part.annotated > 0].mean())
