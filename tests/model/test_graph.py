"""The graph: its convolutions, the operators of a training step, and initial weights."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from ultralytics.nn.tasks import DetectionModel

from tests.helpers.networks import module_of
from tests.helpers.operators import operators, vendor_operators
from tests.test_parity import random_batch
from yolo_lightning.conv import GemmConv2d
from yolo_lightning.data.formats.ltdv2 import CLASS_NAMES
from yolo_lightning.model.convolution_settings import ConvolutionSettings
from yolo_lightning.model.graph import build_graph, head_class_width
from yolo_lightning.model.layers import arrange
from yolo_lightning.model.loss import DetectionLoss
from yolo_lightning.module import YOLOModule


@pytest.mark.parametrize("checkpointing", [False, True])
def test_training_step_under_gemm_calls_no_vendor_operator(checkpointing: bool) -> None:
    module = YOLOModule(convolution=ConvolutionSettings(backend="gemm", activation_checkpointing=checkpointing))
    batch = random_batch()
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        total, _ = DetectionLoss(module.graph)(module.train()(batch.images), batch)
        total.backward()
    assert vendor_operators(trace) == set()
    assert any("native_batch_norm" in name for name in operators(trace))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"backend": "fast"}, r"model\.convolution\.backend must be auto, gemm or native, got 'fast'"),
        ({"algorithm": "best"}, r"model\.convolution\.algorithm must be auto, table or autotune, got 'best'"),
        ({"autotune_budget_s": -1.0}, r"model\.convolution\.autotune_budget_s must be >= 0, got -1\.0"),
        ({"class_names": ["a", "b", "a"]}, r"model\.class_names must differ from each other, got 'a' twice"),
        ({"probe_timeout_s": 0.0}, r"model\.convolution\.probe_timeout_s must be > 0, got 0\.0"),
    ],
)
def test_bad_choice_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        module_of(**change)


@pytest.fixture
def published(tmp_path: Path) -> Callable[[list[str]], Path]:
    """Writes a file as Ultralytics does, with the given class names."""

    def write(names: list[str]) -> Path:
        torch.manual_seed(1)
        model = DetectionModel("yolov8n.yaml", ch=3, nc=len(names), verbose=False)
        model.names = dict(enumerate(names))
        path = tmp_path / "yolov8n.pt"
        torch.save({"model": model.half(), "ema": None, "epoch": -1, "optimizer": None, "train_args": {}}, path)
        return path

    return write


@pytest.mark.parametrize(
    ("variant", "anchors"), [("yolov8n", 64), ("yolov8n-p2", 256), ("yolov10n", 64), ("yolo26n", 64)]
)
def test_first_boxes_are_four_strides_wide_and_high(variant: str, anchors: int) -> None:
    """Four strides of the finest level; with Ultralytics' biases, the boxes of all but yolo26 have 15 strides."""
    graph = build_graph(variant, CLASS_NAMES).eval()
    boxes, _ = graph(torch.zeros(1, 3, 64, 64))
    sides = boxes[0, 2:4, :anchors]
    stride = 64 / anchors**0.5
    assert (sides - 4 * stride).abs().max() < 0.05 * stride


def head_rows(graph: nn.Module) -> torch.Tensor:
    return graph.model[-1].cv3[0][-1].weight.detach().flatten(1)  # type: ignore[index,union-attr]


def test_published_weights_are_taken_over_with_the_rows_of_matching_classes(
    published: Callable[[list[str]], Path],
) -> None:
    names = [f"thing {number}" for number in range(80)]
    names[7], names[3], names[1] = "person", "Bicycle", "motorcycle"
    path = published(names)
    source = torch.load(path, weights_only=False)["model"].float()
    graph = arrange(build_graph("yolov8n", CLASS_NAMES, weights=str(path)), "gemm")
    for name in ("model.0.conv.weight", "model.22.cv2.0.2.bias"):
        torch.testing.assert_close(graph.state_dict()[name], source.state_dict()[name])
    torch.testing.assert_close(head_rows(graph)[:3], head_rows(source)[[7, 3, 1]])
    assert head_class_width(graph) == 80
    assert all(isinstance(module, GemmConv2d) for module in graph.modules() if isinstance(module, nn.Conv2d))
    assert graph.names == dict(enumerate(CLASS_NAMES))


def test_network_with_background_begins_as_the_published_one_on_gray_frames(
    published: Callable[[list[str]], Path],
) -> None:
    path = str(published(list(CLASS_NAMES)))
    generator = torch.Generator().manual_seed(0)
    frame, difference = (torch.rand(1, 1, 64, 64, generator=generator) for _ in range(2))
    colour, pair = (
        arrange(build_graph("yolov8n", CLASS_NAMES, weights=path, input_channels=n), "gemm").eval() for n in (3, 2)
    )
    with torch.no_grad():
        expected = colour(frame.expand(1, 3, 64, 64))[0]
        actual = pair(torch.cat((frame, difference), 1))[0]
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-3)


