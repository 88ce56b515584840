"""Keys of the old layout: every new name is an option, and stored settings are converted."""

from inspect import signature
from pathlib import Path

import pytest
import torch

from tests.helpers.networks import module_of
from yolo_lightning.checkpoints.resume import remembered
from yolo_lightning.checkpoints.torch_archive import load_checkpoint
from yolo_lightning.commands.option_errors import unknown_key
from yolo_lightning.data.datamodule import DetectionDataModule
from yolo_lightning.model.detection_settings import DetectionSettings
from yolo_lightning.model.network_settings import NetworkSettings
from yolo_lightning.module import YOLOModule
from yolo_lightning.training.module_state import ModuleState
from yolo_lightning.utils.old_layout import (
    RENAMED_KEYS,
    current_checkpoint,
    current_hyperparameters,
    current_layout,
    new_key,
)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("model.lr0", "model.recipe.lr0"),
        ("model.conv", "model.convolution.backend"),
        ("model.optimizer.class_path", "model.recipe.optimizer.class_path"),
        ("supervision.floors.step_s", "supervision.phase_timeouts.step_s"),
        ("data.train_file", "data.files.train"),
        ("data.storage", "data.storage.kind"),
        ("data.frames", "data.storage.kind"),
        ("data.pixel_range.mode", "data.input.pixel_range.mode"),
        ("data.storage.kind", None),
        ("data.storage.index_root", None),
        ("model.recipe.lr0", None),
        ("model.variant", None),
        ("model.lr00", None),
    ],
)
def test_new_key(old: str, new: str | None) -> None:
    assert new_key(old) == new


def test_no_new_key_is_an_old_one() -> None:
    assert [old for old, new in RENAMED_KEYS.items() if new_key(new)] == []


def test_new_keys_of_the_data_are_settings_of_the_data_module() -> None:
    parameters = signature(DetectionDataModule).parameters
    for new in [new for new in RENAMED_KEYS.values() if new.startswith("data.")]:
        _, group, *name = new.split(".")
        assert not name or hasattr(parameters[group].default, name[0]), new


def test_error_names_the_new_key_only_where_it_exists() -> None:
    keys = {"model.recipe.lr0", "data.root"}
    assert unknown_key("model.lr0", keys) == "model.lr0 is now model.recipe.lr0"
    assert unknown_key("lr0", keys, value="0.005", hyphens="--") == (
        "unknown key lr0. Did you mean --model.recipe.lr0 0.005?"
    )
    assert unknown_key("model.lr0", {"data.root"}) == "unknown key model.lr0; --help.full lists all keys."


OLD = {
    "variant": "yolov8n",
    "class_names": ["a"],
    "lr0": 0.1,
    "conv_backend": "gemm",
    "score_threshold": 0.2,
    "_instantiator": "lightning.pytorch.cli.instantiate_module",
}
CURRENT = {
    "variant": "yolov8n",
    "class_names": ["a"],
    "recipe": {"lr0": 0.1},
    "convolution": {"backend": "gemm"},
    "detections": {"score_threshold": 0.2},
}


def test_hyperparameters_become_nested() -> None:
    assert current_hyperparameters(OLD) == CURRENT == current_hyperparameters(CURRENT)


def test_states_of_removed_callbacks_are_dropped() -> None:
    callbacks = {"ResultsFile": {"rows": {}}, "EMA": {"updates": 3}}
    assert current_checkpoint({"callbacks": callbacks}) == {"callbacks": {"EMA": {"updates": 3}}}


def test_old_checkpoint_is_read_in_the_layout_of_today(tmp_path: Path) -> None:
    file = tmp_path / "old.ckpt"
    state = {"halving": {"images_at_once": 3, "halvings": 1}, "steps": 7}
    torch.save({"hyper_parameters": OLD, "config": {"model": {"momentum": 0.5}}} | state, file)
    content = load_checkpoint(file, "meta")
    assert content["hyper_parameters"] == CURRENT
    assert NetworkSettings.of(content["hyper_parameters"]).detections == DetectionSettings(score_threshold=0.2)
    assert ModuleState.of(state) == ModuleState.of(content)
    assert ModuleState.of(content) == ModuleState(steps=7, splitting={"images_at_once": 3, "splits": 1})
    options = remembered(content)
    assert (options["model.recipe.lr0"], options["model.recipe.momentum"]) == (0.1, 0.5)


def test_options_of_an_old_configuration_are_compared_by_their_new_names() -> None:
    config = {
        "model": {"lr0": 0.3, "optimizer": {"class_path": "torch.optim.Adagrad"}},
        "data": {"storage": "zip", "train_fraction": 0.5, "root": "here", "quarantine": ["index=1"]},
    }
    data = {"data.storage.kind": "zip", "data.split.train_fraction": 0.5, "data.root": "here"}
    expected = data | {
        "data.limits.quarantine": ["index=1"],
        "model.recipe.lr0": 0.3,
        "model.recipe.optimizer.class_path": "torch.optim.Adagrad",
    }
    assert remembered({"config": config}) == expected
    assert current_layout(expected) == expected


@pytest.mark.parametrize("is_old", [True, False])
def test_module_of_a_checkpoint_has_its_settings(tmp_path: Path, is_old: bool) -> None:
    module = module_of(backend="native", score_threshold=0.2, lr0=0.1)
    stored = dict(module.hparams)
    if is_old:
        stored |= OLD | {"class_names": stored["class_names"]}
        for group in ("recipe", "loss", "convolution", "detections"):
            del stored[group]
    content = {"hyper_parameters": stored, "state_dict": module.state_dict(), "pytorch-lightning_version": "2.6.0"}
    torch.save(content, tmp_path / "a.ckpt")
    again = YOLOModule.load_from_checkpoint(tmp_path / "a.ckpt", weights_only=True, freeze=1)
    assert (again.recipe.lr0, again.detections.score_threshold) == (0.1, 0.2)
    assert torch.equal(
        again.graph.state_dict()["model.0.conv.weight"], module.graph.state_dict()["model.0.conv.weight"]
    )
    assert not next(again.graph.parameters()).requires_grad
