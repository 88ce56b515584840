"""YOLOv8's optimization recipe: hyperparameters, and schedules as functions of the position in training.

A *step* is one forward and backward pass, an *update* is one optimizer step. The gradients of several steps are summed,
not averaged, into one update, until the nominal batch size is reached.
"""

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Literal, Self, get_args

import numpy as np
from lightning.pytorch.cli import OptimizerCallable

from yolo_lightning.utils.choices import check_range

OptimizerName = Literal["SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "MuSGD"]
OptimizerChoice = Literal["auto"] | OptimizerName | OptimizerCallable
"""A name, with Ultralytics' arguments, or a function of parameter groups, which jsonargparse makes of a class path."""
OPTIMIZERS = (*get_args(OptimizerName), "auto")


class Group(StrEnum):
    """Parameter group. Only weights decay; biases have a warm-up of their own."""

    WEIGHT = "weight"
    NORMALISATION = "normalisation"
    BIAS = "bias"


CLASS_HEAD_FACTOR = 3.0
"""Factor of the learning rates of the class branches of the head, as in Ultralytics; only MuSGD uses them."""


@dataclass(frozen=True)
class Recipe:
    """Optimization; the defaults are YOLOv8's.

    Attributes:
        optimizer: SGD (Nesterov), Adam, AdamW, Adamax, NAdam, RAdam, RMSprop or MuSGD, with Ultralytics' arguments; or
            the path of an optimizer class with its arguments. Learning rate, decay and momentum are set by
            `model.recipe`. `auto` selects as Ultralytics: MuSGD for more than 10,000 optimizer steps, else AdamW, and
            their `lr0`.
        lr0: Learning rate after warm-up, > 0.
        lrf: Final learning rate as a fraction of `lr0`, 0 to 1.
        momentum: Momentum after warm-up, 0 to 1; for Adam's family the first beta, without warm-up.
        weight_decay: L2 decay of convolution weights at the nominal batch, >= 0.
        warmup_epochs: Length of the warm-up, epochs, >= 0.
        warmup_momentum: Momentum at the start of the warm-up, 0 to 1.
        warmup_bias_lr: Learning rate of biases at the start of the warm-up, >= 0.
        cosine: Decay the learning rate along a half cosine instead of a line.
        nominal_batch: Number of images whose gradients are summed into one optimizer step, >= 1.
        clip_norm: Largest L2 norm of the summed gradients, >= 0; 0 disables clipping.
        multi_scale: Multi-scale training, >= 0 and < 1. In every step, the longer side of the input is drawn between
            `(1 - multi_scale)` and `(1 + multi_scale)` times the image size and rounded to the stride. 0 disables it.
    """

    optimizer: OptimizerChoice = "SGD"
    lr0: float = 0.01
    lrf: float = 0.01
    momentum: float = 0.937
    weight_decay: float = 5e-4
    warmup_epochs: float = 3.0
    warmup_momentum: float = 0.8
    warmup_bias_lr: float = 0.1
    cosine: bool = False
    nominal_batch: int = 64
    clip_norm: float = 10.0
    multi_scale: float = 0.0

    def __post_init__(self) -> None:
        if not callable(self.optimizer) and self.optimizer not in OPTIMIZERS:
            names = ", ".join(OPTIMIZERS)
            raise ValueError(
                f"model.recipe.optimizer must be one of {names}, or the path of an optimizer class, "
                f"got {self.optimizer!r}"
            )
        check_range("model.recipe.lr0", self.lr0, "> 0")
        for name in ("lrf", "momentum", "warmup_momentum"):
            check_range(f"model.recipe.{name}", getattr(self, name), ">= 0", "<= 1")
        for name in ("weight_decay", "warmup_epochs", "warmup_bias_lr", "clip_norm"):
            check_range(f"model.recipe.{name}", getattr(self, name), ">= 0")
        check_range("model.recipe.nominal_batch", self.nominal_batch, ">= 1")
        check_range("model.recipe.multi_scale", self.multi_scale, ">= 0", "< 1")

    def __deepcopy__(self, memo: object) -> Self:
        """Return the recipe itself, so that copies of the module do not copy the parser behind a class path."""
        return self


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """Settings of one step."""

    learning_rates: dict[Group, float]
    momentum: float  # of all groups, if the optimizer has one
    accumulate: int  # number of steps whose gradients are summed into one update
    class_head_rates: dict[Group, float] = field(default_factory=dict)  # learning rates of groups with `class_head`

    def slowed(self, factor: float) -> Self:
        rates, head_rates = (
            {group: rate * factor for group, rate in rates.items()}
            for rates in (self.learning_rates, self.class_head_rates)
        )
        return replace(self, learning_rates=rates, class_head_rates=head_rates)


def _full_accumulation(recipe: Recipe, batch_size: int) -> int:
    """Return the number of steps per update after warm-up: the nominal batch divided by the batch size, at least 1."""
    return max(round(recipe.nominal_batch / batch_size), 1)


def scaled_weight_decay(recipe: Recipe, batch_size: int) -> float:
    """Return the weight decay, scaled by the ratio of the images per update to the nominal batch."""
    return recipe.weight_decay * batch_size * _full_accumulation(recipe, batch_size) / recipe.nominal_batch


def decay_factor(recipe: Recipe, epoch: int, epochs: int) -> float:
    """Return the fraction of `lr0` in `epoch` (from 0) of `epochs`: 1 at first, decreasing towards `lrf`."""
    progress = epoch / epochs
    if recipe.cosine:
        return (1 - math.cos(progress * math.pi)) / 2 * (recipe.lrf - 1) + 1
    return max(1 - progress, 0) * (1 - recipe.lrf) + recipe.lrf


def settings_at(
    recipe: Recipe, *, step: int, epoch: int, epochs: int, steps_per_epoch: int, batch_size: int
) -> OptimizerSettings:
    """Return learning rates, momentum and accumulation of one step.

    Accumulation never exceeds the number of steps of the whole training: a short training would end without an update.
    The last epoch never belongs to the warm-up. `step` and `epoch` count from 0 since training began, `batch_size` is
    the number of images per step over all ranks.
    """
    decay = decay_factor(recipe, epoch, epochs)
    targets = (recipe.lr0 * decay, recipe.lr0 * CLASS_HEAD_FACTOR * decay)
    accumulate = min(_full_accumulation(recipe, batch_size), steps_per_epoch * epochs)
    warmup = max(round(min(recipe.warmup_epochs, epochs - 1) * steps_per_epoch), 0)
    if step > warmup or warmup == 0:
        rates, head_rates = (dict.fromkeys(Group, target) for target in targets)
        return OptimizerSettings(rates, recipe.momentum, accumulate, head_rates)

    def ramp(start: float, end: float) -> float:
        return float(np.interp(step, (0, warmup), (start, end)))

    starts = {Group.WEIGHT: 0.0, Group.NORMALISATION: 0.0, Group.BIAS: recipe.warmup_bias_lr}
    rates, head_rates = ({group: ramp(start, target) for group, start in starts.items()} for target in targets)
    momentum = ramp(recipe.warmup_momentum, recipe.momentum)
    return OptimizerSettings(rates, momentum, max(1, round(ramp(1, accumulate))), head_rates)
