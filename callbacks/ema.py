"""Exponential moving average of the weights, with YOLOv8's ramp."""

import math
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging
from torch import Tensor

from yolo_lightning.utils.choices import check_range


def decay_at(updates: int, decay: float, tau: float) -> float:
    """Return the decay of update number `updates` (from 1); it increases from 0 towards `decay`."""
    return decay * (1 - math.exp(-updates / tau))


class EMA(WeightAveraging):
    """Averages parameters and floating-point buffers after every optimizer step; other buffers are copied.

    Validation uses the average. In a checkpoint `state_dict` is the average, and `current_model_state` the weights from
    which training is resumed. The ramp is that of Ultralytics' ModelEMA.

    Args:
        decay: Final weight of the previous average in an update, >= 0 and < 1.
        tau: Updates after which the ramp has reached 63 % of `decay`, > 0.
    """

    def __init__(self, decay: float = 0.9999, tau: float = 2000.0) -> None:
        check_range("decay", decay, ">= 0", "< 1")
        check_range("tau", tau, "> 0")
        super().__init__(multi_avg_fn=self._average)
        self.decay = decay
        self.tau = tau
        self._swapped = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Copy the network; the copy counts as one update, so that the first update averages."""
        super().setup(trainer, pl_module, stage)
        if self._average_model is not None:
            self._average_model.n_averaged.fill_(1)

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_validation_epoch_start(trainer, pl_module)
        self._swapped = self._average_model is not None

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_validation_epoch_end(trainer, pl_module)
        self._swapped = False

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Restore the training weights when validation fails."""
        if self._swapped:
            self.on_validation_epoch_end(trainer, pl_module)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Restore both sets of weights for training; for other stages the network already has the average."""
        if trainer.state.fn == "fit":
            super().on_load_checkpoint(trainer, pl_module, checkpoint)

    def _average(self, averages: list[Tensor], currents: list[Tensor], updates: Tensor | int) -> None:
        """Average tensors of one device and dtype; counters are copied."""
        if averages[0].is_floating_point():
            # The average was created before the precision plugin cast the network.
            currents = [current.to(averages[0].dtype) for current in currents]
            torch._foreach_lerp_(averages, currents, 1 - decay_at(int(updates), self.decay, self.tau))
        else:
            torch._foreach_copy_(averages, currents)
