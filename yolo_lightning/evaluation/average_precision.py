"""COCO's average precision and recall of any subset of the matched frames.

Source: `COCOeval.accumulate` and `summarize` of pycocotools with the arguments of torchmetrics' `MeanAveragePrecision`:
precision is made monotonically decreasing and sampled at 101 recalls; classes without annotations are excluded.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch

from yolo_lightning.data.array_types import BoolArray, Float64Array, Int64Array, IntegerArray, UInt16Array
from yolo_lightning.evaluation.matching import COUNTED_PER_CLASS, IOU_THRESHOLDS, Matches

NO_GROUND_TRUTH = -1.0  # COCO's score of a class or subset without annotated objects

DETECTION_LIMITS = (1, 10, COUNTED_PER_CLASS)
"""Maximum number of detections per frame and class in `mar_1`, `mar_10` and `mar_100`."""

RECALLS = np.array(torch.linspace(0.0, 1.0, 101).tolist())
"""Recalls at which precision is sampled; rounded to float32, as in torchmetrics."""

AT_50 = IOU_THRESHOLDS.index(0.5)
AT_75 = IOU_THRESHOLDS.index(0.75)


@dataclass(frozen=True, slots=True)
class PartScores:
    """Scores of a subset of the frames, with T IoU thresholds and M limits of the number of detections."""

    frames: int
    annotated: Int64Array  # `(C,)` number of objects per class
    observed: BoolArray  # `(C,)` whether the class was annotated or detected
    precision: Float64Array  # `(T, C)` average precision, 0 to 1; -1 for classes without ground truth
    recall: Float64Array  # `(M, T, C)` maximum recall, 0 to 1; -1 likewise

    def map(self, threshold: int | None = None) -> float:
        """Return the mean average precision over the annotated classes, at all thresholds or at one of them."""
        return self._mean(self.precision if threshold is None else self.precision[threshold])

    def mar(self, limit: int) -> float:
        """Return the mean of the maximum recalls of limit number `limit` over thresholds and annotated classes."""
        return self._mean(self.recall[limit])

    def _mean(self, values: Float64Array) -> float:
        part = values[..., self.annotated > 0]
        return float(part.mean()) if part.size else NO_GROUND_TRUTH

    def scalars(self) -> dict[str, float]:
        """Return `map`, `map_50`, `map_75`, `mar_1`, `mar_10`, `mar_100`, 0 to 1; -1 without ground truth."""
        values = {"map": self.map(), "map_50": self.map(AT_50), "map_75": self.map(AT_75)}
        for row, limit in enumerate(DETECTION_LIMITS):
            values[f"mar_{limit}"] = self.mar(row)
        return values

    def of_class(self, label: int) -> dict[str, float]:
        """Return `map` and `map_50` of a class, 0 to 1; -1 without ground truth."""
        return {"map": float(self.precision[:, label].mean()), "map_50": float(self.precision[AT_50, label])}


@dataclass(frozen=True, slots=True)
class RankedDetections:
    """D detections of F frames, sorted once by class and descending score, to score any subset of the frames.

    Detections of equal scores keep the order of the frames.
    """

    frames: int  # number of frames
    annotated: IntegerArray  # `(F, C)` number of objects per class
    labels: IntegerArray  # `(D,)` class index
    owners: Int64Array  # `(D,)` frame number
    ranks: IntegerArray  # `(D,)`, 0 is the highest score of the frame and class
    hits: UInt16Array  # `(D,)`, bit `t` is set if the detection is correct at threshold `t`
    ignored: UInt16Array | None = None  # `(D,)`, bit `t` is set if the detection does not count at threshold `t`

    @classmethod
    def of(cls, matches: Matches) -> Self:
        order = np.lexsort((-matches.scores, matches.labels))
        return cls(
            frames=len(matches.counts),
            annotated=matches.annotated,
            labels=matches.labels[order],
            owners=matches.owners[order],
            ranks=matches.ranks[order],
            hits=matches.hits[order],
        )

    def part(self, frames: BoolArray) -> Self:
        """Return the frames selected by `frames`, `(F,)`, without renumbering them."""
        is_kept = frames[self.owners]
        detections = {name: getattr(self, name)[is_kept] for name in ("labels", "owners", "ranks", "hits")}
        return replace(self, frames=int(frames.sum()), annotated=self.annotated * frames[:, None], **detections)

    def scores(self, thresholds: int = len(IOU_THRESHOLDS), limits: Sequence[int] = DETECTION_LIMITS) -> PartScores:
        """Return the scores of all frames.

        Args:
            thresholds: Number of IoU thresholds of the matching.
            limits: M maximum numbers of detections per frame and class for recall.
        """
        annotated = self.annotated.sum(axis=0, dtype=np.int64)
        precision = np.full((thresholds, len(annotated)), NO_GROUND_TRUTH)
        recall = np.full((len(limits), thresholds, len(annotated)), NO_GROUND_TRUTH)
        for label in np.flatnonzero(annotated).tolist():
            detections = self.of_class(label)
            objects = int(annotated[label])
            hits = self.hits[detections]
            ranks = self.ranks[detections]
            for threshold in range(thresholds):
                bit = hits.dtype.type(1 << threshold)
                correct = np.flatnonzero(hits & bit)
                places = correct
                if self.ignored is not None:
                    places = correct - np.searchsorted(np.flatnonzero(self.ignored[detections] & bit), correct)
                precision[threshold, label] = average_precision(places, objects)
                for row, limit in enumerate(limits):
                    recall[row, threshold, label] = (ranks[correct] < limit).sum() / objects
        observed = (annotated > 0) | (np.bincount(self.labels, minlength=len(annotated)) > 0)
        return PartScores(self.frames, annotated, observed, precision, recall)

    def of_class(self, label: int) -> slice:
        """Return the positions of the detections of a class."""
        return slice(*np.searchsorted(self.labels, (label, label + 1)).tolist())


def average_precision(correct: Int64Array, annotated: int) -> float:
    """Return the mean of the decreasing envelope of precision at `RECALLS`, 0 to 1, of a class with >= 1 objects.

    `correct` contains the ascending ranks of the correct detections among all detections of the class.
    """
    correct_so_far = np.arange(1, len(correct) + 1)
    positions = np.searchsorted(correct_so_far / annotated, RECALLS)
    return float(np.append(decreasing_envelope(correct_so_far / (correct + 1)), 0.0)[positions].mean())


def decreasing_envelope(precision: Float64Array) -> Float64Array:
    """Return for each position the largest precision at this or any later position."""
    return np.asarray(np.maximum.accumulate(precision[::-1])[::-1])
