"""Files of every family: `.pt` for plain Ultralytics, ONNX, and Ultralytics' files as weights."""

from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor
from ultralytics import YOLO
from ultralytics.nn.autobackend import AutoBackend
from ultralytics.nn.tasks import DetectionModel

from tests.helpers.networks import lively_checkpoint
from yolo_lightning.commands.export.command import export
from yolo_lightning.commands.export.onnx_file import InferenceNetwork, largest_gaps, sample_images
from yolo_lightning.commands.export.pt_file import plain_network
from yolo_lightning.data.formats.ltdv2 import CLASS_NAMES
from yolo_lightning.model.detection_settings import DetectionSettings
from yolo_lightning.model.network_settings import NetworkSettings
from yolo_lightning.module import YOLOModule

pytestmark = pytest.mark.whole_run

FAMILIES = ("yolov8n-p2", "yolov9t", "yolov10n", "yolo11n", "yolo12n", "yolo26n")
MORE = [
    "yolo26n",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("yolov5n", "yolov8n-p6", *FAMILIES[:-1])),
]
SIZE = 64


@pytest.fixture
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return lively_checkpoint(tmp_path, variant=request.param, class_names=CLASS_NAMES, backend="gemm")


def decoded(checkpoint: Path, images: Tensor) -> Tensor:
    with torch.no_grad():
        output: Tensor = plain_network(checkpoint)(images)[0]
    return output


def run(path: Path, images: Tensor) -> Tensor:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (output,) = session.run(None, {"images": images.numpy()})
    return torch.from_numpy(output)


@pytest.mark.parametrize("checkpoint", FAMILIES, indirect=True)
def test_plain_ultralytics_opens_the_file(checkpoint: Path) -> None:
    export(checkpoint=str(checkpoint), format="pt", image_size=SIZE)
    images = sample_images(2, 3, SIZE)
    network: Any = YOLO(str(checkpoint.with_suffix(".pt"))).model.float().eval()
    with torch.no_grad():
        output = network(images)[0]
        expected = plain_network(checkpoint).half().float()(images)[0]
    assert torch.equal(output, expected)
    assert output[:, 4:].amax() > 0.3, "the case shows nothing"
    rebuilt = DetectionModel(network.yaml, ch=3, verbose=False)  # as for a training
    assert [tuple(parameter.shape) for parameter in rebuilt.parameters()] == [
        tuple(parameter.shape) for parameter in network.parameters()
    ]


@pytest.mark.parametrize("checkpoint", MORE, indirect=True)
def test_onnx_equals_the_network_at_another_size(checkpoint: Path) -> None:
    export(checkpoint=str(checkpoint), format="onnx", image_size=128)
    images = torch.rand(3, 3, 64, 192, generator=torch.Generator().manual_seed(0))
    output = run(checkpoint.with_suffix(".onnx"), images)
    torch.testing.assert_close(output, decoded(checkpoint, images), rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("checkpoint", ["yolo26n", pytest.param("yolov10n", marks=pytest.mark.slow)], indirect=True)
def test_one_to_one_file_chooses_boxes_as_ultralytics(checkpoint: Path) -> None:
    options: dict[str, Any] = {"checkpoint": str(checkpoint), "one_to_one": True, "max_detections": 20}
    export(**options, format="onnx", image_size=SIZE)
    file = checkpoint.with_suffix(".onnx")
    about = {entry.key: entry.value for entry in onnx.load(file).metadata_props}
    assert about["end2end"] == "True"
    graph = plain_network(checkpoint)
    graph.end2end, graph.model[-1].max_det = True, 20
    settings = NetworkSettings(detections=DetectionSettings(one_to_one=True, max_detections=20))
    network = InferenceNetwork(plain_network(checkpoint), 3, settings)
    for images in (sample_images(3, 3, SIZE), torch.rand(1, 3, 32, 32)):  # 32 pixels: 21 anchors
        with torch.no_grad():
            expected = graph(images)[0]
        assert expected.shape[1:] == (20, 6)
        assert max(largest_gaps(network, run(file, images), expected)) < 1e-2
    backend: Any = AutoBackend(str(file), torch.device("cpu"))
    assert backend.end2end


@pytest.mark.parametrize("checkpoint", ["yolo26n"], indirect=True)
def test_one_to_one_file_has_as_many_classes_per_box_as_the_validation(checkpoint: Path) -> None:
    images = sample_images(1, 3, SIZE)
    positions: dict[bool, list[int]] = {}
    for multi_label in (True, False):
        detections = DetectionSettings(one_to_one=True, max_detections=84, multi_label=multi_label)  # 84 anchors
        network = InferenceNetwork(plain_network(checkpoint), 3, NetworkSettings(detections=detections))
        with torch.no_grad():
            boxes = network(images)[0, :, :4]
        positions[multi_label] = boxes.unique(dim=0, return_counts=True)[1].tolist()
    assert max(positions[True]) > 1
    assert max(positions[False]) == 1


@pytest.mark.parametrize("checkpoint", ["yolo26n"], indirect=True)
def test_file_with_other_boxes_is_noticed(checkpoint: Path) -> None:
    network = InferenceNetwork(
        plain_network(checkpoint), 3, NetworkSettings(detections=DetectionSettings(one_to_one=True, max_detections=20))
    )
    with torch.no_grad():
        expected = network(sample_images(2, 3, SIZE))
    for column, change in ((0, 1.0), (4, 0.01), (5, 1.0)):
        other = expected.clone()
        other[0, 3, column] += change
        assert max(largest_gaps(network, other, expected)) >= min(change, 1.0) / 2, column


@pytest.mark.parametrize("variant", FAMILIES)
def test_weights_of_ultralytics_are_taken_over(variant: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    network = DetectionModel(f"{variant}.yaml", ch=3, nc=80, verbose=False)
    network.names = {number: f"thing {number}" for number in range(80)} | {7: "person"}
    path = tmp_path / "published.pt"
    torch.save({"model": network.half(), "ema": None, "epoch": -1, "optimizer": None, "train_args": {}}, path)
    torch.manual_seed(2)
    graph: Any = YOLOModule(variant=variant, weights=str(path)).graph
    expected = network.float().state_dict()
    weights = graph.state_dict()
    other = [name for name in weights if not torch.equal(weights[name], expected.get(name, weights[name] + 1))]
    assert all(".cv3." in name or ".one2one_cv3." in name for name in other)
    assert all(weights[name].shape[0] == len(CLASS_NAMES) for name in other)
    for branch in {name.rpartition(".cv3.")[0] for name in other if ".cv3." in name}:
        row = f"{branch}.cv3.0.2.weight"
        assert torch.equal(weights[row][0], expected[row][7])
