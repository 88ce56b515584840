"""Optimizers by name or class path, and the parameter groups whose settings the recipe changes before every step."""

from collections.abc import Callable
from functools import partial
from inspect import Parameter, signature
from typing import Any, Literal, get_args

import torch
from lightning.pytorch.cli import OptimizerCallable
from torch import nn
from torch.optim import Optimizer

from yolo_lightning.training.recipe import Group, OptimizerSettings, Recipe

OptimizerName = Literal["SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop"]
OptimizerChoice = OptimizerName | OptimizerCallable
"""A name, with Ultralytics' arguments, or a function of parameter groups, which jsonargparse makes of a class path."""

SECOND_BETA = 0.999  # second beta of Adam's family, as in Ultralytics; the first beta is the momentum of the recipe
FROM_RECIPE = {"lr": "lr0", "weight_decay": "weight_decay", "momentum": "momentum"}
"""Optimizer arguments that are set before every step, and their names in the recipe."""


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
