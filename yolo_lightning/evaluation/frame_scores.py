"""How well one frame went, and the sizes of all boxes: what the gallery counts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from yolo_lightning.data.batch import Prediction, Target
from yolo_lightning.evaluation.matching import match

SIZE_EDGES = (0.0, *(round(2.0 ** (half / 2), 1) for half in range(2, 21)))
"""Of the bins of sizes, pixels: two per doubling, 2 to 1024; the last bin holds all that is larger."""


@dataclass(frozen=True, slots=True)
class FrameScore:
    """How well one frame went.

    Attributes:
        image_id: Id of the frame.
        score: F1, 0 to 1: twice the right detections over objects plus detections.
        objects: Annotated ones.
        misses: Objects that no detection is right about.
        false_alarms: Detections that are not right.
    """

    image_id: str
    score: float
    objects: int
    misses: int
    false_alarms: int

    def from_best(self) -> tuple[float, int, str]:
        """Sorts the best first; of equals the one with most objects, then by id."""
        return -self.score, -self.objects, self.image_id

    def from_worst(self) -> tuple[float, int, str]:
        """Sorts the worst first; of equals the one with most errors, then by id."""
        return self.score, -(self.misses + self.false_alarms), self.image_id


def above(prediction: Prediction, score_threshold: float) -> Prediction:
    """The detections that score `score_threshold` and more, on the CPU."""
    chosen = prediction.scores >= score_threshold
    return Prediction(
        prediction.image_id,
        prediction.boxes[chosen].cpu(),
        prediction.scores[chosen].cpu(),
        prediction.labels[chosen].cpu(),
    )


def frame_scores(predictions: Sequence[Prediction], targets: Sequence[Target], classes: int) -> list[FrameScore | None]:
    """F1 at IoU 0.5 of each frame; None where nothing is annotated and nothing detected.

    Args:
        predictions: The detections that count.
        targets: What is annotated in the same frames.
        classes: Number of classes; labels are below it.
    """
    matches = match(predictions, targets, classes)
    counts = matches.counts.numpy()
    right = np.bincount(
        np.repeat(np.arange(len(counts)), counts),
        weights=matches.hits.numpy() & 1,  # the lowest bit is IoU 0.5
        minlength=len(counts),
    ).astype(np.int64)
    objects = matches.annotated.numpy().sum(axis=1)
    numbers = zip(targets, right.tolist(), objects.tolist(), counts.tolist(), strict=True)
    return [
        FrameScore(target.image_id, 2 * found / (annotated + detected), annotated, annotated - found, detected - found)
        if annotated + detected
        else None
        for target, found, annotated, detected in numbers
    ]


class SizeCounts:
    """How many boxes there are of each size; a size is the square root of the area, in pixels of the frame."""

    def __init__(self) -> None:
        self.frames = 0
        self._objects = np.zeros(len(SIZE_EDGES), np.int64)
        self._detections = np.zeros(len(SIZE_EDGES), np.int64)

    def add(self, prediction: Prediction, target: Target) -> None:
        """One more frame."""
        self.frames += 1
        self._objects += by_size(target.boxes)
        self._detections += by_size(prediction.boxes)

    def as_json(self) -> dict[str, Any]:
        """Lower edges of the bins, and the counts; `frames` says of how many frames."""
        return {
            "frames": self.frames,
            "edges_px": list(SIZE_EDGES),
            "objects": self._objects.tolist(),
            "detections": self._detections.tolist(),
        }


def by_size(boxes: Tensor) -> Any:
    """Counts of `(N, 4)` xyxy boxes in the bins, as `(B,)` int64."""
    sides = (boxes[:, 2:] - boxes[:, :2]).clamp(min=0).double().cpu().numpy()
    sizes = np.sqrt(sides[:, 0] * sides[:, 1])
    return np.bincount(np.searchsorted(SIZE_EDGES, sizes, side="right") - 1, minlength=len(SIZE_EDGES))
