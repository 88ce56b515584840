"""Data modules from flat settings, for tests that change a few of them."""

from dataclasses import fields
from typing import Any

from yolo_lightning.data.datamodule import DetectionDataModule
from yolo_lightning.data.formats.dataset_format import Files
from yolo_lightning.data.formats.frame_checks import Limits
from yolo_lightning.data.index.splits import Shares
from yolo_lightning.data.input_settings import InputSettings
from yolo_lightning.data.storage.storage import StorageSettings

GROUPS: dict[str, Any] = {
    "files": Files,
    "split": Shares,
    "storage": StorageSettings,
    "limits": Limits,
    "input": InputSettings,
}


def data_module(root: str | None = None, **values: Any) -> DetectionDataModule:
    """Return a data module; a value whose name is that of a field of a group is set in the group."""
    groups = {}
    for group, settings in GROUPS.items():
        own = {field.name: values.pop(field.name) for field in fields(settings) if field.name in values}
        groups[group] = settings(**own)
    return DetectionDataModule(root, **values, **groups)
