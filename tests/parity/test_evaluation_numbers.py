"""Inputs of the network in evaluation, and results of suppression, compared with Ultralytics."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from ultralytics.cfg import get_cfg
from ultralytics.data import build_yolo_dataset
from ultralytics.models.yolo.detect import DetectionValidator
from ultralytics.utils.metrics import ConfusionMatrix
from ultralytics.utils.nms import non_max_suppression

from tests.parity.training_twins import SCORES, random_batches
from yolo_lightning.data.batch import Batch, targets
from yolo_lightning.data.boxes import Letterbox, xywh_to_xyxy
from yolo_lightning.data.image_size import ImageSize
from yolo_lightning.data.transforms.letterbox import Labelled, letterbox
from yolo_lightning.evaluation.record import EvaluationCollection
from yolo_lightning.evaluation.ultralytics_metrics import ultralytics_scores
from yolo_lightning.model.convolution_settings import ConvolutionSettings
from yolo_lightning.model.detection_settings import DetectionSettings
from yolo_lightning.model.postprocess import predictions
from yolo_lightning.module import YOLOModule

CLASSES, ANCHORS = 4, 60


def crowded(seed: int) -> torch.Tensor:
    """Decoded output `(4, 4 + classes, anchors)` of boxes that overlap in clusters."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randint(1, 4, (4, 2, ANCHORS), generator=generator) * 15.0
    jitter = torch.randn(4, 2, ANCHORS, generator=generator)
    sides = torch.rand(4, 2, ANCHORS, generator=generator) * 4 + 10
    return torch.cat((centres + jitter, sides, torch.rand(4, CLASSES, ANCHORS, generator=generator)), 1)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 1000),
    score_threshold=st.sampled_from([0.0, 0.001, 0.25, 0.9]),
    iou_threshold=st.sampled_from([0.0, 0.3, 0.7, 1.0]),
    max_detections=st.sampled_from([1, 5, 300]),
    class_agnostic=st.booleans(),
)
def test_suppression_equals_ultralytics(
    seed: int, score_threshold: float, iou_threshold: float, max_detections: int, class_agnostic: bool
) -> None:
    decoded, batch = crowded(seed), random_batches(1)[0]
    expected = non_max_suppression(
        decoded.clone(),
        score_threshold,
        iou_threshold,
        agnostic=class_agnostic,
        multi_label=True,
        max_det=max_detections,
        max_time_img=1e9,
    )
    actual = predictions(
        (decoded,),
        batch,
        DetectionSettings(
            score_threshold=score_threshold,
            iou_threshold=iou_threshold,
            max_detections=max_detections,
            class_agnostic=class_agnostic,
        ),
    )
    for detections, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(detections.boxes, other[:, :4].clamp(0, 64), rtol=0, atol=1e-4)
        torch.testing.assert_close(detections.unclipped, other[:, :4], rtol=0, atol=1e-4)
        assert torch.equal(detections.scores, other[:, 4])
        assert detections.labels.tolist() == other[:, 5].int().tolist()


def test_agnostic_suppression_leaves_fewer_boxes() -> None:
    batch = random_batches(1)[0]
    counts = [
        sum(len(detections.labels) for detections in predictions((crowded(0),), batch, DetectionSettings(**numbers)))
        for numbers in (
            {"score_threshold": 0.1, "iou_threshold": 0.5, "max_detections": 300, "class_agnostic": agnostic}
            for agnostic in (False, True)
        )
    ]
    assert counts[1] < counts[0] / 2


