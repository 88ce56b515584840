"""Exponential moving average of the weights, with YOLOv8's ramp."""

import math
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from yolo_lightning.utils.activity import Activity, during
from yolo_lightning.utils.choices import checked_arguments
from yolo_lightning.utils.loop_position import begins_anew


def decay_at(updates: int, decay: float, tau: float) -> float:
    """Return the decay of update number `updates` (from 1); it increases from 0 towards `decay`."""
    return decay * (1 - math.exp(-updates / tau))


Place = tuple[dict[str, Any], str]
"""The parameters or buffers of one module by name, and one of the names."""


def places_of_tensors(network: nn.Module) -> list[Place]:
    """Return the places of all parameters and then of all buffers; a shared tensor has one place.

    Places instead of tensors, because an assignment to a parameter or a buffer replaces the tensor.
    """
    modules = list(network.modules())
    dictionaries: list[dict[str, Any]] = [module._parameters for module in modules]
    dictionaries += [module._buffers for module in modules]
    places: list[Place] = []
    identities: set[int] = set()
    for tensors in dictionaries:
        for name, tensor in tensors.items():
            if tensor is not None and id(tensor) not in identities:
                identities.add(id(tensor))
                places.append((tensors, name))
    return places


class RampedAverage(AveragedModel):
    """Copy of a network that `update_parameters` averages with the network's current values.

    The number of updates is stored on the host: torch's class stores it on the device, and reads it back three times
    per update. `decay` and `tau` are those of `EMA`.
    """

    def __init__(self, model: LightningModule, decay: float, tau: float) -> None:
        super().__init__(model, device=model.device, use_buffers=True)
        self.decay = decay
        self.tau = tau
        self.n_averaged = torch.tensor(1)
        self._places_in_average: list[Place] = []
        self._places_in_model: list[Place] = []

    def forget_places(self) -> None:
        """Search the modules of both networks again at the next update."""
        self._places_in_average = []
        self._places_in_model = []

    @torch.no_grad()
    def update_parameters(self, model: nn.Module) -> None:
        """Average parameters and buffers of floating-point and complex numbers, and copy the other buffers.

        There is one operation per dtype.
        """
        if not self._places_in_model:  # a search in each step would take as long as the averaging
            self._places_in_average = places_of_tensors(self.module)
            self._places_in_model = places_of_tensors(model)
        averages: dict[torch.dtype, list[Tensor]] = {}
        currents: dict[torch.dtype, list[Tensor]] = {}
        tensors_of_average = [tensors[name] for tensors, name in self._places_in_average]
        tensors_of_model = [tensors[name] for tensors, name in self._places_in_model]
        for average, current in zip(tensors_of_average, tensors_of_model, strict=True):
            dtype = average.dtype
            averages.setdefault(dtype, []).append(average)
            # The average was created before the precision plugin cast the network to 16 bits.
            currents.setdefault(dtype, []).append(current.to(dtype))
        weight = 1 - decay_at(int(self.n_averaged), self.decay, self.tau)
        with during(Activity.DEVICE_WAIT):
            for dtype in averages:
                if dtype.is_floating_point or dtype.is_complex:
                    torch._foreach_lerp_(averages[dtype], currents[dtype], weight)
                else:
                    torch._foreach_copy_(averages[dtype], currents[dtype])
        self.n_averaged += 1


def _tensors(network: nn.Module) -> list[Tensor]:
    return [*network.parameters(), *network.buffers()]


class EMA(WeightAveraging):
    """Averages parameters and floating-point buffers after every optimizer step; other buffers are copied.

    Validation uses the average. In a checkpoint `state_dict` is the average, and `current_model_state` the weights from
    which training is resumed. The ramp is that of Ultralytics' ModelEMA.

    Args:
        decay: Final weight of the previous average in an update, >= 0 and < 1.
        tau: Updates after which the ramp has reached 63 % of `decay`, > 0.
    """

    @checked_arguments(decay=">= 0, < 1", tau="> 0")
    def __init__(self, decay: float = 0.9999, tau: float = 2000.0) -> None:
        super().__init__()
        self.decay = decay
        self.tau = tau
        self._swapped = False
        # During a validation, for tensors that have fewer bits in the network than in the average, else None:
        self._exact: list[Tensor | None] = []  # values of the average
        self._rounded: list[Tensor | None] = []  # the same values in the network

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Copy the network; the copy counts as one update, so that the first update averages."""
        if begins_anew(trainer, stage):
            self._latest_update_step = 0
        if stage == "fit":
            if is_overridden("configure_model", pl_module):  # Lightning calls it after the setup, and then once more
                pl_module.configure_model()
            self._average_model = RampedAverage(pl_module, self.decay, self.tau)
            if trainer.precision == "64-true":  # Lightning converts the network after the setup
                self._average_model.double()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Search the modules once per epoch: a callback or the module itself may have replaced some."""
        if isinstance(self._average_model, RampedAverage):
            self._average_model.forget_places()

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Exchange the weights of the network and the average; Lightning rounds the average to the network's dtype."""
        if self._average_model is None:
            return
        averages = _tensors(self._average_model.module)
        currents = _tensors(pl_module)
        self._exact = []
        for average, current in zip(averages, currents, strict=True):
            self._exact.append(average.detach().clone() if average.dtype != current.dtype else None)
        super().on_validation_epoch_start(trainer, pl_module)
        self._rounded = []
        for exact, current in zip(self._exact, currents, strict=True):
            self._rounded.append(current.detach().clone() if exact is not None else None)
        self._swapped = True

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Exchange the weights again; values that the validation has not changed are those before the rounding."""
        if self._average_model is None:
            return
        super().on_validation_epoch_end(trainer, pl_module)
        averages = _tensors(self._average_model.module)
        for average, exact, rounded in zip(averages, self._exact, self._rounded, strict=True):
            if exact is not None and rounded is not None:
                average.data.copy_(torch.where(average == rounded, exact, average))
        self._exact = []
        self._rounded = []
        self._swapped = False

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Restore the training weights when validation fails."""
        if self._swapped:
            self.on_validation_epoch_end(trainer, pl_module)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Restore both sets of weights for training; for other stages the network already has the average."""
        if trainer.state.fn == "fit":
            super().on_load_checkpoint(trainer, pl_module, checkpoint)
