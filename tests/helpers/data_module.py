"""Data modules from flat settings, for tests that change a few of them."""

from dataclasses import fields
from typing import Any

from lightning.pytorch import Trainer

from yolo_lightning.data.datamodule import DetectionDataModule
from yolo_lightning.data.formats.file_settings import Files
from yolo_lightning.data.index.splits import Shares
from yolo_lightning.data.input_settings import InputSettings
from yolo_lightning.data.limit_settings import Limits
from yolo_lightning.data.loader_settings import LoaderSettings
from yolo_lightning.data.storage.storage_settings import StorageSettings

GROUPS: dict[str, Any] = {
    "files": Files,
    "split": Shares,
    "storage": StorageSettings,
    "limits": Limits,
    "input": InputSettings,
    "loader": LoaderSettings,
}


def data_module(root: str | None = None, **values: Any) -> DetectionDataModule:
    """Return a data module; a value whose name is that of a field of a group is set in the group."""
    groups = {}
    for group, settings in GROUPS.items():
        group_values = {field.name: values.pop(field.name) for field in fields(settings) if field.name in values}
        groups[group] = values.pop(group, None) or settings(**group_values)
    return DetectionDataModule(root, **values, **groups)


def cpu_trainer(**options: Any) -> Trainer:
    """Return a Trainer that writes nothing."""
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    return Trainer(accelerator="cpu", **{**quiet, "max_epochs": 3, **options})


def set_up(stage: str, root: str | None = None, trainer: Trainer | None = None, **values: Any) -> DetectionDataModule:
    """Return a data module without workers, with a Trainer, that is set up for `stage`."""
    data = data_module(root, **{"loader": LoaderSettings(num_workers=0), "image_size": 64, "batch_size": 4, **values})
    data.trainer = trainer or cpu_trainer()
    data.setup(stage)
    return data
