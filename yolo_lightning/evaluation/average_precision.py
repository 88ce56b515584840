"""COCO's average precision and recall of any subset of the matched frames.

Source: `COCOeval.accumulate` and `summarize` of pycocotools with the arguments of torchmetrics' `MeanAveragePrecision`:
precision is made monotonically decreasing and sampled at 101 recalls; classes without annotations are excluded.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from yolo_lightning.evaluation.matching import COUNTED_PER_CLASS, IOU_THRESHOLDS, Matches

NO_GROUND_TRUTH = -1.0  # COCO's score of a class or subset without annotated objects

DETECTION_LIMITS = (1, 10, COUNTED_PER_CLASS)
"""Maximum number of detections per frame and class in `mar_1`, `mar_10` and `mar_100`."""

RECALLS = np.array(torch.linspace(0.0, 1.0, 101).tolist())
"""Recalls at which precision is sampled; rounded to float32, as in torchmetrics."""

AT_50, AT_75 = IOU_THRESHOLDS.index(0.5), IOU_THRESHOLDS.index(0.75)


@dataclass(frozen=True, slots=True)
class PartScores:
    """Scores of a subset of the frames."""

    frames: int
    annotated: npt.NDArray[np.int64]  # `(C,)` number of objects per class
    observed: npt.NDArray[np.bool_]  # `(C,)` whether the class was annotated or detected
    # `(10, C)` average precision per IoU threshold, 0 to 1; -1 for classes without ground truth
    precision: npt.NDArray[np.float64]
    # `(3, 10, C)` maximum recall per `DETECTION_LIMITS` and IoU threshold, 0 to 1; -1 likewise
    recall: npt.NDArray[np.float64]

    def scalars(self) -> dict[str, float]:
        """Return `map`, `map_50`, `map_75`, `mar_1`, `mar_10`, `mar_100`, 0 to 1; -1 without ground truth.

        Classes without ground truth are excluded from the means.
        """
        classes = self.annotated > 0
        values = {
            "map": self.precision[:, classes],
            "map_50": self.precision[AT_50, classes],
            "map_75": self.precision[AT_75, classes],
        }
        values |= {f"mar_{limit}": self.recall[row][:, classes] for row, limit in enumerate(DETECTION_LIMITS)}
        return {name: float(part.mean()) if part.size else NO_GROUND_TRUTH for name, part in values.items()}

    def of_class(self, label: int) -> dict[str, float]:
        """Return `map` and `map_50` of a class, 0 to 1; -1 without ground truth."""
        return {"map": float(self.precision[:, label].mean()), "map_50": float(self.precision[AT_50, label])}


class RankedDetections:
    """The detections of all frames, sorted once by class and descending score, to score any subset of the frames.

    Detections of equal scores keep the order of the frames.
    """

    def __init__(self, matches: Matches) -> None:
        order = np.lexsort((-matches.scores.numpy(), matches.labels.numpy()))
        self._annotated = matches.annotated.numpy().astype(np.int64)
        self._labels = matches.labels.numpy()[order]
        self._frames = np.repeat(np.arange(len(matches.keys), dtype=np.int32), matches.counts.numpy())[order]
        self._ranks = matches.ranks.numpy()[order]
        self._hits = matches.hits.numpy()[order]

    def scores(self, frames: npt.NDArray[np.bool_] | None = None) -> PartScores:
        """Return the scores of the frames selected by `frames`, `(F,)`, or of all frames."""
        chosen = np.ones(len(self._annotated), dtype=np.bool_) if frames is None else frames
        of_part = chosen[self._frames]
        labels, ranks, hits = self._labels[of_part], self._ranks[of_part], self._hits[of_part]
        annotated = self._annotated[chosen].sum(axis=0)
        classes = len(annotated)
        limits = np.searchsorted(labels, np.arange(classes + 1))
        precision = np.full((len(IOU_THRESHOLDS), classes), NO_GROUND_TRUTH)
        recall = np.full((len(DETECTION_LIMITS), len(IOU_THRESHOLDS), classes), NO_GROUND_TRUTH)
        for label in np.flatnonzero(annotated):
            own = slice(limits[label], limits[label + 1])
            for threshold in range(len(IOU_THRESHOLDS)):
                correct = np.flatnonzero((hits[own] >> threshold) & 1)
                precision[threshold, label] = average_precision(correct, int(annotated[label]))
                for row, limit in enumerate(DETECTION_LIMITS):
                    recall[row, threshold, label] = (ranks[own][correct] < limit).sum() / annotated[label]
        observed = (annotated > 0) | (np.diff(limits) > 0)
        return PartScores(int(chosen.sum()), annotated, observed, precision, recall)


def average_precision(
    correct: npt.NDArray[np.int64], annotated: int, recalls: npt.NDArray[np.float64] = RECALLS
) -> float:
    """Return the mean of the decreasing envelope of precision at `recalls`, 0 to 1, of a class with >= 1 objects.

    `correct` contains the ascending ranks of the correct detections among all detections of the class.
    """
    found = np.arange(1, len(correct) + 1)
    envelope = np.maximum.accumulate((found / (correct + 1))[::-1])[::-1]
    first = np.searchsorted(found / annotated, recalls)
    return float(np.append(envelope, 0.0)[first].mean())
