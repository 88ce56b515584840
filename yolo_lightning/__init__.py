"""YOLO training with PyTorch Lightning on GPUs without a working vendor convolution library.

The package never uses the network, installs packages or sends telemetry on its own. Importing it changes neither the
process environment nor another library: the switches of `utils/offline.py` are set by the commands, and elsewhere
around the imports and calls of other libraries.
The classes and functions of `__all__` are imported at first use, so that `import yolo_lightning` stays cheap.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from yolo_lightning.callbacks.checkpoint import LastCheckpoint as LastCheckpoint
    from yolo_lightning.callbacks.checkpoint_mirror import CheckpointMirror as CheckpointMirror
    from yolo_lightning.callbacks.heartbeat_callback import HeartbeatCallback as HeartbeatCallback
    from yolo_lightning.callbacks.random_state import RandomState as RandomState
    from yolo_lightning.checkpoints.checkpoint_file import find_damage as find_damage
    from yolo_lightning.checkpoints.checkpoint_io import AtomicCheckpointIO as AtomicCheckpointIO
    from yolo_lightning.checkpoints.resume import latest_checkpoint as latest_checkpoint
    from yolo_lightning.conv import swap_convs as swap_convs, unswap_convs as unswap_convs
    from yolo_lightning.data.datamodule import DetectionDataModule as DetectionDataModule
    from yolo_lightning.data.sampling.seeded_dataset import resumable_loader as resumable_loader
    from yolo_lightning.detector import Detector as Detector
    from yolo_lightning.evaluation.mean_average_precision import MeanAveragePrecision as MeanAveragePrecision
    from yolo_lightning.model.convolution_settings import ConvolutionSettings as ConvolutionSettings
    from yolo_lightning.model.detection_settings import DetectionSettings as DetectionSettings
    from yolo_lightning.model.loss_settings import LossSettings as LossSettings
    from yolo_lightning.module import YOLOModule as YOLOModule
    from yolo_lightning.supervision.heartbeat import heartbeat as heartbeat
    from yolo_lightning.training.guard_settings import GuardSettings as GuardSettings
    from yolo_lightning.training.recipe import Recipe as Recipe

if not os.path.isfile(os.path.join(__path__[0], "callbacks", "__init__.py")):
    # `callbacks` is a symbolic link to the folder beside this package. Source archives and checkouts on Windows contain
    # a text file instead; then Python finds the folder through the parent folder.
    __path__.append(os.path.dirname(os.path.abspath(__path__[0])))

__version__ = "0.1.0"

_HOMES = {
    "AtomicCheckpointIO": "yolo_lightning.checkpoints.checkpoint_io",
    "CheckpointMirror": "yolo_lightning.callbacks.checkpoint_mirror",
    "ConvolutionSettings": "yolo_lightning.model.convolution_settings",
    "DetectionDataModule": "yolo_lightning.data.datamodule",
    "DetectionSettings": "yolo_lightning.model.detection_settings",
    "Detector": "yolo_lightning.detector",
    "GuardSettings": "yolo_lightning.training.guard_settings",
    "HeartbeatCallback": "yolo_lightning.callbacks.heartbeat_callback",
    "LastCheckpoint": "yolo_lightning.callbacks.checkpoint",
    "LossSettings": "yolo_lightning.model.loss_settings",
    "MeanAveragePrecision": "yolo_lightning.evaluation.mean_average_precision",
    "RandomState": "yolo_lightning.callbacks.random_state",
    "Recipe": "yolo_lightning.training.recipe",
    "YOLOModule": "yolo_lightning.module",
    "find_damage": "yolo_lightning.checkpoints.checkpoint_file",
    "heartbeat": "yolo_lightning.supervision.heartbeat",
    "latest_checkpoint": "yolo_lightning.checkpoints.resume",
    "resumable_loader": "yolo_lightning.data.sampling.seeded_dataset",
    "swap_convs": "yolo_lightning.conv",
    "unswap_convs": "yolo_lightning.conv",
}


__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
