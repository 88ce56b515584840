"""Untrusted `.pt` files: the network is built from its description, and no code of the file runs."""

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from ultralytics.nn.modules import block
from ultralytics.nn.tasks import ClassificationModel, DetectionModel, SegmentationModel

from yolo_lightning.checkpoints.torch_archive import check_tensors
from yolo_lightning.detector import Detector
from yolo_lightning.errors import UserError
from yolo_lightning.model.graph import open_ultralytics, read_network, ultralytics_description
from yolo_lightning.model.read_pt import complete_names

FAMILIES = ("yolov8n", "yolov9t", "yolov10n", "yolo11n", "yolo12n", "yolo26n")


def network(variant: str = "yolov8n", classes: int = 3) -> Any:
    torch.manual_seed(1)
    model = DetectionModel(f"{variant}.yaml", ch=3, nc=classes, verbose=False)
    model.names = {number: f"class {number}" for number in range(classes)}
    return model.eval()


def write(path: Path, model: Any, **more: Any) -> Path:
    torch.save({"model": model, "ema": None, "epoch": -1, "train_args": {"imgsz": 64}, **more}, path)
    return path


@pytest.mark.parametrize("variant", FAMILIES)
def test_every_family_is_rebuilt_with_equal_predictions(variant: str, tmp_path: Path) -> None:
    model = network(variant)
    file = write(tmp_path / "weights.pt", model)
    rebuilt = read_network(file)
    images = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(rebuilt.eval()(images)[0], model(images)[0])
    assert rebuilt.names == model.names


@pytest.mark.parametrize("allow_pickle", [False, True])
def test_names_of_a_file_belong_to_the_classes_by_index(allow_pickle: bool, tmp_path: Path) -> None:
    model = network()
    model.names = {2: "c", "0": "a", 1: "b", 3: "d"}
    file = write(tmp_path / "weights.pt", model)
    _, rebuilt = open_ultralytics(file, allow_pickle=allow_pickle)
    assert list(rebuilt.names.items()) == [(0, "a"), (1, "b"), (2, "c")]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a", "b", "c", "d"], ["a", "b", "c"]),
        ({0: 7, 1: None, 2: 1.5}, ["7", "None", "1.5"]),
        ({1: "a", 2: "b", 3: "c"}, ["0", "a", "b"]),
        (["a"], ["a", "1", "2"]),
        (None, ["0", "1", "2"]),
    ],
)
def test_every_class_has_a_name(names: Any, expected: list[str], recwarn: pytest.WarningsRecorder) -> None:
    assert complete_names(names, 3) == dict(enumerate(expected))
    unnamed = [index for index in range(3) if expected[index] == str(index)]
    messages = [str(warning.message) for warning in recwarn]
    assert len(messages) == bool(unnamed)
    for message in messages:
        assert f"no names for {len(unnamed)} of their classes 0 to 2, which are named by their numbers" in message


@pytest.mark.parametrize("allow_pickle", [False, True])
def test_gray_network_of_older_ultralytics_is_read(allow_pickle: bool, tmp_path: Path) -> None:
    """Ultralytics called the number of input channels `ch` before it was `channels`."""
    model = DetectionModel("yolov8n.yaml", ch=1, nc=3, verbose=False)
    model.yaml["ch"] = model.yaml.pop("channels")
    file = write(tmp_path / "weights.pt", model)
    assert ultralytics_description(file, allow_pickle=allow_pickle)["input_channels"] == 1
    assert Detector(file, device="cpu", image_size=64, allow_pickle=allow_pickle).settings.channels == 1


def test_class_head_of_another_width_is_rebuilt(tmp_path: Path) -> None:
    model = network(classes=3)
    model.load(network(classes=80), verbose=False)
    rebuilt = read_network(write(tmp_path / "weights.pt", model))
    assert rebuilt.model[-1].cv3[0][-1].in_channels == 80
    assert torch.equal(
        rebuilt.state_dict()["model.22.cv3.0.1.conv.weight"], model.state_dict()["model.22.cv3.0.1.conv.weight"]
    )


class Downloader:
    """Is stored as a call of Ultralytics' `TorchVision`, whose constructor downloads weights."""

    def __reduce__(self) -> tuple[object, tuple[str, ...]]:
        return block.TorchVision, ("512", "resnet18", "DEFAULT")


