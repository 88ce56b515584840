"""How evenly a detector works over the months: monthly scores, coefficient of variation, balanced score.

Source: the evaluation script of the RTIOD challenge (6th RWS workshop at WACV 2026, starting kit, 1c27e3b), which calls
torchmetrics' `MeanAveragePrecision` for all frames and again for each of eight months.
"""

import math
import statistics
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from yolo_lightning.evaluation.average_precision import NO_GROUND_TRUTH, PartScores, RankedDetections
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
"""The months whose scores are compared, by their name in `scores.json`. September counts in the global score alone."""


ID_DIGITS = 17
"""Digits of an LTDv2 image id: YYYYMM, clip (3), DD, HHMMSS."""


class DriftScores(msgspec.Struct, frozen=True, eq=False):
    """Scores of a split. Not a dataclass: torchmetrics refuses frozen ones as results.

    Attributes:
        overall: Of all frames.
        monthly: By month as YYYYMM, ascending, of all months that are known and have frames.
    """

    overall: PartScores
    monthly: dict[int, PartScores]

    def compared(self) -> dict[int, float]:
        """`map_50` of those of the challenge's months that have ground truth."""
        values = {month: part.scalars()["map_50"] for month, part in self.monthly.items()}
        allowed = CHALLENGE_MONTHS.values()
        return {month: value for month, value in values.items() if month in allowed and value != NO_GROUND_TRUTH}

    def variation(self) -> float | None:
        """Coefficient of variation of the compared months' `map_50`, 0 and more; null for fewer than two months."""
        values = list(self.compared().values())
        return coefficient_of_variation(values) if len(values) > 1 else None

    def balanced(self) -> float:
        """`(1 - CoV) * map_50`, at most 1; `map_50` itself where fewer than two months can be compared."""
        map_50, variation = self.overall.scalars()["map_50"], self.variation()
        return map_50 if variation is None else balanced_score(map_50, variation)


def drift_scores(matches: Matches) -> DriftScores:
    """Scores of all frames and of each month."""
    ranked = RankedDetections(matches)
    months = matches.months.numpy()
    known = np.unique(months[months > 0]).tolist()
    return DriftScores(ranked.scores(), {month: ranked.scores(months == month) for month in known})


def coefficient_of_variation(values: Sequence[float]) -> float:
    """Sample standard deviation (n - 1) over mean; NaN where the mean is 0.

    Args:
        values: Two or more.
    """
    mean = statistics.fmean(values)
    return statistics.stdev(values) / mean if mean else math.nan


def balanced_score(map_50: float, variation: float) -> float:
    """The challenge's ranking score; negative where the months vary by more than their mean."""
    return (1 - variation) * map_50


def month_of_id(image_id: str) -> int:
    """YYYYMM, with which LTDv2's ids begin; 0 for other ids."""
    month = int(image_id[:6]) if image_id[:6].isdecimal() and len(image_id) == ID_DIGITS else 0
    return month if 1 <= month % 100 <= 12 else 0


def month_name(month: int) -> str:
    """YYYYMM as 2020-05."""
    return f"{month // 100}-{month % 100:02d}"


def named_scores(scores: DriftScores, class_names: Sequence[str]) -> dict[str, float]:
    """The scores to log, by name.

    Args:
        scores: Of a split.
        class_names: Index 0 first.

    Returns:
        `map`, `map_50`, `map_75`, `mar_1`, `mar_10`, `mar_100`, -1 without ground truth; `balanced`; `cov` where two
        months can be compared; `map` and `map_50` of each annotated class (`map_50/person`) and month
        (`map_50/2020-05`), and `map_50` of each annotated class in each month (`map_50/2020-05/person`).
    """
    values = scores.overall.scalars() | {"balanced": scores.balanced()}
    if (variation := scores.variation()) is not None:
        values["cov"] = variation
    for label in np.flatnonzero(scores.overall.annotated).tolist():
        values |= {f"{name}/{class_names[label]}": value for name, value in scores.overall.of_class(label).items()}
    for month, part in scores.monthly.items():
        if part.annotated.any():
            scalars = part.scalars()
            values |= {f"{name}/{month_name(month)}": scalars[name] for name in ("map", "map_50")}
        for label in np.flatnonzero(part.annotated).tolist():
            values[f"map_50/{month_name(month)}/{class_names[label]}"] = part.of_class(label)["map_50"]
    return values


def organisers_scores(scores: DriftScores) -> dict[str, float | list[float] | None]:
    """The content of the organisers' `scores.json`, with their keys in their order.

    As in their script, a month without ground truth enters the coefficient of variation as -1, so that the last two
    values mean something only where all eight months were annotated; a month without frames has no scores per class;
    and scores per class are those of the classes that were annotated or detected, by category id.

    Returns:
        Scores; null where the script writes NaN, which is not JSON.
    """
    content: dict[str, float | list[float] | None] = dict(prefixed("global", scores.overall))
    nothing = dict.fromkeys(scores.overall.scalars(), NO_GROUND_TRUTH)
    map_50 = []
    for name, month in CHALLENGE_MONTHS.items():
        part = scores.monthly.get(month)
        values = {f"{name}_{key}": value for key, value in nothing.items()} if part is None else prefixed(name, part)
        content |= values
        map_50.append(scores.monthly[month].scalars()["map_50"] if part else NO_GROUND_TRUTH)
    variation = coefficient_of_variation(map_50)
    content["global_map_con"] = finite(variation)
    content["global_map_bal"] = finite(balanced_score(scores.overall.scalars()["map_50"], variation))
    return content


def prefixed(name: str, part: PartScores) -> Mapping[str, float | list[float]]:
    """One part's scores under the organisers' keys."""
    per_class = [part.of_class(label)["map"] for label in np.flatnonzero(part.observed).tolist()]
    scalars = {f"{name}_{key}": value for key, value in part.scalars().items()}
    return {**scalars, f"{name}_map_per_class": per_class}


def finite(value: float) -> float | None:
    """None for NaN."""
    return None if math.isnan(value) else value
