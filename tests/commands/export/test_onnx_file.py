"""The ONNX file against PyTorch."""

from pathlib import Path

import onnx
import onnxruntime
import pytest
import torch
from ultralytics import YOLO

from tests.helpers.networks import lively_checkpoint
from yolo_lightning.checkpoints.checkpoint_file import write_checkpoint
from yolo_lightning.commands.export.command import export
from yolo_lightning.commands.export.onnx_file import InferenceNetwork, compare, sample_images
from yolo_lightning.commands.export.pt_file import plain_network
from yolo_lightning.data.image_size import ImageSize
from yolo_lightning.model.network_settings import input_record, read_settings

pytestmark = pytest.mark.whole_run

IMAGE_SIZE = 64


def run(path: Path, images: torch.Tensor) -> torch.Tensor:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (output,) = session.run(None, {"images": images.numpy()})
    return torch.from_numpy(output)


@pytest.fixture(scope="module")
def decoding_file(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("onnx") / "plain.onnx"
    export(checkpoint=str(trained), format="onnx", output=str(path), image_size=IMAGE_SIZE)
    return path


def test_gray_images_are_three_equal_channels(trained: Path, tmp_path: Path) -> None:
    export(checkpoint=str(trained), format="onnx", output=str(tmp_path / "gray.onnx"), image_size=64, channels=1)
    images = sample_images(3, 1, IMAGE_SIZE)
    with torch.no_grad():
        expected = plain_network(trained)(images.expand(-1, 3, -1, -1))[0]
    assert torch.allclose(run(tmp_path / "gray.onnx", images), expected, atol=1e-3)


@pytest.mark.parametrize("shape", [(1, 64, 64), (3, 64, 64), (2, 96, 32)])
def test_file_decodes_as_pytorch_for_any_batch_and_size(
    decoding_file: Path, trained: Path, shape: tuple[int, int, int]
) -> None:
    batch, height, width = shape
    images = torch.rand(batch, 3, height, width, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = plain_network(trained)(images)[0]
    assert torch.allclose(run(decoding_file, images), expected, atol=1e-3)


def test_file_is_a_single_one_and_names_its_classes(decoding_file: Path) -> None:
    assert [path.name for path in decoding_file.parent.iterdir()] == ["plain.onnx"]
    about = {entry.key: entry.value for entry in onnx.load(decoding_file).metadata_props}
    assert about["names"] == "{0: 'person', 1: 'bicycle', 2: 'motorcycle', 3: 'vehicle'}"
    assert about["stride"] == "32"


def test_file_that_disagrees_is_refused(decoding_file: Path, trained: Path) -> None:
    other = InferenceNetwork(plain_network(trained))
    with torch.no_grad():
        other.detector.model[0].conv.weight *= 2
    with pytest.raises(RuntimeError, match="disagree"):
        compare(onnx.load(decoding_file), other, IMAGE_SIZE)


def test_network_with_background_has_two_channels(tmp_path: Path) -> None:
    file = lively_checkpoint(tmp_path, "input_channels", class_names=("a", "b"), input_channels=2, backend="gemm")
    recorded = input_record(1, ImageSize(IMAGE_SIZE, IMAGE_SIZE), background=True)
    write_checkpoint(torch.load(file, weights_only=True) | {"input": recorded}, file)
    with pytest.raises(ValueError, match=r"channels must be null for a network with data.input.background, got 1"):
        export(checkpoint=str(file), format="onnx", channels=1)
    export(checkpoint=str(file), format="onnx", output=str(tmp_path / "best.onnx"))
    images = torch.rand(2, 2, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = plain_network(file)(images)[0]
    assert torch.allclose(run(tmp_path / "best.onnx", images), expected, atol=1e-3)
    about = {entry.key: entry.value for entry in onnx.load(tmp_path / "best.onnx").metadata_props}
    assert about["channels"] == "2"
    export(checkpoint=str(file), output=str(tmp_path / "best.pt"))
    assert read_settings(tmp_path / "best.pt").background
    opened = YOLO(tmp_path / "best.pt").model.float().eval()
    with torch.no_grad():
        assert torch.allclose(opened(images)[0], expected, atol=1)  # half precision


def test_network_of_one_channel_is_gray(tmp_path: Path) -> None:
    file = lively_checkpoint(tmp_path, "input_channels", class_names=("a", "b"), input_channels=1)
    with pytest.raises(ValueError, match="channels must be null for a network of 1 channels, got 3"):
        export(checkpoint=str(file), format="onnx", channels=3)
    export(checkpoint=str(file), format="onnx", output=str(tmp_path / "best.onnx"), image_size=64)
    images = torch.rand(2, 1, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.allclose(run(tmp_path / "best.onnx", images), plain_network(file)(images)[0], atol=1e-3)
    export(checkpoint=str(file), output=str(tmp_path / "best.pt"), image_size=64)
    assert read_settings(tmp_path / "best.pt").exported_channels == 1
