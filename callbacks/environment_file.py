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
from lightning.pytorch.utilities import rank_zero_only, rank_zero_warn

from yolo_lightning.files import write_json
from yolo_lightning.run_folder import ENVIRONMENT

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

    After a restart it describes the later start. A full disk costs the file, never the run.
    """

    @rank_zero_only
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write."""
        path = Path(trainer.default_root_dir) / ENVIRONMENT
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, environment(trainer.strategy.root_device))
        except OSError as error:
            rank_zero_warn(f"could not write {path} ({error.strerror}); training goes on")


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
