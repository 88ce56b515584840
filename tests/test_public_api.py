"""Public names of `yolo_lightning`."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer

import yolo_lightning
from tests.callbacks.tiny_training import tiny_trainer
from tests.conftest import REPOSITORY
from tests.helpers.data_module import data_module
from yolo_lightning.callbacks import MeanAP
from yolo_lightning.conv import AutotunedPlan
from yolo_lightning.data.synthetic import draw_dataset
from yolo_lightning.model.conv_backend import ConvolutionSettings


def test_public_names_are_listed_and_imported_at_first_use() -> None:
    assert set(yolo_lightning.__all__) <= set(dir(yolo_lightning))
    assert [getattr(yolo_lightning, name).__name__ for name in yolo_lightning.__all__] == yolo_lightning.__all__


@pytest.mark.parametrize("names", ["RBC", 3, [1, 2], ["a", " "]])
def test_class_names_are_a_list(names: Any) -> None:
    with pytest.raises(ValueError, match=r"model\.class_names must be a list of names, as \['person', 'car'\], got "):
        yolo_lightning.YOLOModule(class_names=names)


def test_classes_of_model_and_data_are_compared(tmp_path: Path) -> None:
    module = yolo_lightning.YOLOModule(class_names=["a"])
    other = data_module(root=str(draw_dataset(tmp_path / "drawn", train_frames=8, valid_frames=8, test_frames=8)))
    trainer = tiny_trainer(tmp_path)
    with pytest.raises(ValueError, match=r"model\.class_names \['a'\] and the classes of the data .* differ: use"):
        trainer.validate(module, datamodule=other)
    with pytest.warns(UserWarning, match=r"differ; boxes have the names of the model"):
        module._check_classes(["x"])


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'yolo_lightning' has no attribute 'YoloModule'"):
        _ = yolo_lightning.YoloModule


LIGHT = {
    "yolo_lightning": ("torch", "lightning", "ultralytics"),
    "yolo_lightning.supervision.__main__": ("torch", "lightning", "numpy"),
    "yolo_lightning.supervision.heartbeat": ("torch", "lightning", "numpy"),
    "yolo_lightning.supervision.run_status": ("torch",),
    "yolo_lightning.utils.sensors": ("torch",),
    "yolo_lightning.commands.monitor.command": ("torch", "lightning"),
    "yolo_lightning.commands.benchmark.command": ("torch",),
}
"""Modules, and packages that an import of the module does not load."""


@pytest.mark.parametrize("module", LIGHT)
def test_import_loads_no_heavy_package(module: str) -> None:
    code = f"import sys, {module}; print({{*{LIGHT[module]}}} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.fixture
def data(look_alike: Path, index_root: Path) -> Any:
    from yolo_lightning.data.loader import LoaderSettings

    loader = LoaderSettings(num_workers=0)
    return data_module(str(look_alike), index_root=str(index_root), image_size=64, batch_size=4, loader=loader)


@pytest.fixture
def model(data: Any) -> Any:
    from yolo_lightning import YOLOModule

    return YOLOModule(class_names=data.class_names, convolution=ConvolutionSettings(backend="gemm"))


def quiet_trainer(folder: Path, **options: Any) -> Trainer:
    return Trainer(
        accelerator="cpu",
        default_root_dir=folder,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


def test_training_without_the_command_line(data: Any, model: Any, tmp_path: Path) -> None:
    before = [parameter.detach().clone() for parameter in model.parameters()]
    trainer = quiet_trainer(tmp_path, max_epochs=1, limit_train_batches=2, limit_val_batches=1, num_sanity_val_steps=0)
    trainer.fit(model, data)
    assert trainer.global_step == 1
    assert any(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert 0 <= trainer.callback_metrics["val/map"] <= 1


def test_validation_of_a_plain_trainer_returns_scores_and_writes_nothing(data: Any, model: Any, tmp_path: Path) -> None:
    trainer = quiet_trainer(tmp_path)
    for _ in range(2):  # the callback is added once
        (scores,) = trainer.validate(model, data, verbose=False)
    assert {"val/map", "val/map_50", "val/box_loss"} <= scores.keys()
    assert sum(isinstance(one, MeanAP) for one in trainer.callbacks) == 1
    assert list(tmp_path.iterdir()) == []


def test_own_mean_ap_keeps_its_place_and_writes_its_files(data: Any, model: Any, tmp_path: Path) -> None:
    own = MeanAP()
    trainer = quiet_trainer(tmp_path, callbacks=[own])
    trainer.test(model, data, verbose=False)
    assert [one for one in trainer.callbacks if isinstance(one, MeanAP)] == [own]
    assert (tmp_path / "test_scores.json").is_file()


def test_prediction_of_a_plain_trainer_returns_the_detections_of_each_frame(
    data: Any, model: Any, tmp_path: Path
) -> None:
    batches = quiet_trainer(tmp_path).predict(model, data)
    assert batches is not None
    assert [one.image_id for batch in batches for one in batch] == data.predict_image_ids
    assert all(one.boxes.shape == (len(one.scores), 4) for batch in batches for one in batch)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: yolo_lightning.unswap_convs(None), "unswap_convs converts a torch.nn.Module, got None"),
        (lambda: AutotunedPlan("60"), "budget_s must be >= 0 seconds, got '60'"),
        (lambda: yolo_lightning.CheckpointMirror(None), "a mirror must be an address, .* got None"),
        (lambda: yolo_lightning.CheckpointMirror("s3:/bucket"), "a mirror must be an address, .* got 's3:/bucket'"),
        (lambda: yolo_lightning.CheckpointMirror(""), "a mirror must be an address, .* got ''"),
        (lambda: yolo_lightning.CheckpointMirror("s3//bucket"), "a mirror must be an address, .* got 's3//bucket'"),
        (lambda: yolo_lightning.resumable_loader([1], "4"), "batch_size must be an integer >= 1, got '4'"),
        (
            lambda: yolo_lightning.resumable_loader(iter([1]), 4),
            r"dataset must have a length and dataset\[index\], got",
        ),
        (
            lambda: yolo_lightning.MeanAveragePrecision().update({}, {}),
            "lists with one dictionary per image, got a dict",
        ),
        (
            lambda: yolo_lightning.Recipe(optimizer="sgd"),
            r"optimizer must be auto, SGD, .*, MuSGD or a class path, got",
        ),
        (lambda: yolo_lightning.LossSettings(box_gain=-1), r"model\.loss\.box_gain must be >= 0, got -1"),
        (lambda: yolo_lightning.YOLOModule(weights=3), r"model\.weights must be a text or null, got 3"),
        (lambda: yolo_lightning.YOLOModule(class_width=0), r"model\.class_width must be >= 1, got 0"),
        (lambda: yolo_lightning.DetectionDataModule(format=3), r"data\.format must be a text, got 3"),
    ],
)
def test_argument_of_another_type_is_named(call: Callable[[], Any], message: str) -> None:
    assert yolo_lightning.find_damage("nowhere.ckpt") == "it does not exist"
    with pytest.raises(ValueError, match=message):
        call()
