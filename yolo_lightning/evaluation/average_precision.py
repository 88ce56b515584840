"""Average precision and recall of any part of the matched frames, as COCO accumulates them.

Source: `COCOeval.accumulate` and `summarize` of pycocotools, as torchmetrics' `MeanAveragePrecision` calls them:
precision is made falling from the right and read at 101 recalls; a class counts where it was annotated.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from yolo_lightning.evaluation.matching import COUNTED_PER_CLASS, IOU_THRESHOLDS, Matches

NO_GROUND_TRUTH = -1.0
"""What COCO evaluation answers where nothing was annotated."""

DETECTION_LIMITS = (1, 10, COUNTED_PER_CLASS)
"""Detections per frame and class that `mar_1`, `mar_10` and `mar_100` look at."""

RECALLS = np.array(torch.linspace(0.0, 1.0, 101).tolist())
"""Where precision is read; rounded to float32, as in torchmetrics."""

AT_50, AT_75 = IOU_THRESHOLDS.index(0.5), IOU_THRESHOLDS.index(0.75)


@dataclass(frozen=True, slots=True)
class PartScores:
    """Scores of a part of the frames.

    Attributes:
        frames: How many frames.
        annotated: `(C,)` objects of each class.
        observed: `(C,)` whether the class was annotated or detected.
        precision: `(10, C)` average precision per IoU threshold, 0 to 1, -1 for classes without ground truth.
        recall: `(3, 10, C)` largest recall per `DETECTION_LIMITS` and IoU threshold, likewise.
    """

    frames: int
    annotated: npt.NDArray[np.int64]
    observed: npt.NDArray[np.bool_]
    precision: npt.NDArray[np.float64]
    recall: npt.NDArray[np.float64]

    def scalars(self) -> dict[str, float]:
        """`map` (IoU 0.50 to 0.95), `map_50`, `map_75`, `mar_1`, `mar_10`, `mar_100`, 0 to 1; -1 without ground truth.

        Classes without ground truth are left out of the means.
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
        """`map` and `map_50` of a class, -1 without ground truth."""
        return {"map": float(self.precision[:, label].mean()), "map_50": float(self.precision[AT_50, label])}


class RankedDetections:
    """The detections of all frames from best to worst, from which any part of the frames is scored.

    Sorted once; detections of equal score keep the order of the frames, so a part of them is in order, too.
    """

    def __init__(self, matches: Matches) -> None:
        order = np.lexsort((-matches.scores.numpy(), matches.labels.numpy()))
        self._annotated = matches.annotated.numpy().astype(np.int64)
        self._labels = matches.labels.numpy()[order]
        self._frames = np.repeat(np.arange(len(matches.keys), dtype=np.int32), matches.counts.numpy())[order]
        self._ranks = matches.ranks.numpy()[order]
        self._hits = matches.hits.numpy()[order]

    def scores(self, frames: npt.NDArray[np.bool_] | None = None) -> PartScores:
        """Scores of the frames where `frames`, `(F,)` bool, is true; of all where it is null."""
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
                right = np.flatnonzero((hits[own] >> threshold) & 1)
                precision[threshold, label] = average_precision(right, int(annotated[label]))
                recall[:, threshold, label] = recalls(ranks[own][right], int(annotated[label]), DETECTION_LIMITS)
        observed = (annotated > 0) | (np.diff(limits) > 0)
        return PartScores(int(chosen.sum()), annotated, observed, precision, recall)


def average_precision(right: npt.NDArray[np.int64], annotated: int) -> float:
    """Mean of the falling envelope of precision over `RECALLS`, 0 to 1.

    Args:
        right: Positions of the right detections among all of the class, from best to worst, ascending.
        annotated: Objects of the class, 1 or more.
    """
    found = np.arange(1, len(right) + 1)
    envelope = np.maximum.accumulate((found / (right + 1))[::-1])[::-1]
    first = np.searchsorted(found / annotated, RECALLS)
    return float(np.append(envelope, 0.0)[first].mean())


def recalls(ranks: npt.NDArray[np.uint8], annotated: int, limits: Sequence[int]) -> list[float]:
    """Share of the objects found by the best 1, 10, ... detections of each frame; `ranks` are of the right ones."""
    return [float((ranks < limit).sum() / annotated) for limit in limits]
