"""Weights of a fusion, chosen on halves of the validation clips."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256

import numpy as np
import numpy.typing as npt

from yolo_lightning.challenge.content import Content
from yolo_lightning.challenge.fusion import fuse
from yolo_lightning.challenge.score import match_submission
from yolo_lightning.evaluation.drift import clip_of_id, drift_scores, month_of_id

Weights = tuple[float, ...]
FACTORS = (2.0, 4.0, 0.5, 0.25)
MAX_ROUNDS = 6
MIN_GAIN = 1e-6  # of the balanced score: smaller differences are rounding


@dataclass(frozen=True, slots=True)
class HalfChoice:
    """Weights chosen on one half of the clips."""

    weights: Weights
    elsewhere: float  # balanced score of these weights on the other half
    equal_elsewhere: float  # balanced score of equal weights on the other half


@dataclass(frozen=True, slots=True)
class WeightChoice:
    """Weights of a fusion."""

    weights: Weights  # with the sum 1
    balanced: float  # score of `weights` on all frames
    equal: float  # score of equal weights on all frames
    halves: tuple[HalfChoice, ...]  # both directions; empty if the frames cannot be halved

    def equal_weights(self) -> Weights:
        return normalised((1.0,) * len(self.weights))


def choose_weights(
    contents: Sequence[Content], truth: Content, iou_threshold: float, score_threshold: float = 0.0
) -> WeightChoice:
    """Return weights with a high balanced score on the validation split, or equal weights.

    Starting at equal weights, the weight of one file at a time is multiplied by 2, 4, 1/2 or 1/4 as long as the
    balanced score increases. The search runs on each half of the clips. The weights of a search on all frames are
    returned if the weights of both halves score higher than equal weights on the other half; otherwise equal weights.
    """
    first = first_half(truth.image_ids)
    everything = np.ones(len(first), dtype=np.bool_)

    @cache
    def scores(weights: Weights) -> tuple[float, float, float]:
        matches = match_submission(fuse(contents, weights, iou_threshold, score_threshold), truth)
        found = (drift_scores(matches, frames).balanced() for frames in (everything, first, ~first))
        return tuple(-np.inf if np.isnan(one) else one for one in found)  # type: ignore[return-value]

    equal = normalised((1.0,) * len(contents))
    if first.all() or not first.any():
        return WeightChoice(equal, scores(equal)[0], scores(equal)[0], ())
    halves = []
    for own, other in ((1, 2), (2, 1)):
        chosen = search(equal, lambda weights, own=own: scores(weights)[own])  # type: ignore[misc]
        halves.append(HalfChoice(chosen, scores(chosen)[other], scores(equal)[other]))
    wins = all(half.elsewhere > half.equal_elsewhere + MIN_GAIN for half in halves)
    weights = search(equal, lambda weights: scores(weights)[0]) if wins else equal
    return WeightChoice(weights, scores(weights)[0], scores(equal)[0], tuple(halves))


def search(start: Weights, score: Callable[[Weights], float]) -> Weights:
    """Return the weights at which no factor of one weight increases the score, at most 6 steps from `start`."""
    best = start
    for _ in range(MAX_ROUNDS):
        tries = [
            normalised(tuple(one * factor if place == at else one for place, one in enumerate(best)))
            for at in range(len(best))
            for factor in FACTORS
        ]
        found = max(tries, key=score)
        if score(found) <= score(best) + MIN_GAIN:
            return best
        best = found
    return best


def normalised(weights: Weights) -> Weights:
    """Return the weights divided by their sum, rounded so that equal proportions are equal numbers."""
    total = sum(weights)
    return tuple(round(one / total, 12) for one in weights)


def first_half(image_ids: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Return `(F,)` whether a frame belongs to the first half of its month's clips, chosen by a hash of their names."""
    clips = np.array([clip_of_id(image_id) for image_id in image_ids])
    months = np.array([month_of_id(image_id) for image_id in image_ids])
    chosen: list[str] = []
    for month in np.unique(months):
        own = sorted(set(clips[months == month].tolist()), key=lambda name: sha256(name.encode()).hexdigest())
        chosen += own[: max(1, round(len(own) / 2))]
    return np.isin(clips, chosen)
