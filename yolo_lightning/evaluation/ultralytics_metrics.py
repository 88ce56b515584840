"""Precision, recall, F1 and mean average precision as defined by Ultralytics.

Source: `ap_per_class` of Ultralytics 8.4.190. Its average precision is the area under the decreasing envelope of
precision, interpolated at 101 recalls; COCO's is the mean of the envelope's own values. Detections of equal scores are
ranked by frame here; in Ultralytics their order is undefined.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from yolo_lightning.data.array_types import Float64Array, Int64Array
from yolo_lightning.evaluation.average_precision import AT_50, NO_GROUND_TRUTH, decreasing_envelope
from yolo_lightning.evaluation.matching import IOU_THRESHOLDS
from yolo_lightning.evaluation.ultralytics_matching import UltralyticsMatches

CURVE_POINTS = 1000
GRID = np.linspace(0.0, 1.0, CURVE_POINTS)  # score thresholds, or recalls, at which curves are sampled
RECALLS = np.linspace(0.0, 1.0, 101)  # recalls at which the envelope of precision is sampled

SMOOTHED_POINTS = CURVE_POINTS // 10 + 1
"""Width of the running mean over the F1 curve whose maximum is the best score threshold; odd."""

EPSILON = 1e-16  # avoids a division by zero


@dataclass(frozen=True, slots=True)
class UltralyticsScores:
    """Scores and curves of the K annotated classes."""

    labels: Int64Array  # `(K,)` class indices, ascending
    average_precision: Float64Array  # `(K, 10)` per `IOU_THRESHOLDS`, 0 to 1
    precision_by_recall: Float64Array  # `(K, 1000)` decreasing envelope at IoU 0.5 and the recalls `GRID`
    precision_by_score: Float64Array  # `(K, 1000)` at IoU 0.5, of the detections with a score >= `GRID`
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

    def scalars(self) -> dict[str, float]:
        """Return `precision`, `recall`, `f1`, `ultralytics_map_50`, `ultralytics_map`, 0 to 1; -1 without ground truth.

        Means over the annotated classes; the first three at the score threshold with the best mean F1.
        """
        per_class = self._per_class()
        if not len(self.labels):
            return dict.fromkeys(per_class, NO_GROUND_TRUTH)
        return {name: float(values.mean()) for name, values in per_class.items()}

    def of_class(self, label: int) -> dict[str, float]:
        """Return the scalars of an annotated class."""
        row = int(np.searchsorted(self.labels, label))
        assert self.labels[row] == label
        return {name: float(values[row]) for name, values in self._per_class().items()}

    def _per_class(self) -> dict[str, Float64Array]:
        at = self.best_point()
        return {
            "precision": self.precision_by_score[:, at],
            "recall": self.recall_by_score[:, at],
            "f1": self.f1_by_score()[:, at],
            "ultralytics_map_50": self.average_precision[:, AT_50],
            "ultralytics_map": self.average_precision.mean(axis=1),
        }


def ultralytics_scores(matches: UltralyticsMatches) -> UltralyticsScores:
    annotated = matches.annotated.numpy().sum(axis=0, dtype=np.int64)
    present = np.flatnonzero(annotated)
    order = np.lexsort((-matches.scores.numpy(), matches.labels.numpy()))
    scores = matches.scores.numpy()[order]
    hits = matches.hits.numpy()[order]
    edges = np.searchsorted(matches.labels.numpy()[order], np.arange(len(annotated) + 1))
    average_precision = np.zeros((len(present), len(IOU_THRESHOLDS)))
    by_recall, precision_by_score, recall_by_score = np.zeros((3, len(present), CURVE_POINTS))
    for row, label in enumerate(present.tolist()):
        detections = slice(edges[label], edges[label + 1])
        if detections.start == detections.stop:
            continue
        for threshold in range(len(IOU_THRESHOLDS)):
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
    return UltralyticsScores(present, average_precision, by_recall, precision_by_score, recall_by_score)


def named_ultralytics_scores(scores: UltralyticsScores, class_names: Sequence[str]) -> dict[str, float]:
    """Return the scores to log by name: of all classes, and of each annotated class (`precision/person`)."""
    values = scores.scalars()
    for label in scores.labels.tolist():
        values |= {f"{name}/{class_names[label]}": value for name, value in scores.of_class(label).items()}
    return values


def running_mean(values: Float64Array, width: int) -> Float64Array:
    """Return the mean of `(N,)` values over `width` neighbours, an odd number; the ends are padded with edge values."""
    return np.convolve(np.pad(values, width // 2, mode="edge"), np.full(width, 1 / width), mode="valid")
