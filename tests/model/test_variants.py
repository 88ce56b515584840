"""Names of graphs, and graph descriptions in `.yaml` files."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn

from tests.test_parity import random_batch
from yolo_lightning.checkpoints.torch_archive import load_checkpoint
from yolo_lightning.data.formats.ltdv2 import CLASS_NAMES
from yolo_lightning.model.convolution_settings import ConvolutionSettings
from yolo_lightning.model.graph import build_graph, read_checkpoint
from yolo_lightning.model.layers import arrange
from yolo_lightning.model.variants import description_of, variants
from yolo_lightning.module import YOLOModule

SCALES = "nsmlx"


def test_names_are_those_of_the_installed_files() -> None:
    expected = {f"yolov10{scale}" for scale in "nsmblx"} | {f"yolov9{scale}" for scale in "tsmce"}
    for family in ("yolov8", "yolo11", "yolo12", "yolo26", "yolov5"):
        expected |= {f"{family}{scale}" for scale in SCALES}
    expected |= {f"yolov8{scale}-{level}" for scale in SCALES for level in ("p2", "p6")}
    expected |= {f"yolo26{scale}-{level}" for scale in SCALES for level in ("p2", "p6")}
    names = set(variants())
    assert expected | {"yolov3", "yolov3-tiny"} <= names
    foreign = ("seg", "pose", "obb", "cls", "world", "rtdetr", "yoloe", "sem", "depth")
    assert not [name for name in names if any(part in name for part in foreign)]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("yolov9n", "yolov9t"), ("yolo8n", "yolov8n"), ("yolo11", "yolo11n"), ("yolov11n", "yolo11n"), ("YOLO26n", "26n")],
)
def test_unknown_name_is_refused_with_the_nearest_ones(typed: str, meant: str) -> None:
    with pytest.raises(ValueError, match=rf"^model\.variant must be .*got '{typed}'\. Did you mean .*{meant}") as error:
        description_of(typed)
    assert "\n" not in str(error.value)


@pytest.fixture
def own_file(tmp_path: Path) -> Path:
    """A narrow graph with one layer less than yolo11."""
    description = yaml.safe_load(variants()["yolo11n"].read_text())
    description["scales"] = {"n": [0.5, 0.125, 512], "s": [0.5, 0.25, 512]}
    path = tmp_path / "my-yolo11s.yaml"
    path.write_text(yaml.safe_dump(description))
    return path


def test_scale_of_a_file_follows_from_its_name(own_file: Path) -> None:
    assert description_of(str(own_file))["scale"] == "s"
    other = own_file.rename(own_file.with_name("mine.yaml"))
    assert description_of(str(other))["scale"] == "n"


def test_checkpoint_of_an_own_graph_needs_its_file_no_more(own_file: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = YOLOModule(variant=str(own_file), convolution=ConvolutionSettings(backend="gemm")).eval()
    path = tmp_path / "own.ckpt"
    torch.save({"hyper_parameters": dict(module.hparams), "state_dict": module.state_dict()}, path)
    own_file.unlink()
    graph = arrange(read_checkpoint(path), "native").eval()
    batch = random_batch()
    with torch.no_grad():
        torch.testing.assert_close(graph(batch.images / 255)[0], module(batch.images)[0], rtol=1e-4, atol=1e-3)


def test_notes_in_a_file_are_no_part_of_a_checkpoint(own_file: Path, tmp_path: Path) -> None:
    """YAML reads `2024-11-28` as a date, which `torch.load(weights_only=True)` refuses."""
    saved = dict(YOLOModule(variant=str(own_file)).hparams)
    own_file.write_text(f"created: 2024-11-28\n{own_file.read_text()}")
    module = YOLOModule(variant=str(own_file))
    path = tmp_path / "own.ckpt"
    torch.save({"hyper_parameters": dict(module.hparams), "state_dict": module.state_dict()}, path)
    assert load_checkpoint(path)["hyper_parameters"]["architecture"]["scale"] == "s"
    for architecture in (saved["architecture"], saved["architecture"] | {"author": "somebody"}):
        module.on_load_checkpoint({"hyper_parameters": saved | {"architecture": architecture}})


def test_moved_file_resumes_and_another_graph_does_not(own_file: Path) -> None:
    module = YOLOModule(variant=str(own_file))
    saved = {"hyper_parameters": dict(module.hparams)}
    moved = own_file.rename(own_file.with_name("moved-yolo11s.yaml"))
    YOLOModule(variant=str(moved)).on_load_checkpoint(saved)
    narrow = moved.rename(moved.with_name("yolo11n.yaml"))
    with pytest.raises(ValueError, match=r"must describe the graph of the checkpoint .*s\), got another .*yolo11n"):
        YOLOModule(variant=str(narrow)).on_load_checkpoint(saved)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head": [[-1, 1, "Classify", ["nc"]]]}, "must describe a detection graph .* got Classify"),
        ({"head": None}, "must describe a detection graph .* got no such lists"),
        ({"activation": "__import__('os').system('true')"}, r"model\.variant .*: its activation must be like nn\.ReLU"),
        ({"backbone": [[-1, 1, "torch_safe_load", []]]}, "its layers must be of .* got 'torch_safe_load'"),
        ({"backbone": [[-1, 1, "Conv", []]]}, r"model\.variant .* no network that can be built: list index out of"),
        ({"scales": {"s": [0.5, 0.25]}}, "no network that can be built: not enough values"),
        ({"scales": 3}, r"model\.variant .* scales must be a mapping, .* got 3"),
        ({"reg_max": 0}, "no network that can be built"),
    ],
)
def test_file_of_something_else_is_refused(own_file: Path, change: dict[str, Any], message: str) -> None:
    own_file.write_text(yaml.safe_dump(yaml.safe_load(own_file.read_text()) | change))
    with pytest.raises(ValueError, match=message):
        build_graph(str(own_file), CLASS_NAMES)


def test_head_with_a_number_in_place_of_nc_is_refused(own_file: Path) -> None:
    description = yaml.safe_load(own_file.read_text())
    description["head"][-1][-1] = [80]
    own_file.write_text(yaml.safe_dump(description))
    with pytest.raises(ValueError, match=r"must have nc as the first argument of its head, for the 4 .* got 80"):
        build_graph(str(own_file), CLASS_NAMES)


def test_refused_file_does_not_change_the_activation_of_other_graphs(own_file: Path) -> None:
    wrong = {"activation": "nn.ReLU()", "backbone": [[-1, 1, "Conv", []]]}
    own_file.write_text(yaml.safe_dump(yaml.safe_load(own_file.read_text()) | wrong))
    with pytest.raises(ValueError, match="no network that can be built"):
        build_graph(str(own_file), CLASS_NAMES)
    graph: Any = build_graph("yolov8n", CLASS_NAMES)
    assert type(graph.model[0].act) is nn.SiLU


def test_missing_file_is_refused() -> None:
    with pytest.raises(ValueError, match=r"model\.variant must be an existing \.yaml file .* got 'nowhere\.yaml'"):
        build_graph("nowhere.yaml", CLASS_NAMES)


def test_file_that_is_not_yaml_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text("backbone: [1, 2")
    with pytest.raises(ValueError, match=r"^model\.variant .*broken\.yaml cannot be read: [^\n]*$"):
        build_graph(str(path), CLASS_NAMES)
