"""What the balanced score would be without one kind of error, which shows where points can be gained."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from yolo_lightning.evaluation.average_precision import AT_50, PartScores
from yolo_lightning.evaluation.drift import RankingScores, drift_scores, month_name
from yolo_lightning.evaluation.matching import BACKGROUND, DUPLICATE, LOCALIZED, Matches


def oracles(matches: Matches, class_names: Sequence[str]) -> dict[str, RankingScores]:
    """Return the scores as they are, and under each condition, by name; empty if the matches contain no error types.

    Errors of detections are removed at IoU 0.5. A class that is as good as the best class has its average precision,
    in each month too. A month that is as good as the best month changes the variation only.
    """
    hits = matches.hits
    if not (hits & LOCALIZED).any():  # nothing is detected, or the record was written without error types
        return {}
    usual = drift_scores(matches)
    every = np.ones(len(matches.counts), np.bool_)
    localized = replace(matches, hits=np.where(hits & LOCALIZED, hits | 1, hits))
    scores = {"as it is": usual.ranking(), "all boxes localized": drift_scores(localized).ranking()}
    for condition, error in (("no duplicates", DUPLICATE), ("no background errors", BACKGROUND)):
        remaining = matches.chosen(every, hits & error == 0)
        scores[condition] = drift_scores(remaining).ranking()
    compared = usual.compared()
    for label in np.flatnonzero(usual.overall.annotated).tolist():
        monthly = {month: _with_best(usual.monthly[month], label) for month in compared}
        ranking = RankingScores.of(_with_best(usual.overall, label), monthly)
        scores[f"{class_names[label]} like the best class"] = ranking
    if len(compared) > 1:
        for month in compared:
            raised = compared | {month: max(compared.values())}
            ranking = RankingScores.of(usual.overall.map(AT_50), raised)
            scores[f"{month_name(month)} like the best month"] = ranking
    return scores


def _with_best(part: PartScores, label: int) -> float:
    """Return `map_50` if class `label` had the largest average precision of all annotated classes."""
    precision = part.precision[AT_50].copy()
    precision[label] = precision[part.annotated > 0].max()
    return float(precision[part.annotated > 0].mean())
