"""Schedules: learning rates, momentum and accumulation as functions of the position in training.

A *step* is one forward and backward pass. The gradients of several steps are summed, not averaged, into one optimizer
step, until the nominal batch size is reached.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np

from yolo_lightning.training.recipe import Group, Recipe, settled

CLASS_HEAD_FACTOR = 3.0
"""Factor of the learning rates of the class branches of the head, as in Ultralytics; only MuSGD uses them."""


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """Settings of one step."""

    learning_rates: dict[Group, float]
    momentum: float  # of all groups, if the optimizer has one
    accumulate: int  # number of steps whose gradients are summed into one optimizer step
    class_head_rates: dict[Group, float] = field(default_factory=dict)  # learning rates of groups with `class_head`

    def slowed(self, factor: float) -> Self:
        return replace(
            self,
            learning_rates={group: rate * factor for group, rate in self.learning_rates.items()},
            class_head_rates={group: rate * factor for group, rate in self.class_head_rates.items()},
        )


def _full_accumulation(recipe: Recipe, batch_size: int) -> int:
    """Return the steps per optimizer step after warm-up: the nominal batch divided by the batch size, at least 1."""
    return max(round(settled(recipe.nominal_batch) / batch_size), 1)


def scaled_weight_decay(recipe: Recipe, batch_size: int) -> float:
    """Return the weight decay, scaled by the ratio of the images per optimizer step to the nominal batch."""
    images = batch_size * _full_accumulation(recipe, batch_size)
    return recipe.weight_decay * images / settled(recipe.nominal_batch)


def decay_factor(recipe: Recipe, progress: float) -> float:
    """Return the fraction of `lr0` at a progress of 0 to 1: 1 at first, decreasing to `lrf`."""
    if recipe.cosine:
        return (1 - math.cos(progress * math.pi)) / 2 * (recipe.lrf - 1) + 1
    return max(1 - progress, 0) * (1 - recipe.lrf) + recipe.lrf


def settings_at(
    recipe: Recipe, *, step: int, epochs: float, steps_per_epoch: int, batch_size: int, progress: float
) -> OptimizerSettings:
    """Return learning rates, momentum and accumulation of one step.

    Accumulation never exceeds the number of steps of the whole training: a short training would end without an
    optimizer step. The last epoch never belongs to the warm-up.

    `step` counts from 0 since training began, `batch_size` is the number of images per step over all ranks. `progress`
    of the decay is the number of finished epochs divided by `epochs`, as in Ultralytics, unless the training has a
    deadline (`DeadlineSchedule.progress`).
    """
    decay = decay_factor(recipe, progress)
    rate = recipe.lr0 * decay
    head_rate = recipe.lr0 * CLASS_HEAD_FACTOR * decay
    accumulate = min(_full_accumulation(recipe, batch_size), max(1, round(steps_per_epoch * epochs)))
    warmup = max(round(min(settled(recipe.warmup_epochs), epochs - 1) * steps_per_epoch), 0)
    if step > warmup or warmup == 0:
        rates = dict.fromkeys(Group, rate)
        return OptimizerSettings(rates, recipe.momentum, accumulate, dict.fromkeys(Group, head_rate))

    def ramp(start: float, end: float) -> float:
        return float(np.interp(step, (0, warmup), (start, end)))

    starts = {Group.WEIGHT: 0.0, Group.NORMALIZATION: 0.0, Group.BIAS: recipe.warmup_bias_lr}
    return OptimizerSettings(
        learning_rates={group: ramp(start, rate) for group, start in starts.items()},
        momentum=ramp(recipe.warmup_momentum, recipe.momentum),
        accumulate=max(1, round(ramp(1, accumulate))),
        class_head_rates={group: ramp(start, head_rate) for group, start in starts.items()},
    )
