"""Validates after the last epoch, whatever `check_val_every_n_epoch` says."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from yolo_lightning.utils.loop_position import is_last_epoch


class FinalValidation(Callback):
    """Sets `check_val_every_n_epoch` to 1 for the last epoch, so that a finished run is a scored run."""

    def __init__(self) -> None:
        self._interval: int | None = None

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Act in the last epoch; not in `on_train_epoch_start`, which a run resumed within an epoch never reaches."""
        if is_last_epoch(trainer) and self._interval is None and trainer.check_val_every_n_epoch is not None:
            self._interval, trainer.check_val_every_n_epoch = trainer.check_val_every_n_epoch, 1

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Give the user's setting back."""
        if self._interval is not None:
            trainer.check_val_every_n_epoch, self._interval = self._interval, None
