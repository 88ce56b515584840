"""The resolved configuration, the machine and the software of a run, stored in the run folder."""

import os
import platform
import socket
import time
from functools import cached_property
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import torch
import yaml
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.cli import SaveConfigCallback
from lightning.pytorch.utilities import rank_zero_only

from yolo_lightning.checkpoints.checkpoint_file import CONFIGURATION
from yolo_lightning.checkpoints.resume import storable
from yolo_lightning.utils import run_files
from yolo_lightning.utils.files import replacing, write_json
from yolo_lightning.utils.optional_file import OptionalFile

START = frozenset({"resume", "ckpt_path"})
"""Options that select the start of a command and are not part of the configuration of the run."""

PACKAGES = (
    "lightning",
    "torchvision",
    "ultralytics",
    "torchmetrics",
    "albumentations",
    "numpy",
    "opencv-python-headless",
)


class SaveRunConfig(SaveConfigCallback):
    """Writes the resolved configuration of any subcommand into the run folder.

    A resumed run overwrites the file with the configuration it was resumed with.
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._file = OptionalFile()

    def save_config(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        assert trainer.state.fn is not None
        path = Path(trainer.default_root_dir) / run_files.config_name(trainer.state.fn.value)
        with self._file.attempt(path), replacing(path) as temporary:
            temporary.write_text(yaml.safe_dump(self._content, sort_keys=False))

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Store the configuration, so that a run can be resumed without the file."""
        checkpoint[CONFIGURATION] = storable(self._content)

    @rank_zero_only
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the file if a full disk prevented that at the start."""
        if self._file.failed:
            self.save_config(trainer, pl_module, "fit")

    @cached_property
    def _content(self) -> dict[str, Any]:
        config = yaml.safe_load(self.parser.dump(self.config, skip_none=False))
        return {key: config[key] for key in config if key not in START}


class EnvironmentFile(Callback):
    """Writes `environment.json` at the start of a fit; after a restart it describes the latest start.

    If the disk is full, writing is tried again at the end of every epoch.
    """

    def __init__(self) -> None:
        self._file = OptionalFile()
        self._content: dict[str, Any] = {}

    @rank_zero_only
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._content = environment(trainer.strategy.root_device)
        self._write(trainer)

    @rank_zero_only
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._file.failed:
            self._write(trainer)

    def _write(self, trainer: Trainer) -> None:
        path = Path(trainer.default_root_dir) / run_files.ENVIRONMENT
        with self._file.attempt(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, self._content)


def environment(device: torch.device) -> dict[str, Any]:
    """Return start time, machine, device and versions; no command line and no variables, which may contain secrets."""
    hip, cuda = torch.version.hip, torch.version.cuda
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "host": socket.gethostname(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "device": str(device),
        "device name": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
        "processors": os.cpu_count(),
        "torch": str(torch.__version__),
        "torch built for": f"ROCm {hip}" if hip else f"CUDA {cuda}" if cuda else "CPU",
        "torch threads": torch.get_num_threads(),
        **{name: found.version for name in PACKAGES for found in distributions(name=name)},
    }
