"""Candidates, and that NMS of the candidates equals NMS of the complete output."""

import numpy as np
import pytest
import torch
from torch import Tensor

from yolo_lightning.commands.sweep.candidates import keep_candidates, rebuilt, suppressed
from yolo_lightning.data.batch import Batch, Prediction, Sample, collate
from yolo_lightning.data.boxes import Letterbox
from yolo_lightning.model.detection_settings import DetectionSettings
from yolo_lightning.model.postprocess import predictions

CLASSES, ANCHORS, SIDE = 3, 60, 96


def batch_of(count: int) -> Batch:
    """Frames of twice the input resolution; the second one is unreadable."""
    image, boxes = np.zeros((SIDE, SIDE), np.uint8), np.array([[8, 8, 40, 24]], np.float32)
    placed = Letterbox(0.5, 0, 0)
    return collate(
        [
            Sample(image, boxes, np.array([1]), f"{number}", (2 * SIDE, 2 * SIDE), placed, readable=number != 1)
            for number in range(count)
        ]
    )


def decoded(count: int, seed: int = 0) -> Tensor:
    """Overlapping boxes, with ties among the scores."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.rand(count, 2, ANCHORS, generator=generator) * 40 + 20
    sides = torch.rand(count, 2, ANCHORS, generator=generator) * 20 + 10
    scores = torch.rand(count, CLASSES, ANCHORS, generator=generator).round(decimals=2) ** 2
    return torch.cat([centres, sides, scores], dim=1)


def assert_same(found: list[Prediction], expected: list[Prediction]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.image_id == other.image_id
        assert torch.equal(one.scores, other.scores)
        assert torch.equal(one.labels, other.labels)
        assert torch.equal(one.boxes, other.boxes)


@pytest.mark.parametrize("iou_threshold", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("class_agnostic", [False, True])
def test_suppression_equals_that_of_the_whole_output(iou_threshold: float, class_agnostic: bool) -> None:
    batch, output = batch_of(4), decoded(4)
    options = {"iou_threshold": iou_threshold, "max_detections": 12, "class_agnostic": class_agnostic}
    kept = keep_candidates(output, batch, score_threshold=0.05, limit=10_000)
    found = suppressed(kept, CLASSES, DetectionSettings(score_threshold=0.05, **options))
    assert_same(found, predictions((output,), batch, DetectionSettings(score_threshold=0.05, **options)))  # type: ignore[arg-type]
    assert [one.image_id for one in found] == ["0", "2", "3"]


def test_the_best_are_kept_and_frames_that_lose_some_are_counted() -> None:
    output = decoded(3)
    output[2, 4:, 5:] = 0
    kept = keep_candidates(output, batch_of(3), score_threshold=0.0, limit=20)
    assert kept.cut == 2
    assert kept.counts.tolist()[:2] == [20, 20]
    best = output[0, 4:].flatten().sort(descending=True).values[:20]
    assert torch.equal(kept.scores[:20].sort(descending=True).values, best)
    assert kept.counts[2] <= 15


def test_what_is_rebuilt_holds_each_candidate_where_it_belongs() -> None:
    output = decoded(2)
    kept = keep_candidates(output, batch_of(2), score_threshold=0.3, limit=1000)
    again = rebuilt(kept, CLASSES)
    for number in range(2):
        scores = output[number, 4:].flatten()
        assert torch.equal(again[number, 4:].sum(0).sort().values[-5:], scores.sort().values[-5:])
        assert (again[number, 4:] > 0).sum() == (scores > 0.3).sum()


def test_frames_without_any_candidate_are_predicted_empty() -> None:
    kept = keep_candidates(torch.zeros(1, 4 + CLASSES, ANCHORS), batch_of(1), score_threshold=0.0, limit=10)
    (found,) = suppressed(
        kept, CLASSES, DetectionSettings(score_threshold=0.0, iou_threshold=0.5, max_detections=5, class_agnostic=False)
    )
    assert found.boxes.shape == (0, 4)


def test_a_candidate_takes_22_bytes() -> None:
    kept = keep_candidates(decoded(2), batch_of(2), score_threshold=0.1, limit=1000)
    assert sum(tensor.nbytes for tensor in (kept.boxes, kept.scores, kept.labels)) == 22 * len(kept.scores)


def test_targets_are_kept_in_frame_pixels_without_the_image() -> None:
    kept = keep_candidates(decoded(1), batch_of(1), score_threshold=0.1, limit=10)
    assert kept.targets[0].boxes[0].tolist() == pytest.approx([16, 16, 80, 48])
    assert kept.frames.images.numel() == 0
