"""The matched detections of an evaluation, as far as the report draws them."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from yolo_lightning.evaluation.drift import DriftScores, drift_scores
from yolo_lightning.evaluation.record import EvaluationRecord
from yolo_lightning.evaluation.ultralytics_matching import CONFUSION_SCORE_THRESHOLD

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Confusion:
    """Which class was taken for which.

    Attributes:
        class_names: Index 0 first.
        counts: `(C + 1, C + 1)`, annotated class down, detected class across; the last of both is nothing.
        score_threshold: Least score of a detection that counts, 0 to 1.
    """

    class_names: tuple[str, ...]
    counts: npt.NDArray[np.int64]
    score_threshold: float


@dataclass(frozen=True, slots=True)
class Detections:
    """All frames of a split.

    Attributes:
        class_names: Index 0 first.
        annotated: `(C,)` objects of each class.
        labels: `(D,)` class index of each detection.
        scores: `(D,)` of each detection, 0 to 1.
        right: `(D,)` whether it is right at IoU 0.5.
        drift: Scores of all frames and of each month.
        confusion: As Ultralytics counts.
        epoch: In which the weights were trained last, from 0; None where it is not known.
        steps: Batches that they were trained with; None where it is not known.
    """

    class_names: tuple[str, ...]
    annotated: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]
    scores: Floats
    right: npt.NDArray[np.bool_]
    drift: DriftScores
    confusion: Confusion
    epoch: int | None = None
    steps: int | None = None


def precision_recall(detections: Detections, label: int) -> tuple[Floats, Floats]:
    """Recall and precision of the best 1, 2, ... detections of a class, precision made falling as COCO does.

    The class was annotated. Begins at recall 0 with the highest precision, and ends where the detections do.

    Returns:
        Two arrays of one length, 0 to 1; recall ascends.
    """
    own = detections.labels == label
    order = np.argsort(-detections.scores[own], kind="stable")
    found = np.cumsum(detections.right[own][order])
    recall = found / detections.annotated[label]
    precision = np.maximum.accumulate((found / np.arange(1, len(found) + 1))[::-1])[::-1]
    if not len(found):
        return np.zeros(1), np.zeros(1)
    return np.concatenate([[0.0], recall]), np.concatenate([precision[:1], precision])


def read_detections(path: Path) -> Detections:
    """The record of an evaluation, which `EvaluationRecord` has written.

    Raises:
        FileNotFoundError: If there is none.
        ValueError: If it is damaged.
    """
    record = EvaluationRecord.load(path)
    matches = record.matches
    by_annotated_class = record.ultralytics.confusion().T
    return Detections(
        class_names=record.class_names,
        annotated=matches.annotated.numpy().sum(axis=0, dtype=np.int64),
        labels=matches.labels.numpy().astype(np.int64),
        scores=matches.scores.numpy().astype(np.float64),
        right=(matches.hits.numpy() & 1) > 0,  # the lowest bit is IoU 0.5
        drift=drift_scores(matches),
        confusion=Confusion(record.class_names, by_annotated_class, CONFUSION_SCORE_THRESHOLD),
        epoch=record.epoch,
        steps=record.steps,
    )
