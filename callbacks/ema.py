"""Exponential moving average of the weights, with YOLOv8's ramp."""

import math
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging
from torch import Tensor


def decay_at(updates: int, decay: float, tau: float) -> float:
    """Share of the average that stays in update number `updates` (from 1): small at first, `decay` in the end."""
    return decay * (1 - math.exp(-updates / tau))


class EMA(WeightAveraging):
    """Averages parameters and floating-point buffers after every update of the optimizer; other buffers are copied.

    Validation runs on the average; a checkpoint's `state_dict` is the average, and `current_model_state` beside it what
    training continues from. The ramp is that of Ultralytics' ModelEMA.

    Args:
        decay: Share of the average that stays in an update, in the end; 0 to 1.
        tau: Updates after which the ramp has reached 63 % of `decay`, above 0.
    """

    def __init__(self, decay: float = 0.9999, tau: float = 2000.0) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"decay is {decay}, allowed are 0 up to but not 1")
        if tau <= 0:
            raise ValueError(f"tau is {tau}, allowed are values above 0")
        super().__init__(multi_avg_fn=self._average)
        self.decay = decay
        self.tau = tau
        self._swapped = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Copy the network; the copy counts as one update, so that the first real one averages, too."""
        super().setup(trainer, pl_module, stage)
        if self._average_model is not None:
            self._average_model.n_averaged.fill_(1)

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Swap the average in."""
        super().on_validation_epoch_start(trainer, pl_module)
        self._swapped = self._average_model is not None

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Swap the average out."""
        super().on_validation_epoch_end(trainer, pl_module)
        self._swapped = False

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leave no swapped weights behind when validation fails."""
        if self._swapped:
            self.on_validation_epoch_end(trainer, pl_module)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Restore both sets of weights for training; for anything else the network has the average already."""
        if trainer.state.fn == "fit":
            super().on_load_checkpoint(trainer, pl_module, checkpoint)

    def _average(self, averages: list[Tensor], currents: list[Tensor], updates: Tensor | int) -> None:
        """Average tensors of one device and dtype; counters are copied, as a mean of them means nothing."""
        if averages[0].is_floating_point():
            # The copy was made before the precision plugin cast the network.
            currents = [current.to(averages[0].dtype) for current in currents]
            torch._foreach_lerp_(averages, currents, 1 - decay_at(int(updates), self.decay, self.tau))
        else:
            torch._foreach_copy_(averages, currents)
