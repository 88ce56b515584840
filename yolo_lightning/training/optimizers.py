"""Builds the optimizer that the user chose, over YOLOv8's parameter groups, and sets it for a step of the recipe."""

from functools import partial
from inspect import Parameter, signature
from typing import Any, Literal, Protocol, get_args

import torch
from lightning.pytorch.cli import OptimizerCallable
from torch.optim import Optimizer

from yolo_lightning.training.parameter_groups import Group
from yolo_lightning.training.recipe import OptimizerSettings, Recipe

OptimizerName = Literal["SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop"]
OptimizerChoice = OptimizerName | OptimizerCallable
"""A name, with the arguments that Ultralytics gives it; or a callable over parameter groups, such as jsonargparse makes
of a class path."""

SECOND_BETA = 0.999
"""Of Adam's family; the first one is the recipe's momentum, as in Ultralytics."""

FROM_RECIPE = {"lr": "lr0", "weight_decay": "weight_decay", "momentum": "momentum"}
"""Arguments of optimizers that are set anew in every step, and the recipe's names for them."""


class OptimizerMaker(Protocol):
    """Makes an optimizer over groups of `parameter_groups`; `scaled` says whether gradients come scaled (16-mixed)."""

    def __call__(self, groups: list[dict[str, Any]], *, scaled: bool) -> Optimizer:
        """The optimizer."""
        ...


def optimizer_maker(choice: OptimizerChoice, recipe: Recipe) -> OptimizerMaker:
    """What makes the optimizer, once there are parameters on their device.

    A plain function: a copy of the module that keeps it (EMA makes one) must not copy the parser behind a class path.

    Args:
        choice: What the user asked for.
        recipe: The numbers; learning rate, decay and momentum are set anew by `apply_settings`.

    Raises:
        ValueError: If the choice is unknown; by the function, if it sets what the recipe decides, or cannot be clipped.
    """
    if callable(choice):
        build, from_recipe = choice, FROM_RECIPE
    else:
        build, from_recipe = _named(choice, recipe), {}

    def make(groups: list[dict[str, Any]], *, scaled: bool) -> Optimizer:
        optimizer = build(groups)
        name = type(optimizer).__name__
        for argument, ours in from_recipe.items():
            parameter = signature(type(optimizer)).parameters.get(argument)
            given = optimizer.defaults.get(argument)
            if parameter is not None and parameter.default is not Parameter.empty and given != parameter.default:
                raise ValueError(f"model.optimizer: {name} has {argument} {given}; give it as model.{ours} instead")
        if scaled and recipe.clip_norm and getattr(optimizer, "_step_supports_amp_scaling", False):
            raise ValueError(
                f"model.optimizer: {name} with fused true unscales gradients after model.clip_norm {recipe.clip_norm} "
                "has clipped them; allowed with trainer.precision 16-mixed is fused false, or model.clip_norm 0"
            )
        return optimizer

    return make


def _named(name: str, recipe: Recipe) -> OptimizerCallable:
    if name not in get_args(OptimizerName):
        allowed = ", ".join(get_args(OptimizerName))
        raise ValueError(f"model.optimizer is {name!r}, allowed are {allowed}, or the path of an optimizer class")
    arguments: dict[str, Any] = {"lr": recipe.lr0}
    if name == "SGD":
        arguments |= {"momentum": recipe.momentum, "nesterov": True}
    elif name == "RMSprop":
        arguments |= {"momentum": recipe.momentum}
    else:
        arguments |= {"betas": (recipe.momentum, SECOND_BETA)}
    return partial(getattr(torch.optim, name), **arguments)


def apply_settings(optimizer: Optimizer, settings: OptimizerSettings, weight_decay: float) -> None:
    """Set learning rate, momentum (where the optimizer has one) and decay of every group.

    Args:
        optimizer: Over groups of `parameter_groups`.
        settings: Of this step.
        weight_decay: Of the weight group.
    """
    for group in optimizer.param_groups:
        group["lr"] = settings.learning_rates[group["name"]]
        if "momentum" in group:
            group["momentum"] = settings.momentum
        group["weight_decay"] = weight_decay if group["name"] == Group.WEIGHT else 0.0


def check_same_optimizer(saved: str | None, optimizer: Optimizer) -> None:
    """Refuse to continue with the state of another optimizer; `saved` is the name of its class, None if unknown.

    Raises:
        ValueError: If they differ.
    """
    name = type(optimizer).__name__
    if saved not in (None, name):
        raise ValueError(
            f"model.optimizer makes {name}, the checkpoint was trained with {saved}: allowed is {saved}, or a new run "
            "from its weights with --model.weights"
        )
