"""Several views of an image: geometry, merging, mirrored images, and where the module uses them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.callbacks.tiny_training import tiny_trainer
from tests.helpers.data_module import data_module
from tests.helpers.networks import enliven, module_of
from yolo_lightning.data.batch import Batch, Prediction, Sample, collate
from yolo_lightning.data.boxes import Letterbox
from yolo_lightning.data.image_size import STRIDE
from yolo_lightning.model.detection_settings import DetectionSettings
from yolo_lightning.model.graph import build_graph
from yolo_lightning.model.layers import FoldedGraph, arrange
from yolo_lightning.model.tta import (
    VIEWS,
    View,
    apply_view,
    fused,
    tta_predictions,
    view_candidates,
)
from yolo_lightning.module import YOLOModule

SHAPE = (64, 96)


@pytest.fixture(scope="module")
def network() -> FoldedGraph:
    """A network that finds something everywhere, with scores that differ."""
    torch.manual_seed(0)
    graph: Any = arrange(build_graph("yolov8n", ("a", "b")), "native")
    enliven(graph)
    return FoldedGraph(graph)


def images() -> Tensor:
    return torch.rand(2, 1, *SHAPE, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("view", VIEWS)
def test_a_marked_pixel_is_found_where_it_was(view: View) -> None:
    """The network stands in: it answers with the brightest place of what it is shown."""
    image = torch.zeros(1, 1, *SHAPE)
    image[..., 40:44, 20:24] = 1.0

    def brightest(shown: Tensor) -> Sequence[Tensor]:
        assert all(side % STRIDE == 0 for side in shown.shape[-2:])
        rows, columns = torch.where(shown[0, 0] > 0.7)
        sides = (columns.max() - columns.min() + 1, rows.max() - rows.min() + 1)
        centre = (columns.float().mean() + 0.5, rows.float().mean() + 0.5)
        return [torch.tensor([*centre, *sides, 0.9]).reshape(1, 5, 1)]

    box = view_candidates(brightest, image, view)[0, :, 0]
    torch.testing.assert_close(box, torch.tensor([22.0, 42.0, 4.0, 4.0, 0.9]), atol=1.0, rtol=0)
    if view.scale == 1:
        torch.testing.assert_close(box, torch.tensor([22.0, 42.0, 4.0, 4.0, 0.9]))
    # Sides are rounded to whole pixels, and boxes are scaled by the same factor.
    whole = view_candidates(brightest, torch.ones(1, 1, *SHAPE), view)[0, :, 0]
    torch.testing.assert_close(whole, torch.tensor([48.0, 32.0, 96.0, 64.0, 0.9]))


def test_padding_lies_right_and_below_in_the_gray_of_the_letterbox() -> None:
    shown = apply_view(torch.ones(1, 1, 64, 64), View(0.83, False))
    assert shown.shape[-2:] == (64, 64)
    torch.testing.assert_close(shown[..., :53, :53], torch.ones(1, 1, 53, 53))
    assert torch.unique(shown[..., 53:, :]).tolist() == pytest.approx([114 / 255])


def test_mirrored_frames_give_mirrored_predictions(network: FoldedGraph) -> None:
    batch = two_frames()
    settings = DetectionSettings(score_threshold=0.3, iou_threshold=0.6, max_detections=20)
    upright, mirrored = (
        tta_predictions(network, shown, network(shown)[0], batch, settings) for shown in (images(), images().flip(-1))
    )
    for prediction, other in zip(upright, mirrored, strict=True):
        assert len(prediction.labels) > 3
        boxes = other.boxes.clone()
        boxes[:, [0, 2]] = SHAPE[1] - boxes[:, [2, 0]]
        torch.testing.assert_close(other.scores, prediction.scores, atol=1e-4, rtol=0)
        assert torch.equal(other.labels, prediction.labels)
        torch.testing.assert_close(boxes, prediction.boxes, atol=1e-2, rtol=0)


def two_frames() -> Batch:
    """Frames that fill the input."""
    image, boxes, labels = np.zeros(SHAPE, np.uint8), np.zeros((0, 4), np.float32), np.zeros(0, np.int64)
    return collate([Sample(image, boxes, labels, name, SHAPE, Letterbox(1.0, 0, 0)) for name in "ab"])


def test_fusion_replaces_the_boxes_of_an_object_by_their_mean() -> None:
    def view(boxes: list[list[float]], scores: list[float], labels: list[int]) -> Prediction:
        box_tensor = torch.tensor(boxes).reshape(-1, 4)
        return Prediction("a", box_tensor, torch.tensor(scores), torch.tensor(labels), box_tensor)

    views = [
        view([[0, 0, 10, 10], [50, 50, 60, 60]], [0.8, 0.6], [0, 1]),
        view([[0, 0, 12, 10]], [0.4], [0]),
        view([[-2, 0, 10, 10], [0, 0, 10, 10]], [0.6, 0.9], [0, 1]),
        view([], [], []),
    ]
    prediction = fused(views, (55, 100), 3)
    assert prediction.labels.tolist() == [0, 1, 1]
    assert prediction.scores.tolist() == pytest.approx([1.8 / 4, 0.9 / 4, 0.6 / 4])
    assert prediction.unclipped is not None
    assert prediction.unclipped[0].tolist() == pytest.approx([-1.2 / 1.8, 0, 18.8 / 1.8, 10])
    assert prediction.boxes[0].tolist() == pytest.approx([0, 0, 18.8 / 1.8, 10])
    assert prediction.boxes[2].tolist() == [50, 50, 60, 55]
    assert len(fused(views, (55, 100), 1).scores) == 1


@pytest.mark.parametrize(
    ("stage", "tta", "expected"),
    [("validate", True, 1), ("test", True, 1), ("predict", True, 1), ("test", False, 0), ("fit", True, 0)],
)
def test_module_merges_views_outside_of_a_fit(
    stage: str,
    tta: bool,
    expected: int,
    look_alike: Path,
    index_root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []

    def counted(*arguments: Any) -> list[Prediction]:
        calls.append(arguments)
        return tta_predictions(*arguments)

    monkeypatch.setattr("yolo_lightning.module.tta_predictions", counted)
    data = data_module(str(look_alike), index_root=str(index_root), image_size=64, batch_size=4, num_workers=0)
    trainer = tiny_trainer(tmp_path, **{f"limit_{name}_batches": 1 for name in ("train", "val", "test", "predict")})
    getattr(trainer, stage)(module_of(tta=tta), data, **{"return_predictions": False} if stage == "predict" else {})
    assert len(calls) == expected


def test_settings_of_a_file_with_the_former_value_fusion_are_read() -> None:
    assert DetectionSettings.of_weights({"tta": "fusion", "iou_threshold": 0.6}).iou_threshold == 0.6


def test_checkpoints_do_not_remember_it() -> None:
    assert "tta" not in YOLOModule(detections=DetectionSettings(tta=True)).hparams["detections"]
