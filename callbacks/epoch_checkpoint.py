"""Checkpoints of whole epochs, for good."""

from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from yolo_lightning.callbacks.checkpoint import failing_together
from yolo_lightning.utils.run_files import CHECKPOINTS


class EpochCheckpoint(ModelCheckpoint):
    """Keeps `epoch-0010.ckpt`, `epoch-0020.ckpt`, ... in the run folder: the state after so many epochs.

    Nothing is ever deleted: 50 MB each for yolov8n. A full disk does not end the run.

    Args:
        every_n_epochs: Epochs between two of them, 1 or more.
    """

    def __init__(self, every_n_epochs: int = 1) -> None:
        if every_n_epochs < 1:
            raise ValueError(f"every_n_epochs is {every_n_epochs}, allowed are 1 and more")
        super().__init__(
            filename="epoch-{epoch:04d}",
            save_top_k=-1,
            every_n_epochs=every_n_epochs,
            enable_version_counter=False,
            auto_insert_metric_name=False,
            save_on_train_epoch_end=True,
        )

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Take the run folder from the trainer."""
        self.dirpath = str(Path(trainer.default_root_dir) / CHECKPOINTS)
        super().setup(trainer, pl_module, stage)

    def format_checkpoint_name(
        self, metrics: dict[str, Tensor], filename: str | None = None, ver: int | None = None, prefix: str | None = None
    ) -> str:
        """Path of the checkpoint; epochs count from 1, as in the log."""
        return super().format_checkpoint_name(metrics | {"epoch": metrics["epoch"] + 1}, filename, ver, prefix)

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the names say it all."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Nothing to restore."""

    def _save_checkpoint(self, trainer: Trainer, filepath: str) -> None:
        try:
            with failing_together(trainer):
                super()._save_checkpoint(trainer, filepath)
        except OSError as error:
            rank_zero_warn(f"could not save {filepath} ({error.strerror}); training goes on")
