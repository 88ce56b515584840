"""Notes on which machine and with which software a fit ran."""

import os
import platform
import socket
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_only

from yolo_lightning.utils.files import write_json
from yolo_lightning.utils.optional_file import OptionalFile
from yolo_lightning.utils.run_files import ENVIRONMENT

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
    """Writes `environment.json` when a fit starts: what a report of the run must know and a configuration cannot say.

    After a restart it describes the later start. A full disk does not end the run: the end of every epoch tries again.
    """

    def __init__(self) -> None:
        self._file = OptionalFile()
        self._content: dict[str, Any] = {}

    @rank_zero_only
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write."""
        self._content = environment(trainer.strategy.root_device)
        self._write(trainer)

    @rank_zero_only
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write if that was not possible before."""
        if self._file.failed:
            self._write(trainer)

    def _write(self, trainer: Trainer) -> None:
        path = Path(trainer.default_root_dir) / ENVIRONMENT
        with self._file.attempt(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, self._content)


def environment(device: torch.device) -> dict[str, Any]:
    """Start, machine, device, and versions; no command line, no variables: they may hold what is secret."""
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "host": socket.gethostname(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "device": str(device),
        "device name": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
        "processors": os.cpu_count(),
        "torch": str(torch.__version__),
        "torch built for": built_for(),
        "torch threads": torch.get_num_threads(),
        **{name: found for name in PACKAGES if (found := installed(name)) is not None},
    }


def built_for() -> str:
    """The platform of this torch."""
    if torch.version.hip:
        return f"ROCm {torch.version.hip}"
    return f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU"


def installed(package: str) -> str | None:
    """Its version; None where it is not there."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