def gray_weight(weight: Tensor) -> Tensor:
    """What a first layer computes from the gray frame, without the difference from the background."""
    return weight[:, :1] if weight.shape[1] == 2 else weight.sum(1, keepdim=True)


@pytest.mark.parametrize(("stored", "channels"), [(1, 3), (1, 2), (2, 3), (2, 1), (3, 1)])
def test_first_layer_for_other_channels_computes_the_same_on_gray_frames(
    stored: int, channels: int, tmp_path: Path
) -> None:
    model = DetectionModel("yolov8n.yaml", ch=stored, nc=4, verbose=False)
    path = tmp_path / "weights.pt"
    torch.save({"model": model}, path)
    graph = build_graph("yolov8n", CLASS_NAMES, weights=str(path), input_channels=channels)
    name = "model.0.conv.weight"
    weight, expected = graph.state_dict()[name], model.state_dict()[name]
    torch.testing.assert_close(gray_weight(weight), gray_weight(expected))
    if channels == 2:
        assert not weight[:, 1].any()


def test_network_with_background_takes_over_what_fits_from_a_larger_graph(tmp_path: Path) -> None:
    module = YOLOModule("yolov8s")
    path = tmp_path / "larger.ckpt"
    torch.save({"hyper_parameters": dict(module.hparams), "state_dict": module.state_dict()}, path)
    with pytest.warns(
        UserWarning, match=r"larger\.ckpt has another graph than model\.variant: only \d+ of 355 tensors"
    ):
        graph = build_graph("yolov8n", CLASS_NAMES, weights=str(path), input_channels=2)
    assert graph.state_dict()["model.0.conv.weight"].shape == (16, 2, 3, 3)


def test_network_that_took_over_weights_is_built_again_without_them(published: Callable[[list[str]], Path]) -> None:
    module = YOLOModule(weights=str(published([f"thing {number}" for number in range(80)])))
    assert module.hparams["class_width"] == 80
    assert "weights" not in module.hparams
    again = YOLOModule(class_width=module.hparams["class_width"])
    again.load_state_dict(module.state_dict())
    batch = random_batch()
    with torch.no_grad():
        assert torch.equal(module.eval()(batch.images)[0], again.eval()(batch.images)[0])


@pytest.mark.parametrize(
    ("variant", "width", "accepted"),
    [("yolov8n", 32, ">= 64 and <= 100"), ("yolov8n", 128, ">= 64"), ("yolov8s", 64, "128")],
)
def test_width_of_the_class_head_that_no_number_of_classes_has_is_refused(
    variant: str, width: int, accepted: str
) -> None:
    with pytest.raises(ValueError, match=rf"model\.class_width must be {accepted}.* for {variant}, got {width}"):
        build_graph(variant, CLASS_NAMES, class_width=width)
    assert head_class_width(build_graph("yolov8n", CLASS_NAMES, class_width=99)) == 99


def test_own_checkpoint_serves_as_weights(tmp_path: Path) -> None:
    torch.manual_seed(2)
    module = YOLOModule()
    path = tmp_path / "own.ckpt"
    torch.save({"hyper_parameters": dict(module.hparams), "state_dict": module.state_dict()}, path)
    torch.manual_seed(3)
    other = YOLOModule(weights=str(path), convolution=ConvolutionSettings(backend="gemm"))
    for name, tensor in module.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], tensor)


def test_weights_of_another_family_are_a_warning(published: Callable[[list[str]], Path]) -> None:
    with pytest.warns(UserWarning, match="only .* tensors match, so that the network is trained nearly from scratch"):
        build_graph("yolo11n", CLASS_NAMES, weights=str(published(list("abcd"))))


class Intruder:
    """An object whose pickle calls a function of whoever made the file."""

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return os.rename, (os.environ["INTRUDERS_SOURCE"], os.environ["INTRUDERS_TARGET"])


def test_pickle_with_foreign_code_is_not_run_without_trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, published: Callable[[list[str]], Path]
) -> None:
    mark, moved = tmp_path / "mark", tmp_path / "moved"
    mark.touch()
    monkeypatch.setenv("INTRUDERS_SOURCE", str(mark))
    monkeypatch.setenv("INTRUDERS_TARGET", str(moved))
    content = torch.load(published(list("abcd")), weights_only=False)
    path = tmp_path / "intruder.pt"
    torch.save(content | {"note": Intruder()}, path)
    with pytest.raises(ValueError, match=r"a pickle that would run posix\.rename; .* set allow_pickle true"):
        build_graph("yolov8n", CLASS_NAMES, weights=str(path))
    assert mark.exists()
    build_graph("yolov8n", CLASS_NAMES, weights=str(path), allow_pickle=True)
    assert moved.exists()
