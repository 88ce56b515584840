"""Precision, recall and F1 over the score threshold, and mean average precision as defined by Ultralytics.

Source: `ap_per_class` of Ultralytics 8.4.190. Its average precision is the area under the decreasing envelope of
precision, interpolated at 101 recalls; COCO's is the mean of the envelope's own values. Detections of equal scores are
ranked by frame here; in Ultralytics their order is undefined. Precision, recall and F1 are also computed from COCO's
matching: they belong to COCO's mAP50, which is the score of this package.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from yolo_lightning.data.array_types import Float64Array, Int64Array
from yolo_lightning.evaluation.average_precision import AT_50, NO_GROUND_TRUTH, decreasing_envelope
from yolo_lightning.evaluation.matching import IOU_THRESHOLDS, Matches
from yolo_lightning.evaluation.ultralytics_matching import UltralyticsMatches

CURVE_POINTS = 1000
GRID = np.linspace(0.0, 1.0, CURVE_POINTS)  # score thresholds, or recalls, at which curves are sampled
RECALLS = np.linspace(0.0, 1.0, 101)  # recalls at which the envelope of precision is sampled

SMOOTHED_POINTS = CURVE_POINTS // 10 + 1
"""Width of the running mean over the F1 curve whose maximum is the best score threshold; odd."""

PREFIX = "ultralytics_"
EPSILON = 1e-16  # avoids a division by zero


@dataclass(frozen=True, slots=True)
class ThresholdCurves:
    """Curves of the K annotated classes at IoU 0.5."""

    labels: Int64Array  # `(K,)` class indices, ascending
    precision_by_recall: Float64Array  # `(K, 1000)` decreasing envelope at the recalls `GRID`
    precision_by_score: Float64Array  # `(K, 1000)` of the detections with a score >= `GRID`
    recall_by_score: Float64Array  # `(K, 1000)` of the same detections

    def f1_by_score(self) -> Float64Array:
        """Return the harmonic mean of precision and recall, `(K, 1000)`."""
        precision = self.precision_by_score
        recall = self.recall_by_score
        return np.asarray(2 * precision * recall / (precision + recall + EPSILON))

    def best_point(self) -> int:
        """Return the index into `GRID` of the maximum of the smoothed mean F1; 0 without ground truth."""
        if not len(self.labels):
            return 0
        return int(running_mean(self.f1_by_score().mean(axis=0), SMOOTHED_POINTS).argmax())

    def best_threshold(self) -> float:
        """Return the score threshold with the highest smoothed mean F1, 0 to 1."""
        return float(GRID[self.best_point()])

    def per_class(self) -> dict[str, Float64Array]:
        """Return `precision`, `recall` and `f1` of each class, `(K,)`, at the best score threshold."""
        at = self.best_point()
        return {
            "precision": self.precision_by_score[:, at],
            "recall": self.recall_by_score[:, at],
            "f1": self.f1_by_score()[:, at],
        }

    def scalars(self) -> dict[str, float]:
        """Return the means of `per_class` over the annotated classes, 0 to 1; -1 without ground truth."""
        per_class = self.per_class()
        if not len(self.labels):
            return dict.fromkeys(per_class, NO_GROUND_TRUTH)
        return {name: float(values.mean()) for name, values in per_class.items()}

    def of_class(self, label: int) -> dict[str, float]:
        """Return the values of an annotated class."""
        row = int(np.searchsorted(self.labels, label))
        assert self.labels[row] == label
        return {name: float(values[row]) for name, values in self.per_class().items()}

    def named(self, class_names: Sequence[str]) -> dict[str, float]:
        """Return the scores to log by name: of all classes, and of each annotated class (`precision/person`)."""
        values = self.scalars()
        for label in self.labels.tolist():
            values |= {f"{name}/{class_names[label]}": value for name, value in self.of_class(label).items()}
        return values


@dataclass(frozen=True, slots=True)
class UltralyticsScores(ThresholdCurves):
    """Scores and curves of Ultralytics' matching; the names of the scores begin with `ultralytics_`."""

    average_precision: Float64Array  # `(K, 10)` per `IOU_THRESHOLDS`, 0 to 1

    def per_class(self) -> dict[str, Float64Array]:
        """Return `ultralytics_precision`, `..._recall`, `..._f1`, `..._map_50` and `..._map` of each class, `(K,)`."""
        at_best = ThresholdCurves.per_class(self)  # `super()` does not work in a class with slots
        return {f"{PREFIX}{name}": values for name, values in at_best.items()} | {
            f"{PREFIX}map_50": self.average_precision[:, AT_50],
            f"{PREFIX}map": self.average_precision.mean(axis=1),
        }


def threshold_curves(matches: Matches) -> ThresholdCurves:
    """Return precision, recall and F1 of the detections that COCO's scores count."""
    scores = _scores(matches, thresholds=1)
    return ThresholdCurves(scores.labels, scores.precision_by_recall, scores.precision_by_score, scores.recall_by_score)


def ultralytics_scores(matches: UltralyticsMatches) -> UltralyticsScores:
    return _scores(matches, len(IOU_THRESHOLDS))


def _scores(matches: Matches | UltralyticsMatches, thresholds: int) -> UltralyticsScores:
    """Return the curves and the average precision at the first `thresholds` IoU thresholds."""
    annotated = matches.annotated.sum(axis=0, dtype=np.int64)
    present = np.flatnonzero(annotated)
    order = np.lexsort((-matches.scores, matches.labels))
    scores = matches.scores[order]
    hits = matches.hits[order]
    edges = np.searchsorted(matches.labels[order], np.arange(len(annotated) + 1))
    average_precision = np.zeros((len(present), thresholds))
    by_recall, precision_by_score, recall_by_score = np.zeros((3, len(present), CURVE_POINTS))
    for row, label in enumerate(present.tolist()):
        detections = slice(edges[label], edges[label + 1])
        if detections.start == detections.stop:
            continue
        for threshold in range(thresholds):
            correct = np.cumsum((hits[detections] >> threshold) & 1, dtype=np.int64)
            recall = correct / annotated[label]
            precision = correct / np.arange(1, len(correct) + 1)
            # Decreasing envelope of the curve from recall 0 to 1; 0 beyond the last detection.
            recalls = np.concatenate(([0.0], recall, [recall[-1], 1.0]))
            envelope = decreasing_envelope(np.concatenate(([1.0], precision, [0.0, 0.0])))
            sampled = np.interp(RECALLS, recalls, envelope)
            average_precision[row, threshold] = ((sampled[1:] + sampled[:-1]) / 2 * np.diff(RECALLS)).sum()
            if threshold == AT_50:
                ascending = -scores[detections].astype(np.float64)  # np.interp needs ascending positions
                by_recall[row] = np.interp(GRID, recalls, envelope)
                precision_by_score[row] = np.interp(-GRID, ascending, precision, left=1.0)
                recall_by_score[row] = np.interp(-GRID, ascending, recall, left=0.0)
    return UltralyticsScores(present, by_recall, precision_by_score, recall_by_score, average_precision)


def running_mean(values: Float64Array, width: int) -> Float64Array:
    """Return the mean of `(N,)` values over `width` neighbours, an odd number; the ends are padded with edge values."""
    return np.convolve(np.pad(values, width // 2, mode="edge"), np.full(width, 1 / width), mode="valid")
