"""YOLOv8's optimization recipe: parameter groups, schedules as functions of the position in training, optimizers.

A *step* is one forward and backward pass, an *update* is one optimizer step. The gradients of several steps are summed,
not averaged, into one update, until the nominal batch size is reached.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from inspect import Parameter, signature
from typing import Any, Literal, Self, get_args

import numpy as np
import torch
from lightning.pytorch.cli import OptimizerCallable
from torch import nn
from torch.optim import Optimizer

from yolo_lightning.utils.choices import check_range

OptimizerName = Literal["SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop"]
OptimizerChoice = OptimizerName | OptimizerCallable
"""A name, with Ultralytics' arguments, or a function of parameter groups, which jsonargparse makes of a class path."""

SECOND_BETA = 0.999  # second beta of Adam's family, as in Ultralytics; the first beta is the momentum of the recipe
FROM_RECIPE = {"lr": "lr0", "weight_decay": "weight_decay", "momentum": "momentum"}
"""Optimizer arguments that are set before every step, and their names in the recipe."""


class Group(StrEnum):
    """Parameter group. Only weights decay; biases have a warm-up of their own."""

    WEIGHT = "weight"
    NORMALISATION = "normalisation"
    BIAS = "bias"


def parameter_groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Split the parameters of a module into biases, weights and normalisation weights; only weights decay.

    Parameters without gradient are included: optimizers skip them.
    """
    members: dict[Group, list[nn.Parameter]] = {group: [] for group in (Group.BIAS, Group.WEIGHT, Group.NORMALISATION)}
    for part in module.modules():
        for name, parameter in part.named_parameters(recurse=False):
            if "bias" in name:
                members[Group.BIAS].append(parameter)
            elif isinstance(part, nn.modules.batchnorm._NormBase):
                members[Group.NORMALISATION].append(parameter)
            else:
                members[Group.WEIGHT].append(parameter)
    return [
        {"params": parameters, "name": group.value, "weight_decay": weight_decay if group is Group.WEIGHT else 0.0}
        for group, parameters in members.items()
    ]


@dataclass(frozen=True)
class Recipe:
    """Hyperparameters of the recipe, documented at `YOLOModule`; the defaults are YOLOv8's."""

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
        check_range("model.lr0", self.lr0, "> 0")
        for name in ("lrf", "momentum", "warmup_momentum"):
            check_range(f"model.{name}", getattr(self, name), ">= 0", "<= 1")
        for name in ("weight_decay", "warmup_epochs", "warmup_bias_lr", "clip_norm"):
            check_range(f"model.{name}", getattr(self, name), ">= 0")
        check_range("model.nominal_batch", self.nominal_batch, ">= 1")


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """Settings of one step."""

    learning_rates: dict[Group, float]
    momentum: float  # of all groups, if the optimizer has one
    accumulate: int  # number of steps whose gradients are summed into one update

    def slowed(self, factor: float) -> Self:
        return replace(self, learning_rates={group: rate * factor for group, rate in self.learning_rates.items()})


def full_accumulation(recipe: Recipe, batch_size: int) -> int:
    """Return the number of steps per update after warm-up: the nominal batch divided by the batch size, at least 1."""
    return max(round(recipe.nominal_batch / batch_size), 1)


def scaled_weight_decay(recipe: Recipe, batch_size: int) -> float:
    """Return the weight decay, scaled by the ratio of the images per update to the nominal batch."""
    return recipe.weight_decay * batch_size * full_accumulation(recipe, batch_size) / recipe.nominal_batch


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
    target_lr = recipe.lr0 * decay_factor(recipe, epoch, epochs)
    accumulate = min(full_accumulation(recipe, batch_size), steps_per_epoch * epochs)
    warmup = max(round(min(recipe.warmup_epochs, epochs - 1) * steps_per_epoch), 0)
    if step > warmup or warmup == 0:
        return OptimizerSettings(dict.fromkeys(Group, target_lr), recipe.momentum, accumulate)

    def ramp(start: float, end: float) -> float:
        return float(np.interp(step, (0, warmup), (start, end)))

    learning_rates = {group: ramp(0.0, target_lr) for group in (Group.WEIGHT, Group.NORMALISATION)}
    learning_rates[Group.BIAS] = ramp(recipe.warmup_bias_lr, target_lr)
    return OptimizerSettings(
        learning_rates, ramp(recipe.warmup_momentum, recipe.momentum), max(1, round(ramp(1, accumulate)))
    )


def optimizer_maker(choice: OptimizerChoice, recipe: Recipe) -> Callable[..., Optimizer]:
    """Return a function `make(groups, *, scaled)` that builds the optimizer over groups of `parameter_groups`.

    `scaled` is whether a gradient scaler is used (precision 16-mixed). The result is a plain function, so that a deep
    copy of the module that stores it, such as the one of EMA, does not copy the parser behind a class path.
    """
    build, from_recipe = (choice, FROM_RECIPE) if callable(choice) else (_named(choice, recipe), {})

    def make(groups: list[dict[str, Any]], *, scaled: bool) -> Optimizer:
        optimizer = build(groups)
        name = type(optimizer).__name__
        for argument, option in from_recipe.items():
            parameter = signature(type(optimizer)).parameters.get(argument)
            given = optimizer.defaults.get(argument)
            if parameter is not None and parameter.default is not Parameter.empty and given != parameter.default:
                raise ValueError(f"model.optimizer: {name} got {argument} {given}; set model.{option} instead")
        if scaled and recipe.clip_norm and getattr(optimizer, "_step_supports_amp_scaling", False):
            raise ValueError(
                f"model.optimizer: {name} with fused true unscales gradients after they have been clipped; with "
                "trainer.precision 16-mixed set fused to false, or model.clip_norm to 0"
            )
        return optimizer

    return make


def _named(name: str, recipe: Recipe) -> OptimizerCallable:
    if name not in get_args(OptimizerName):
        names = ", ".join(get_args(OptimizerName))
        raise ValueError(f"model.optimizer must be one of {names}, or the path of an optimizer class, got {name!r}")
    arguments: dict[str, Any] = {"betas": (recipe.momentum, SECOND_BETA)}
    if name in ("SGD", "RMSprop"):
        arguments = {"momentum": recipe.momentum}
    if name == "SGD":
        arguments["nesterov"] = True
    return partial(getattr(torch.optim, name), lr=recipe.lr0, **arguments)


def apply_settings(optimizer: Optimizer, settings: OptimizerSettings, weight_decay: float) -> None:
    """Set learning rate, momentum (if the optimizer has one) and weight decay of every parameter group."""
    for group in optimizer.param_groups:
        group["lr"] = settings.learning_rates[group["name"]]
        if "momentum" in group:
            group["momentum"] = settings.momentum
        group["weight_decay"] = weight_decay if group["name"] == Group.WEIGHT else 0.0


def check_same_optimizer(saved: str | None, optimizer: Optimizer) -> None:
    """Raise a ValueError if the optimizer class in the checkpoint is known and another one."""
    name = type(optimizer).__name__
    if saved not in (None, name):
        raise ValueError(
            f"model.optimizer must be {saved}, as in the checkpoint, got {name}; to train with another optimizer start "
            "a new run from the weights with --model.weights"
        )
