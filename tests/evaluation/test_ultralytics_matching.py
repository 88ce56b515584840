"""Matching and confusion matrix against Ultralytics' implementation."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor
from ultralytics.engine.validator import BaseValidator
from ultralytics.utils.metrics import ConfusionMatrix, box_iou

from tests.evaluation.detections import CLASS_NAMES, OBJECT, Frame, drawn_frames, prediction, random_frames, target
from yolo_lightning.evaluation.matching import IOU_THRESHOLDS, match
from yolo_lightning.evaluation.ultralytics_matching import UltralyticsMatches, match_as_ultralytics

CLASSES = len(CLASS_NAMES)


def matched(frames: Sequence[Frame]) -> UltralyticsMatches:
    return match_as_ultralytics([detections for detections, _ in frames], [truth for _, truth in frames], CLASSES)


class Matcher(BaseValidator):
    """Ultralytics' matching without the rest of a validation."""

    def __init__(self) -> None:
        self.iouv = torch.linspace(0.5, 0.95, 10)


def best_first(frame: Frame) -> tuple[Tensor, Tensor, Tensor]:
    detections = frame[0]
    order = torch.argsort(-detections.scores, stable=True)
    return detections.boxes[order], detections.scores[order], detections.labels[order]


def their_hits(frame: Frame) -> list[int]:
    boxes, _, labels = best_first(frame)
    truth = frame[1]
    if not len(truth.labels) or not len(labels):
        return [0] * len(labels)
    right = Matcher().match_predictions(labels.float(), truth.labels.float(), box_iou(truth.boxes, boxes))
    return [int(sum(int(bit) << place for place, bit in enumerate(row))) for row in right.tolist()]


def their_confusion(frames: Sequence[Frame]) -> list[list[float]]:
    matrix = ConfusionMatrix(dict(enumerate(CLASS_NAMES)))
    for frame in frames:
        boxes, scores, labels = best_first(frame)
        matrix.process_batch(
            {"cls": labels.float(), "conf": scores, "bboxes": boxes},
            {"cls": frame[1].labels.float(), "bboxes": frame[1].boxes},
        )
    values: list[list[float]] = matrix.matrix.tolist()
    return values


@pytest.mark.parametrize("digits", [9, 1], ids=["distinct", "ties"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_matches_of_random_frames_are_theirs(seed: int, digits: int) -> None:
    frames = random_frames(seed, frames=30, digits=digits)
    matches = matched(frames)
    assert int((matches.hits > 0).sum()) > 20, "the case is too easy"
    assert matches.hits.tolist() == [bits for frame in frames for bits in their_hits(frame)]
    assert matches.scores.tolist() == torch.cat([best_first(frame)[1] for frame in frames]).tolist()
    assert matches.counts.tolist() == [len(detections.labels) for detections, _ in frames]
    confusion = matches.confusion()
    assert np.count_nonzero(confusion - np.diag(confusion.diagonal())) > 6
    assert confusion.tolist() == their_confusion(frames)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(frames=drawn_frames())
def test_matches_of_any_frames_are_theirs(frames: list[Frame]) -> None:
    matches = matched(frames)
    assert matches.hits.tolist() == [bits for frame in frames for bits in their_hits(frame)]
    assert matches.confusion().tolist() == their_confusion(frames)


def test_every_detection_of_a_class_counts() -> None:
    """COCO evaluates 100 detections only."""
    alarms = torch.cat([OBJECT + 200 + number for number in range(100)])
    frame = (prediction("a", torch.cat([alarms, OBJECT]), [0.9] * 100 + [0.5], [0] * 101), target("a", OBJECT, [0]))
    assert matched([frame]).hits.tolist() == [0] * 100 + [(1 << len(IOU_THRESHOLDS)) - 1]
    assert not (match([frame[0]], [frame[1]], CLASSES).hits & ((1 << len(IOU_THRESHOLDS)) - 1)).any()
