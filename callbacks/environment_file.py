"""The machine and the software versions of a run, in `environment.json`."""

import os
import platform
import socket
import time
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_only

from yolo_lightning.data.datamodule import DetectionDataModule
from yolo_lightning.utils import run_files
from yolo_lightning.utils.accelerator import device_name
from yolo_lightning.utils.files import write_json
from yolo_lightning.utils.optional_file import OptionalFile

PACKAGES = (
    "lightning",
    "torchvision",
    "ultralytics",
    "torchmetrics",
    "albumentations",
    "numpy",
    "opencv-python-headless",
)


class EnvironmentFile(Callback):
    """Writes `environment.json` at the start of a fit; after a restart it describes the latest start.

    Attributes:
        facts: Further entries of the file.
    """

    def __init__(self) -> None:
        self.facts: dict[str, str] = {}

    @rank_zero_only
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        facts: dict[str, str] = getattr(pl_module, "convolution_facts", dict)()  # of `YOLOModule`
        path = Path(trainer.default_root_dir) / run_files.ENVIRONMENT
        with OptionalFile().attempt(path):
            precision = {"precision": str(trainer.precision)}
            write_json(
                path,
                environment(trainer.strategy.root_device) | precision | self.facts | facts | training_images(trainer),
            )


def training_images(trainer: Trainer) -> dict[str, str]:
    """Return the number of images of the training split; nothing for other data than a `DetectionDataModule`."""
    data = trainer.datamodule  # type: ignore[attr-defined]
    if not isinstance(data, DetectionDataModule):
        return {}
    return {run_files.TRAINING_IMAGES: f"{len(data.index('train')):,}"}


def environment(device: torch.device) -> dict[str, Any]:
    """Return start time, machine, device and versions; no command line and no variables, which may contain secrets."""
    built_for = {"ROCm": torch.version.hip, "CUDA": torch.version.cuda, "XPU": getattr(torch.version, "xpu", None)}
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "host": socket.gethostname(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "device": str(device),
        "device name": platform.machine() if device.type == "cpu" else device_name(device),
        "processors": os.cpu_count(),
        "torch": str(torch.__version__),
        "torch built for": next((f"{name} {version}" for name, version in built_for.items() if version), "CPU"),
        "torch threads": torch.get_num_threads(),
        **{name: package.version for name in PACKAGES for package in distributions(name=name)},
    }
