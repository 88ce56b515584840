"""Precision, recall, F1 and mean average precision under Ultralytics' definitions.

Source: `ap_per_class` of Ultralytics 8.4.190. Its average precision is the area below the falling envelope of
precision, interpolated at 101 recalls, where COCO takes the mean of the envelope's own values. Detections of equal
scores rank here by frame, there as the sort happens to leave them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from yolo_lightning.evaluation.average_precision import AT_50, NO_GROUND_TRUTH
from yolo_lightning.evaluation.matching import IOU_THRESHOLDS
from yolo_lightning.evaluation.ultralytics_matching import UltralyticsMatches

Floats = npt.NDArray[np.float64]

CURVE_POINTS = 1000
GRID = np.linspace(0.0, 1.0, CURVE_POINTS)
"""Confidences, or recalls, at which curves are read."""

RECALLS = np.linspace(0.0, 1.0, 101)
"""Where the envelope of precision is read."""

SMOOTHED_POINTS = CURVE_POINTS // 10 + 1
"""Width of the mean that runs over the F1 curve before its peak is looked for; odd."""

TINY = 1e-16
"""Keeps a ratio of nothing to nothing finite."""


@dataclass(frozen=True, slots=True)
class UltralyticsScores:
    """Scores and curves of the K classes that were annotated, of C.

    Attributes:
        labels: `(K,)` their class indices, ascending.
        annotated: `(K,)` objects of each.
        average_precision: `(K, 10)` per `IOU_THRESHOLDS`, 0 to 1.
        precision_by_recall: `(K, 1000)` falling envelope at IoU 0.5, at recalls `GRID`.
        precision_by_confidence: `(K, 1000)` at IoU 0.5, of the detections that score `GRID` and more.
        recall_by_confidence: `(K, 1000)`, likewise.
    """

    labels: npt.NDArray[np.int64]
    annotated: npt.NDArray[np.int64]
    average_precision: Floats
    precision_by_recall: Floats
    precision_by_confidence: Floats
    recall_by_confidence: Floats

    def f1_by_confidence(self) -> Floats:
        """`(K, 1000)` harmonic mean of precision and recall."""
        precision, recall = self.precision_by_confidence, self.recall_by_confidence
        f1: Floats = 2 * precision * recall / (precision + recall + TINY)
        return f1

    def best_point(self) -> int:
        """Index into `GRID` where the smoothed mean of the classes' F1 is highest; 0 without ground truth."""
        if not len(self.labels):
            return 0
        return int(running_mean(self.f1_by_confidence().mean(axis=0), SMOOTHED_POINTS).argmax())

    def scalars(self) -> dict[str, float]:
        """`precision`, `recall`, `f1`, `ultralytics_map_50`, `ultralytics_map`, 0 to 1; -1 without ground truth.

        Means over the annotated classes; the first three at the confidence of the best mean F1.
        """
        per_class = self._per_class()
        return {name: float(own.mean()) if len(own) else NO_GROUND_TRUTH for name, own in per_class.items()}

    def of_class(self, label: int) -> dict[str, float]:
        """The same of a class that was annotated."""
        row = int(np.searchsorted(self.labels, label))
        assert self.labels[row] == label
        return {name: float(own[row]) for name, own in self._per_class().items()}

    def _per_class(self) -> dict[str, Floats]:
        at = self.best_point()
        return {
            "precision": self.precision_by_confidence[:, at],
            "recall": self.recall_by_confidence[:, at],
            "f1": self.f1_by_confidence()[:, at],
            "ultralytics_map_50": self.average_precision[:, AT_50],
            "ultralytics_map": self.average_precision.mean(axis=1),
        }


def ultralytics_scores(matches: UltralyticsMatches) -> UltralyticsScores:
    """Scores of all frames."""
    annotated = matches.annotated.numpy().sum(axis=0, dtype=np.int64)
    present = np.flatnonzero(annotated)
    labels, scores, hits = matches.labels.numpy(), matches.scores.numpy(), matches.hits.numpy()
    order = np.lexsort((-scores, labels))
    labels, scores, hits = labels[order], scores[order], hits[order]
    limits = np.searchsorted(labels, np.arange(len(annotated) + 1))
    result = UltralyticsScores(
        labels=present,
        annotated=annotated[present],
        average_precision=np.zeros((len(present), len(IOU_THRESHOLDS))),
        precision_by_recall=np.zeros((len(present), CURVE_POINTS)),
        precision_by_confidence=np.zeros((len(present), CURVE_POINTS)),
        recall_by_confidence=np.zeros((len(present), CURVE_POINTS)),
    )
    for row, label in enumerate(present.tolist()):
        own = slice(limits[label], limits[label + 1])
        if own.start == own.stop:
            continue
        for threshold in range(len(IOU_THRESHOLDS)):
            right = np.cumsum((hits[own] >> threshold) & 1, dtype=np.int64)
            recall, precision = right / annotated[label], right / np.arange(1, len(right) + 1)
            recalls, envelope = falling_envelope(recall, precision)
            result.average_precision[row, threshold] = area(np.interp(RECALLS, recalls, envelope))
            if threshold == AT_50:
                falling = -scores[own].astype(np.float64)  # np.interp wants rising positions
                result.precision_by_recall[row] = np.interp(GRID, recalls, envelope)
                result.precision_by_confidence[row] = np.interp(-GRID, falling, precision, left=1.0)
                result.recall_by_confidence[row] = np.interp(-GRID, falling, recall, left=0.0)
    return result


def named_ultralytics_scores(scores: UltralyticsScores, class_names: Sequence[str]) -> dict[str, float]:
    """The scores to log, by name: of all classes, and of each annotated one, as in `precision/person`."""
    values = scores.scalars()
    for label in scores.labels.tolist():
        values |= {f"{name}/{class_names[label]}": value for name, value in scores.of_class(label).items()}
    return values


def falling_envelope(recall: Floats, precision: Floats) -> tuple[Floats, Floats]:
    """The curve of a class, from recall 0 to 1, precision never rising; it drops to 0 where the detections end.

    Args:
        recall: `(D,)` of the best 1, 2, ... detections.
        precision: `(D,)` likewise.

    Returns:
        Recalls and precisions, `(D + 3,)` each.
    """
    recalls = np.concatenate(([0.0], recall, [recall[-1], 1.0]))
    precisions = np.concatenate(([1.0], precision, [0.0, 0.0]))
    return recalls, np.maximum.accumulate(precisions[::-1])[::-1]


def area(values: Floats) -> float:
    """Of the trapezoids below values at `RECALLS`."""
    return float(((values[1:] + values[:-1]) / 2 * np.diff(RECALLS)).sum())


def running_mean(values: Floats, width: int) -> Floats:
    """`(N,)` mean over `width` neighbours, an odd number; both ends of `(N,)` values are continued as they are."""
    reach = width // 2
    padded = np.concatenate([np.full(reach, values[0]), values, np.full(reach, values[-1])])
    mean: Floats = np.convolve(padded, np.full(width, 1 / width), mode="valid")
    return mean
