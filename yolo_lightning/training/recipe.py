"""YOLOv8's optimisation recipe as pure functions of the position in training.

A *step* is one batch forward and backward; an *update* is one step of the optimizer. Gradients of several steps are
summed, not averaged, into one update, until the nominal batch is reached.
"""

import math
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from yolo_lightning.training.parameter_groups import Group


@dataclass(frozen=True)
class Recipe:
    """The numbers of the recipe; defaults are YOLOv8's.

    Attributes:
        lr0: Learning rate after warm-up.
        lrf: Share of `lr0` left at the end, 0 to 1.
        momentum: Momentum after warm-up, or the first beta of an optimizer of Adam's family.
        weight_decay: L2 decay of convolution weights at the nominal batch.
        warmup_epochs: Length of the warm-up, epochs.
        warmup_momentum: Momentum at the start of the warm-up.
        warmup_bias_lr: Learning rate of biases at the start of the warm-up.
        cosine: Decay along a half cosine instead of a line.
        nominal_batch: Frames whose gradients make one update.
        clip_norm: Gradients are scaled down to this L2 norm; 0 switches it off.
    """

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

    def __post_init__(self) -> None:
        if self.lr0 <= 0:
            raise ValueError(f"lr0 is {self.lr0}, allowed are values above 0")
        for name in ("lrf", "momentum", "warmup_momentum"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}, allowed are 0 to 1")
        for name in ("weight_decay", "warmup_epochs", "warmup_bias_lr", "clip_norm"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}, allowed are 0 and more")
        if self.nominal_batch < 1:
            raise ValueError(f"nominal_batch is {self.nominal_batch}, allowed are 1 and more")


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """What the optimizer uses in one step.

    Attributes:
        learning_rates: Per parameter group.
        momentum: Of all groups, where the optimizer has one.
        accumulate: Steps whose gradients make one update.
    """

    learning_rates: dict[Group, float]
    momentum: float
    accumulate: int

    def slowed(self, factor: float) -> Self:
        """With learning rates multiplied by `factor`."""
        return replace(self, learning_rates={group: rate * factor for group, rate in self.learning_rates.items()})


def full_accumulation(recipe: Recipe, batch_size: int) -> int:
    """Steps per update after warm-up: as many batches as come nearest to the nominal batch, at least 1."""
    return max(round(recipe.nominal_batch / batch_size), 1)


def scaled_weight_decay(recipe: Recipe, batch_size: int) -> float:
    """Weight decay for the batch that an update really sums over."""
    return recipe.weight_decay * batch_size * full_accumulation(recipe, batch_size) / recipe.nominal_batch


def decay_factor(recipe: Recipe, epoch: int, epochs: int) -> float:
    """Share of `lr0` in `epoch` (from 0) of `epochs`: 1 at first, towards `lrf` at the end."""
    progress = epoch / epochs
    if recipe.cosine:
        return (1 - math.cos(progress * math.pi)) / 2 * (recipe.lrf - 1) + 1
    return max(1 - progress, 0) * (1 - recipe.lrf) + recipe.lrf


def warmup_steps(recipe: Recipe, steps_per_epoch: int, epochs: int) -> int:
    """Length of the warm-up in steps; the last epoch never belongs to it."""
    return max(round(min(recipe.warmup_epochs, epochs - 1) * steps_per_epoch), 0)


def settings_at(
    recipe: Recipe, *, step: int, epoch: int, epochs: int, steps_per_epoch: int, batch_size: int
) -> OptimizerSettings:
    """Learning rates, momentum and accumulation of one step.

    Accumulation never exceeds the steps of the whole training, or a short one would end without an update.

    Args:
        recipe: The numbers.
        step: Steps taken before this one since training began.
        epoch: The current epoch, from 0.
        epochs: Length of the training.
        steps_per_epoch: Batches per epoch.
        batch_size: Frames per step over all processes.
    """
    target_lr = recipe.lr0 * decay_factor(recipe, epoch, epochs)
    accumulate = min(full_accumulation(recipe, batch_size), steps_per_epoch * epochs)
    warmup = warmup_steps(recipe, steps_per_epoch, epochs)
    if step > warmup or warmup == 0:
        return OptimizerSettings(dict.fromkeys(Group, target_lr), recipe.momentum, accumulate)

    def ramp(start: float, end: float) -> float:
        return float(np.interp(step, (0, warmup), (start, end)))

    learning_rates = {group: ramp(0.0, target_lr) for group in (Group.WEIGHT, Group.NORMALISATION)}
    learning_rates[Group.BIAS] = ramp(recipe.warmup_bias_lr, target_lr)
    return OptimizerSettings(
        learning_rates, ramp(recipe.warmup_momentum, recipe.momentum), max(1, round(ramp(1, accumulate)))
    )
