"""Validation after the last epoch for any `check_val_every_n_epoch`."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from yolo_lightning.utils.loop_position import is_last_epoch


class FinalValidation(Callback):
    """Sets `check_val_every_n_epoch` to 1 for the last epoch, so that the final weights are always evaluated."""

    def __init__(self) -> None:
        self._interval: int | None = None

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Change the setting in the last epoch; a run resumed within it does not call `on_train_epoch_start`."""
        if is_last_epoch(trainer) and self._interval is None and trainer.check_val_every_n_epoch is not None:
            self._interval, trainer.check_val_every_n_epoch = trainer.check_val_every_n_epoch, 1

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore the setting."""
        if self._interval is not None:
            trainer.check_val_every_n_epoch, self._interval = self._interval, None
