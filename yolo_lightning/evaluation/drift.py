"""Monthly scores, their coefficient of variation, and the balanced score of the challenge.

Source: evaluation script of the RTIOD challenge (6th RWS workshop at WACV 2026, starting kit, commit 1c27e3b), which
calls torchmetrics' `MeanAveragePrecision` for all frames and for each of eight months.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from yolo_lightning.evaluation.average_precision import AT_50, NO_GROUND_TRUTH, PartScores, RankedDetections
from yolo_lightning.evaluation.matching import Matches

CHALLENGE_MONTHS = {
    "jan": 202101,
    "feb": 202102,
    "mar": 202103,
    "apr": 202104,
    "may": 202005,
    "jun": 202006,
    "jul": 202007,
    "aug": 202008,
}
"""Compared months (YYYYMM) by their names in `scores.json`. September enters the global score only."""


@dataclass(frozen=True, slots=True)
class RankingScores:
    """Scores of some frames by which the challenge ranks."""

    map_50: float  # of all classes and frames, 0 to 1; -1 without ground truth
    variation: float | None  # coefficient of variation over the months; None for fewer than two compared months
    balanced: float  # see `balanced_score`; NaN if every month scores 0

    @classmethod
    def of(cls, map_50: float, monthly: Mapping[int, float]) -> Self:
        """Return the scores for `map_50` of all frames and of each compared month."""
        variation = coefficient_of_variation(list(monthly.values()))
        return cls(map_50, variation, balanced_score(map_50, variation))


@dataclass(frozen=True, slots=True, eq=False)
class DriftScores:
    """Scores of a split."""

    overall: PartScores  # all frames
    monthly: dict[int, PartScores]  # by YYYYMM, ascending: all known months with frames

    def compared(self) -> dict[int, float]:
        """Return `map_50` of the challenge's months that have ground truth."""
        return {
            month: part.map(AT_50)
            for month, part in self.monthly.items()
            if month in CHALLENGE_MONTHS.values() and part.annotated.any()
        }

    def ranking(self) -> RankingScores:
        """Return `map_50` of all frames, its variation over the compared months, and the balanced score."""
        return RankingScores.of(self.overall.map(AT_50), self.compared())


def drift_scores(matches: Matches) -> DriftScores:
    ranked = RankedDetections.of(matches)
    months = matches.months
    monthly = {month: ranked.part(months == month).scores() for month in np.unique(months[months > 0]).tolist()}
    return DriftScores(ranked.scores(), monthly)


def coefficient_of_variation(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation (n - 1) over the mean, NaN if the mean is 0; None for less than 2 values."""
    if len(values) < 2:
        return None
    mean = statistics.fmean(values)
    if not mean:
        return math.nan
    return statistics.stdev(values) / mean


def balanced_score(map_50: float, variation: float | None) -> float:
    """Return the challenge's ranking score, negative if the variation exceeds 1; `map_50` without a variation."""
    if variation is None:
        return map_50
    return (1 - variation) * map_50


def month_name(month: int) -> str:
    """Return YYYYMM as `2020-05`."""
    return f"{month // 100}-{month % 100:02d}"


def named_scores(scores: DriftScores, class_names: Sequence[str]) -> dict[str, float]:
    """Return the scores to log by name, as listed in docs/score_definitions.md.

    The names are those of `PartScores.scalars`; `balanced`; `cov` if two months can be compared; `map` and `map_50` of
    each annotated class (`map_50/person`) and month (`map_50/2020-05`); `map_50` of each annotated class in each month
    (`map_50/2020-05/person`).
    """
    ranking = scores.ranking()
    values = scores.overall.scalars() | {"balanced": ranking.balanced}
    if ranking.variation is not None:
        values["cov"] = ranking.variation
    for label in np.flatnonzero(scores.overall.annotated).tolist():
        values |= {f"{name}/{class_names[label]}": value for name, value in scores.overall.of_class(label).items()}
    for month, part in scores.monthly.items():
        if part.annotated.any():
            scalars = part.scalars()
            values |= {f"{name}/{month_name(month)}": scalars[name] for name in ("map", "map_50")}
        for label in np.flatnonzero(part.annotated).tolist():
            values[f"map_50/{month_name(month)}/{class_names[label]}"] = part.of_class(label)["map_50"]
    return values


def organisers_scores(scores: DriftScores) -> dict[str, Any]:
    """Return the content of the organisers' `scores.json`, with their keys in their order.

    As in their script, a month without ground truth enters the coefficient of variation as -1, so the last two values
    are meaningful only if all eight months are annotated; a month without frames has no scores per class; scores per
    class are those of the annotated or detected classes, by category id. NaN, which is not JSON, becomes None.
    """
    parts = {"global": scores.overall} | {name: scores.monthly.get(month) for name, month in CHALLENGE_MONTHS.items()}
    content: dict[str, Any] = {}
    for name, part in parts.items():
        scalars = dict.fromkeys(scores.overall.scalars(), NO_GROUND_TRUTH) if part is None else part.scalars()
        content |= {f"{name}_{key}": value for key, value in scalars.items()}
        if part is not None:
            observed = np.flatnonzero(part.observed).tolist()
            content[f"{name}_map_per_class"] = [part.of_class(label)["map"] for label in observed]
    variation = coefficient_of_variation([content[f"{name}_map_50"] for name in CHALLENGE_MONTHS])
    balanced = balanced_score(content["global_map_50"], variation)
    for name, value in {"global_map_con": variation, "global_map_bal": balanced}.items():
        content[name] = None if value is None or math.isnan(value) else value
    return content
