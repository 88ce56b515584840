"""Intervals of scores by a bootstrap over clips.

Neighbouring frames of a clip are near duplicates, so that the number of clips, not of frames, limits the precision of a
score. Each sample draws as many clips of each month as there are, with replacement, and is scored like the split.
Source: "Bootstrap methods: another look at the jackknife" (Efron 1979); percentile intervals, resampling of clusters
within strata.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from yolo_lightning.data.array_types import Float64Array, Int64Array
from yolo_lightning.data.formats.image_ids import clip_of_id
from yolo_lightning.evaluation.average_precision import AT_50, RankedDetections, average_precision
from yolo_lightning.evaluation.drift import (
    CHALLENGE_MONTHS,
    balanced_score,
    coefficient_of_variation,
    month_name,
)
from yolo_lightning.evaluation.matching import Matches

BOOTSTRAPPED = ("map_50", "cov", "balanced")
"""Scores of all frames that have intervals; `map_50` also has one for each month."""

ClassPrecision = Callable[[Int64Array], float]


@dataclass(frozen=True, slots=True)
class BootstrapScores:
    """Scores of S samples; NaN where a sample has no ground truth."""

    values: dict[str, Float64Array]  # `(S,)` by name: `map_50`, `balanced`, `cov`, `map_50/2020-05`, ...
    single_clips: tuple[int, ...]  # months (YYYYMM) with one clip, whose scores do not vary

    def intervals(self, confidence: float = 0.95) -> dict[str, tuple[float, float, float]]:
        """Return the bounds of the central interval with the share `confidence` of the samples, and the median.

        Each value is low, median, high. A score that no sample has is left out.
        """
        tail = (1 - confidence) / 2
        intervals = {}
        for name, values in self.values.items():
            finite_values = values[np.isfinite(values)]
            if len(finite_values):
                low, median, high = np.quantile(finite_values, (tail, 0.5, 1 - tail)).tolist()
                intervals[name] = (low, median, high)
        return intervals


def precision_of_class(ranked: RankedDetections, label: int) -> ClassPrecision:
    """Return a function that returns the average precision at IoU 0.5 of a class; NaN without objects.

    Its argument is how often each frame occurs, `(F,)`. The result equals that of a split with repeated frames, except
    for detections of one frame with equal scores: a repeated detection is ranked directly after itself.
    """
    detections = ranked.of_class(label)
    owners = ranked.owners[detections]
    annotated = ranked.annotated[:, label].astype(np.int64)
    correct = np.flatnonzero(ranked.hits[detections] & (1 << AT_50))

    def precision(counts: Int64Array) -> float:
        objects = int(annotated @ counts)
        if not objects:
            return math.nan
        times = counts[owners]
        before = np.cumsum(times) - times
        hits = times[correct]
        # Rank of each correct detection: those before it, and its own earlier repetitions.
        earlier = np.arange(int(hits.sum())) - np.repeat(np.cumsum(hits) - hits, hits)
        return average_precision(np.repeat(before[correct], hits) + earlier, objects)

    return precision


def bootstrap(matches: Matches, image_ids: Sequence[str], samples: int, seed: int = 0) -> BootstrapScores:
    """Return the scores of samples of clips. The result depends on the arguments only.

    Args:
        matches: F matched frames.
        image_ids: F ids in the order of the matches. Frames whose id is not LTDv2's are clips of their own.
        samples: Number of samples, >= 1.
        seed: Seed of the samples.
    """
    months = matches.months.astype(np.int64)
    _, clips = np.unique(np.array([clip_of_id(image_id) for image_id in image_ids]), return_inverse=True)
    strata = [np.unique(clips[months == month]) for month in np.unique(months)]
    known_months = np.unique(months[months > 0]).tolist()
    ranked = RankedDetections.of(matches)
    overall = precision_of_classes(ranked)
    monthly = {month: precision_of_classes(ranked.part(months == month)) for month in known_months}
    # The months are part of the name of a score, so that a month without objects has no score.
    names = [*BOOTSTRAPPED, *(f"map_50/{month_name(month)}" for month in known_months)]
    values = {name: np.full(samples, np.nan) for name in names}
    generator = np.random.default_rng(seed)
    for sample in range(samples):
        drawn = np.zeros(int(clips.max(initial=-1)) + 1, dtype=np.int64)
        for members in strata:
            np.add.at(drawn, generator.choice(members, len(members)), 1)
        counts = drawn[clips]
        map_50 = _mean_precision(overall, counts)
        compared = []
        for month, classes in monthly.items():
            month_map_50 = _mean_precision(classes, counts)
            values[f"map_50/{month_name(month)}"][sample] = month_map_50
            if month in CHALLENGE_MONTHS.values() and np.isfinite(month_map_50):
                compared.append(month_map_50)
        variation = coefficient_of_variation(compared)
        values["map_50"][sample] = map_50
        values["balanced"][sample] = balanced_score(map_50, variation)
        values["cov"][sample] = np.nan if variation is None else variation
    single = [month for month in known_months if len(np.unique(clips[months == month])) == 1]
    return BootstrapScores(values, tuple(single))


def _mean_precision(classes: Sequence[ClassPrecision], counts: Int64Array) -> float:
    """Return the mean over the classes that have objects; NaN if there is none."""
    precisions = np.array([precision(counts) for precision in classes])
    precisions = precisions[~np.isnan(precisions)]
    return float(precisions.mean()) if len(precisions) else math.nan


def precision_of_classes(ranked: RankedDetections) -> list[ClassPrecision]:
    return [precision_of_class(ranked, label) for label in range(ranked.annotated.shape[1])]


def limits(scores: BootstrapScores) -> dict[str, float]:
    """Return the bounds of all 95 % intervals to log: `balanced_low`, `balanced_high`, `map_50_low/2020-05`, ..."""
    named = {}
    for name, (low, _, high) in scores.intervals().items():
        score, separator, month = name.partition("/")
        for bound, value in zip(bound_names(score), (low, high), strict=True):
            named[f"{bound}{separator}{month}"] = value
    return named


def bound_names(score: str) -> tuple[str, str]:
    """Return the names of the bounds of a score: `balanced_low`, `balanced_high`."""
    return f"{score}_low", f"{score}_high"