def test_no_constructor_of_a_layer_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "weights.pt", network(), note=Downloader())
    calls: list[Any] = []
    monkeypatch.setattr(block.TorchVision, "__init__", lambda self, *arguments: calls.append(arguments))
    open_ultralytics(file, allow_pickle=False)
    assert calls == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"activation": "__import__('os').getcwd()"}, "activation"),
        ({"activation": 3}, "activation"),
        ({"nc": 99999999999}, "number of classes must be 1 to 10,000"),
        ({"nc": [3]}, "number of classes"),
        ({"backbone": [[-1, 1, "TorchVision", [512, "resnet18"]]]}, "its layers must .* got 'TorchVision'"),
        ({"backbone": [[-1, 1, ["Conv"], [64]]]}, "its layers must be of"),
        ({"backbone": [[-1, 1, "Conv", ["d", 3, 2]]]}, "unsupported repeats or arguments"),
        ({"backbone": [[-1, 10**9, "Conv", [64, 3, 2]]]}, "unsupported repeats or arguments"),
        ({"backbone": [[-1, 1, "Conv"]]}, "must be a list of source, repeats, name, arguments"),
        ({"backbone": [], "head": []}, "must have 1 to 256 layers, got 0"),
        ({"scales": {"n": [1e9, 1e9, 1024]}}, "scales"),
        ({"channels": -1}, "number of channels"),
    ],
)
def test_description_with_anything_but_known_layers_is_refused(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    model = network()
    model.yaml = model.yaml | change
    file = write(tmp_path / "weights.pt", model)
    with pytest.raises(ValueError, match=message) as error:
        open_ultralytics(file, allow_pickle=False)
    assert "\n" not in str(error.value)
    assert f"weights {file} is not an Ultralytics checkpoint: " in str(error.value)


@pytest.mark.parametrize("allow_pickle", [False, True])
def test_network_of_another_task_is_named(tmp_path: Path, allow_pickle: bool) -> None:
    file = write(tmp_path / "weights.pt", ClassificationModel("yolov8n-cls.yaml", nc=3, verbose=False))
    with pytest.raises(UserError, match=r"weights .* must be of a network for detection \(.*\), got Classify") as error:
        Detector(file, allow_pickle=allow_pickle, device="cpu")
    assert "pickle" not in str(error.value)


def needs_13_terabytes(model: Any) -> None:
    model.yaml["backbone"][0] = [-1, 1, "Conv", [8192, 8191, 2]]


def has_a_layer_without_a_source(model: Any) -> None:
    model.yaml["backbone"][1] = [-9, 1, "Conv", [32, 3, 2]]


def has_an_expanded_tensor(model: Any) -> None:
    model.model[0].conv.weight = nn.Parameter(torch.zeros(1).expand(1 << 40))


def contains_itself(model: Any) -> None:
    model.model[0]._modules["again"] = again = nn.Identity()
    again._modules["again"] = again


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (needs_13_terabytes, "does not fit the network's description"),
        (has_a_layer_without_a_source, "description cannot be built: list index out of range"),
        (has_an_expanded_tensor, "more elements than are stored"),
        (contains_itself, "32 levels"),
    ],
)
def test_network_that_cannot_be_built_is_refused(change: Callable[[Any], None], message: str, tmp_path: Path) -> None:
    model = network()
    change(model)
    with pytest.raises(ValueError, match=message):
        open_ultralytics(write(tmp_path / "weights.pt", model), allow_pickle=False)


def compressed(source: Path, target: Path) -> Path:
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    return target


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda file: compressed(write(file, network()), file.with_name("b.pt")), "is compressed"),
        (lambda file: write_bytes(file, b"not an archive"), "not an archive of torch.save"),
        (lambda file: write_bytes(file, b""), "not an archive of torch.save"),
        (lambda file: saved(file, [1, 2]), "contains no dictionary"),
        (lambda file: saved(file, {"model": 3}), "no network under the key 'model', but model"),
        (lambda file: saved(file, {"0.weight": 3, "0.bias": 3}), "'model', but 0.weight, 0.bias"),
        (lambda file: saved(file, {"state_dict": {}}), r"a checkpoint of this package must be named \.ckpt"),
        (lambda file: zipped(file, "a.txt"), "but another zip archive"),
        (lambda file: write_bytes(file, b"<html>"), "it is a web page"),
        (lambda file: write_bytes(file, write(file, network()).read_bytes()[:-500]), "not an archive"),
    ],
)
def test_damaged_files_are_refused_in_one_line(make: Callable[[Path], Path], message: str, tmp_path: Path) -> None:
    file = make(tmp_path / "a.pt")
    with pytest.raises(ValueError, match=message) as error:
        open_ultralytics(file, allow_pickle=False)
    assert "\n" not in str(error.value)
    assert ("set allow_pickle true" in str(error.value)) == (
        message == "is compressed"
    )  # no other case can be loaded with it


def test_network_of_another_task_is_refused_for_detection(tmp_path: Path) -> None:
    file = saved(tmp_path / "a.pt", {"model": SegmentationModel("yolov8n-seg.yaml", verbose=False)})
    with pytest.raises(ValueError, match=r"a\.pt must be of a network for detection \(Detect or .*, got Segment"):
        Detector(file)


def test_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    model = network()
    model.model[0].conv.weight.data[0] = float("nan")
    with pytest.raises(ValueError, match=r"a\.pt cannot be used: its tensor model\.0\.conv\.weight contains NaN"):
        Detector(write(tmp_path / "a.pt", model))


def test_tensors_of_another_checkpoint_are_one_line() -> None:
    tensors = {"a": torch.zeros(2), "b": torch.zeros(3)}
    for other in ({"a": torch.zeros(2)}, {**tensors, "c": torch.zeros(1)}, {**tensors, "b": torch.zeros(4)}):
        with pytest.raises(ValueError, match=r"^it does not fit model\.variant: tensor [bc] is missing or has another"):
            check_tensors(other, "it", tensors)
    check_tensors(tensors, "it", tensors)


def zipped(file: Path, *names: str) -> Path:
    with zipfile.ZipFile(file, "w") as archive:
        for name in names:
            archive.writestr(name, "")
    return file


def write_bytes(file: Path, content: bytes) -> Path:
    file.write_bytes(content)
    return file


def saved(file: Path, content: Any) -> Path:
    torch.save(content, file)
    return file
