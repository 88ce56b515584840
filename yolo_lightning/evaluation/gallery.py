"""Scores of single frames for the frame gallery."""

from collections.abc import Sequence

import msgspec
import numpy as np

from yolo_lightning.data.batch import Prediction, Target, without_equal_boxes
from yolo_lightning.evaluation.matching import match


class FrameScore(msgspec.Struct, frozen=True):
    """F1 of one frame and its counts."""

    image_id: str
    score: float  # F1, 0 to 1: twice the correct detections over objects plus detections
    objects: int  # number of annotated objects
    misses: int  # number of objects without a correct detection
    false_alarms: int  # number of incorrect detections

    def from_best(self) -> tuple[float, int, str]:
        """Return the sort key for best frames first; ties by most objects, then by id."""
        return -self.score, -self.objects, self.image_id

    def from_worst(self) -> tuple[float, int, str]:
        """Return the sort key for worst frames first; ties by most errors, then by id."""
        return self.score, -(self.misses + self.false_alarms), self.image_id


class GalleryFrame(FrameScore, frozen=True, kw_only=True):
    """A frame of the list, with its picture."""

    group: str  # `best` or `worst`
    file: str  # of the picture


class Gallery(msgspec.Struct, frozen=True):
    """The list of the best and worst frames of an evaluation, a JSON file."""

    score_threshold: float  # minimum score of a detection that counts and is drawn, 0 to 1
    class_names: tuple[str, ...]
    frames: tuple[GalleryFrame, ...]


def shown_detections(prediction: Prediction, score_threshold: float) -> Prediction:
    """Return the detections with a score >= `score_threshold`, on the CPU; of equal boxes, only the best class."""
    is_shown = prediction.scores >= score_threshold
    return without_equal_boxes(
        Prediction(
            prediction.image_id,
            prediction.boxes[is_shown],
            prediction.scores[is_shown],
            prediction.labels[is_shown],
        )
    )


def frame_scores(predictions: Sequence[Prediction], targets: Sequence[Target], classes: int) -> list[FrameScore | None]:
    """Return F1 at IoU 0.5 of each frame, None for frames with neither objects nor detections."""
    matches = match(predictions, targets, classes)
    is_correct = matches.hits & 1 > 0  # the lowest bit is IoU 0.5
    correct = np.bincount(matches.owners[is_correct], minlength=len(targets))
    objects = matches.annotated.sum(axis=1)
    scores: list[FrameScore | None] = []
    for target, hits, annotated, detected in zip(
        targets, correct.tolist(), objects.tolist(), matches.counts.tolist(), strict=True
    ):
        score = None
        if annotated + detected:
            f1 = 2 * hits / (annotated + detected)
            score = FrameScore(target.image_id, f1, annotated, annotated - hits, detected - hits)
        scores.append(score)
    return scores