@pytest.mark.parametrize("agnostic", [False, True])
def test_module_hands_its_settings_to_the_suppression(agnostic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    module = YOLOModule(
        convolution=ConvolutionSettings(backend="native"),
        detections=DetectionSettings(score_threshold=0.2, iou_threshold=0.3, max_detections=7, class_agnostic=agnostic),
    )
    seen: list[DetectionSettings] = []
    monkeypatch.setattr("yolo_lightning.module.predictions", lambda raw, batch, settings: seen.append(settings))
    module._predict(None, random_batches(1)[0])
    assert seen == [module.detections]


FRAME_SHAPE, INPUT = (96, 128), 64


def overhanging(seed: int, frames: int = 8, objects: int = 10) -> tuple[torch.Tensor, Batch]:
    """Return decoded output and frames whose objects touch the edge of the frame and are detected beyond the edge."""
    generator = torch.Generator().manual_seed(seed)
    placement = Letterbox.fit(*FRAME_SHAPE, ImageSize(INPUT, INPUT))
    low = torch.tensor([placement.left, placement.top]).float()
    high = low + torch.tensor([FRAME_SHAPE[1], FRAME_SHAPE[0]]) * placement.gain
    centres = low + torch.rand(frames, objects, 2, generator=generator) * (high - low)
    sides = 8 + 16 * torch.rand(frames, objects, 2, generator=generator)
    whole = torch.cat((centres, sides), 2)
    corners = xywh_to_xyxy(whole)
    seen = torch.cat((corners[..., :2].maximum(low), corners[..., 2:].minimum(high)), 2)
    labels = torch.randint(CLASSES, (frames, objects), generator=generator)
    noise = torch.randn(frames, objects, 4, generator=generator)
    scores = torch.rand(frames, objects, 1, generator=generator) * torch.nn.functional.one_hot(labels, CLASSES)
    batch = Batch(
        images=torch.zeros(frames, 1, INPUT, INPUT, dtype=torch.uint8),
        boxes=torch.cat(((seen[..., :2] + seen[..., 2:]) / 2, seen[..., 2:] - seen[..., :2]), 2).reshape(-1, 4) / INPUT,
        labels=labels.reshape(-1),
        sample_index=torch.arange(frames).repeat_interleave(objects),
        image_ids=tuple(map(str, range(frames))),
        frame_shapes=(FRAME_SHAPE,) * frames,
        letterboxes=(placement,) * frames,
        readable=(True,) * frames,
    )
    return torch.cat((whole + noise, scores), 2).transpose(1, 2), batch


def scores_of_their_validator(decoded: torch.Tensor, batch: Batch, folder: Path) -> tuple[dict[str, float], list[Any]]:
    """Return the figures and the confusion matrix of Ultralytics' `DetectionValidator`."""
    validator = DetectionValidator(save_dir=folder, args={"conf": 0.001, "iou": 0.7, "max_det": 300, "plots": False})
    names = {number: str(number) for number in range(CLASSES)}
    validator.device, validator.data = torch.device("cpu"), {}
    validator.dataloader = SimpleNamespace(dataset=SimpleNamespace())
    validator.init_metrics(SimpleNamespace(names=names))
    frames = {
        "img": batch.images,
        "batch_idx": batch.sample_index,
        "cls": batch.labels.float()[:, None],
        "bboxes": batch.boxes.clone(),
        "ori_shape": batch.frame_shapes,
        "ratio_pad": [None] * len(batch),
        "im_file": [f"{name}.png" for name in batch.image_ids],
    }
    confusion = ConfusionMatrix(names)
    detections = validator.postprocess(decoded.clone())
    for position, frame_detections in enumerate(detections):
        confusion.process_batch(frame_detections, validator._prepare_batch(position, frames))
    validator.update_metrics(detections, frames)
    figures = {
        SCORES[name].removeprefix("val/"): value for name, value in validator.get_stats().items() if name in SCORES
    }
    return figures | {"ultralytics_f1": float(validator.metrics.box.f1.mean())}, confusion.matrix.tolist()


@pytest.mark.parametrize("seed", range(3))
def test_scores_of_boxes_that_overhang_the_frame_are_theirs(seed: int, tmp_path: Path) -> None:
    decoded, batch = overhanging(seed)
    figures, confusion = scores_of_their_validator(decoded, batch, tmp_path)
    detections = predictions(
        (decoded,), batch, DetectionSettings(score_threshold=0.001, iou_threshold=0.7, max_detections=300)
    )
    collection = EvaluationCollection(CLASSES)
    collection.update(detections, targets(batch))
    collected = collection.compute("val", "abcd")
    assert 0.1 < figures["ultralytics_map"] < 0.9, "the case is too easy"
    assert ultralytics_scores(collected.ultralytics).scalars() == pytest.approx(figures, abs=1e-6)
    assert collected.ultralytics.confusion().tolist() == confusion


@pytest.mark.parametrize(
    ("height", "width", "size"), [(288, 384, 640), (288, 384, 416), (512, 640, 640), (96, 48, 64), (48, 48, 64)]
)
def test_letterbox_equals_ultralytics_square_one(tmp_path: Path, height: int, width: int, size: int) -> None:
    frame = np.random.default_rng(0).integers(0, 256, (height // 8, width // 8)).astype(np.uint8)
    frame = np.asarray(cv2.resize(frame, (width, height), interpolation=cv2.INTER_LINEAR), dtype=np.uint8)
    (tmp_path / "images").mkdir()
    (tmp_path / "labels").mkdir()
    cv2.imwrite(str(tmp_path / "images" / "frame.png"), frame)
    (tmp_path / "labels" / "frame.txt").write_text("2 0.4 0.6 0.2 0.3\n")
    arguments = get_cfg(overrides={"imgsz": size, "task": "detect"})
    data = {"names": {number: str(number) for number in range(CLASSES)}, "nc": CLASSES, "channels": 1}
    reference = build_yolo_dataset(arguments, str(tmp_path / "images"), 1, data, mode="val", rect=False)[0]
    boxes = np.array([[0.3 * width, 0.45 * height, 0.5 * width, 0.75 * height]], dtype=np.float32)
    # evaluation itself averages areas where it shrinks a frame, and then differs on purpose
    letterboxed, _ = letterbox(Labelled(frame, boxes, np.array([2])), ImageSize(size, size), shrink_by_area=False)
    assert np.abs(letterboxed.image.astype(int) - reference["img"][0].numpy()).max() <= 1
    corners = letterboxed.boxes[0] / size
    centre = [*(corners[:2] + corners[2:]) / 2, *(corners[2:] - corners[:2])]
    np.testing.assert_allclose(reference["bboxes"][0].numpy(), centre, atol=1e-6)
