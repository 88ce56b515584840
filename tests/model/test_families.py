"""One small graph per family: layers, operators of a step, gray images, branches of the head, folding."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from ultralytics.nn.tasks import DetectionModel

from tests.helpers.networks import enliven
from tests.helpers.operators import operators, vendor_operators
from tests.test_parity import GAINS, as_input, random_batch
from yolo_lightning.data.formats.ltdv2 import CLASS_NAMES
from yolo_lightning.model.convolution_settings import ConvolutionSettings
from yolo_lightning.model.detection_settings import DetectionSettings
from yolo_lightning.model.graph import build_graph
from yolo_lightning.model.layers import FoldedGraph, arrange, has_one_to_one_branch, image_layers, restore
from yolo_lightning.model.loss import DetectionLoss
from yolo_lightning.model.postprocess import best_boxes
from yolo_lightning.module import YOLOModule

pytestmark = pytest.mark.whole_run  # trains a step of each family

FAMILIES = ("yolov5n", "yolov8n-p2", "yolov9t", "yolov10n", "yolo11n", "yolo12n", "yolo26n")
DUAL = ("yolov10n", "yolo26n")


@pytest.mark.parametrize("variant", FAMILIES)
def test_no_vendor_operator_in_training_or_evaluation(variant: str) -> None:
    module, batch = YOLOModule(variant=variant, convolution=ConvolutionSettings(backend="gemm")), random_batch(images=1)
    batch = msgspec.structs.replace(batch, images=batch.images[..., :64, :64])
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        total, _ = module.detection_loss(module.train()(batch.images), batch)
        total.sum().backward()
        FoldedGraph(module.graph, with_loss=False)(batch.images / 255)
    assert "_Convolution" in operators(trace)
    assert vendor_operators(trace) == set()


@pytest.mark.usefixtures("ultralytics_epsilon")
@pytest.mark.parametrize("variant", FAMILIES)
def test_loss_and_gradients_equal_ultralytics_within_a_training(variant: str) -> None:
    torch.manual_seed(0)
    reference = DetectionModel(f"{variant}.yaml", ch=3, nc=len(CLASS_NAMES), verbose=False)
    batch = random_batch()
    graph: Any = arrange(build_graph(variant, CLASS_NAMES), "native")
    graph.load_state_dict(reference.state_dict())
    loss = DetectionLoss(graph)
    reference.args = SimpleNamespace(**GAINS, epochs=10)
    criterion = reference.init_criterion()
    for _ in range(3):
        if has_one_to_one_branch(reference):
            criterion.update()
    loss.set_epoch(3, 10)
    total, parts = loss(graph.train()(as_input(batch)), batch)
    fields = {"batch_idx": batch.sample_index.float(), "cls": batch.labels.float()[:, None], "bboxes": batch.boxes}
    expected, items = criterion(reference.train()(as_input(batch)), fields)
    total.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(total.sum(), expected.sum())
    assert parts == items
    for (name, parameter), (_, other) in zip(graph.named_parameters(), reference.named_parameters(), strict=True):
        assert (parameter.grad is None) == (other.grad is None), name
        assert parameter.grad is None or torch.equal(parameter.grad, other.grad), name


def test_weights_of_branches_are_those_of_every_epoch_in_any_order() -> None:
    graph: Any = arrange(build_graph("yolo26n", CLASS_NAMES), "native")
    graph.args = SimpleNamespace(**GAINS, epochs=5)
    criterion, expected = graph.init_criterion(), []
    for _ in range(5):
        expected.append((criterion.o2m, criterion.o2o))
        criterion.update()
    assert expected[0] == pytest.approx((0.8, 0.2))
    assert expected[-1] == pytest.approx((0.1, 0.9))
    loss, batch = DetectionLoss(graph), random_batch(images=1)
    raw = graph.train()(as_input(batch))
    for epoch in (0, 4, 2, 2, 0, 1, 3):
        loss.set_epoch(epoch, 5)
        loss(raw, batch)
        assert (loss._criterion.o2m, loss._criterion.o2o) == expected[epoch]
    loss.set_epoch(3, 9)  # a longer training
    graph.args = SimpleNamespace(**GAINS, epochs=9)
    criterion = graph.init_criterion()
    for _ in range(3):
        criterion.update()
    assert (loss._criterion.o2m, loss._criterion.o2o) == (criterion.o2m, criterion.o2o)


def lively(variant: str, convolution: Any = "native") -> Any:
    torch.manual_seed(0)
    graph: Any = arrange(build_graph(variant, CLASS_NAMES), convolution)
    enliven(graph)
    return graph.eval()


@pytest.mark.parametrize("variant", FAMILIES)
def test_gray_equals_colour_and_folding_changes_nothing(variant: str) -> None:
    graph, batch = lively(variant, "gemm").double(), random_batch(images=2)
    gray = as_input(batch)[:, :1].double()
    folded = FoldedGraph(graph)
    with torch.no_grad():
        expected, raw = graph(gray.expand(-1, 3, -1, -1))
    for actual in (graph(gray)[0], folded(gray)[0], FoldedGraph(graph, with_loss=False)(gray)[0]):
        torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6)
    if "one2one" in raw:
        assert folded(gray)[1].keys() == raw.keys()
    assert expected[:, 4:].amax() > 0.3, "the case shows nothing"


def test_both_layers_of_yolov9e_that_read_the_image_accept_gray() -> None:
    with torch.device("meta"):
        graph: Any = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Conv2d(3, 8, 3))
    assert len(image_layers(graph)) == 2


def assert_equal_up_to_ties(actual: Tensor, expected: Tensor) -> None:
    """Compare `(B, N, 6)` detections; where scores differ by rounding, the order and the last rows may differ."""
    torch.testing.assert_close(actual[..., 4], expected[..., 4], rtol=1e-4, atol=1e-4)
    for rows, other in zip(actual, expected, strict=True):
        is_equal = torch.isclose(rows[:, None], other, rtol=1e-4, atol=1e-3).all(2)
        is_certain = other[:, 4] > other[-1, 4] + 1e-4
        assert is_certain.any()
        assert is_equal.any(0)[is_certain].all()
        assert is_equal.any(1)[is_certain].all()


@pytest.mark.parametrize("variant", DUAL)
@pytest.mark.parametrize("class_agnostic", [False, True])
def test_one_to_one_boxes_equal_the_end_to_end_head_of_ultralytics(variant: str, class_agnostic: bool) -> None:
    graph, batch = lively(variant), random_batch()
    folded = [FoldedGraph(graph, one_to_one=True, with_loss=with_loss) for with_loss in (True, False)]
    restore(graph)
    graph.end2end, graph.model[-1].agnostic_nms, graph.model[-1].max_det = True, class_agnostic, 20
    with torch.no_grad():
        expected = graph(as_input(batch))[0]
    for network in folded:
        actual = best_boxes(network(as_input(batch))[0], 20, class_agnostic=class_agnostic)
        assert_equal_up_to_ties(actual, expected)
    assert (expected[..., 4] > 0.3).sum() > 20, "the case shows nothing"


def test_fewer_anchors_than_detections_leave_rows_empty() -> None:
    decoded = torch.rand(2, 7, 5, generator=torch.Generator().manual_seed(0))
    detections = best_boxes(decoded, 20)
    assert detections.shape == (2, 20, 6)
    assert ((detections[..., 4] > 0).sum(1) == 15).all()
    assert not detections[:, 15:, 4].any()


@pytest.mark.parametrize("variant", DUAL)
def test_module_evaluates_either_branch(variant: str) -> None:
    batch = msgspec.structs.replace(random_batch())
    modules = [
        YOLOModule(variant=variant, detections=DetectionSettings(one_to_one=one_to_one, score_threshold=0.3))
        for one_to_one in (False, True)
    ]
    for module in modules:
        module.graph.load_state_dict(lively(variant).state_dict())
    modules[0].detections = replace(modules[0].detections, iou_threshold=1.0)
    with torch.no_grad():
        boxes = [[prediction.boxes for prediction in module.eval().predict_step(batch, 0)] for module in modules]
    for folded in (False, True):
        module = modules[1]
        module._folded_graph = FoldedGraph(module.graph, one_to_one=True) if folded else None
        with torch.no_grad():
            raw = module._infer(batch.images)
            _, parts = module.detection_loss(raw, batch)
        assert set(parts) >= {"box_loss", "cls_loss"}
        torch.testing.assert_close(module._predict(raw, batch)[0].boxes, boxes[1][0], rtol=1e-4, atol=1e-2)
    assert boxes[0][0].shape != boxes[1][0].shape or not torch.equal(boxes[0][0], boxes[1][0])
