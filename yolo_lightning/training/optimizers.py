"""Optimizers by name or class path, and the parameter groups whose settings the recipe changes before every step."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from inspect import Parameter, signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from yolo_lightning.errors import UserError
from yolo_lightning.training.recipe import OPTIMIZERS, Group, Recipe, settled
from yolo_lightning.training.schedule import OptimizerSettings
from yolo_lightning.utils.offline import offline

with offline():
    from ultralytics.optim import MuSGD

AUTO_MOMENTUM = 0.9  # with which `auto` builds an optimizer; a warm-up ends at the momentum of the recipe nevertheless
LONG_TRAINING = 10_000  # optimizer steps; a longer training has MuSGD under `auto`, a shorter one AdamW
MUON_SHARES: dict[str, Any] = {"muon": 0.2, "sgd": 1.0}  # factors of the two parts of MuSGD
NORMALIZATIONS = tuple(layer for name, layer in vars(nn).items() if "Norm" in name)

SECOND_BETA = 0.999  # second beta of Adam's family, as in Ultralytics; the first beta is the momentum of the recipe
FROM_RECIPE = {"lr": "lr0", "weight_decay": "weight_decay", "momentum": "momentum"}
"""Optimizer arguments that are set before every step, and their names in the recipe."""


def parameter_groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Split the parameters of a module into biases, weights and normalization weights; only weights decay.

    Parameters without gradient are included: optimizers skip them.
    """
    members: dict[Group, list[nn.Parameter]] = {group: [] for group in (Group.BIAS, Group.WEIGHT, Group.NORMALIZATION)}
    for part in module.modules():
        for name, parameter in part.named_parameters(recurse=False):
            members[_group_of(part, name)].append(parameter)
    return [
        {"params": parameters, "name": group.value, "weight_decay": weight_decay if group is Group.WEIGHT else 0.0}
        for group, parameters in members.items()
    ]


def _group_of(part: nn.Module, name: str) -> Group:
    """Return the group of the parameter `name` of a layer."""
    if "bias" in name:
        return Group.BIAS
    if isinstance(part, NORMALIZATIONS):
        return Group.NORMALIZATION
    return Group.WEIGHT


def muon_groups(graph: Any, weight_decay: float) -> list[dict[str, Any]]:
    """Split the parameters of a detection graph for MuSGD, in the order of Ultralytics.

    Parameters with two or four dimensions are updated by Muon and SGD, the others by SGD. Every group is split again:
    the class branches of the head have learning rates of their own (`CLASS_HEAD_FACTOR`).
    """
    head = graph.model[-1]
    class_branches = (getattr(head, "cv3", None), getattr(head, "one2one_cv3", None))
    of_class_head = {id(parameter) for branch in class_branches if branch for parameter in branch.parameters()}
    roles = (Group.WEIGHT.value, Group.NORMALIZATION.value, Group.BIAS.value, "muon")
    members: dict[tuple[str, bool], list[nn.Parameter]] = {
        (role, in_head): [] for role in roles for in_head in (True, False)
    }
    for part in graph.modules():
        for name, parameter in part.named_parameters(recurse=False):
            role = "muon" if parameter.ndim in (2, 4) else _group_of(part, name).value
            members[role, id(parameter) in of_class_head].append(parameter)
    return [
        {
            "params": parameters,
            "name": f"class head {role}" if in_head else role,
            "role": Group.WEIGHT.value if role == "muon" else role,
            "class_head": in_head,
            "use_muon": role == "muon",
            "weight_decay": weight_decay if role in ("muon", Group.WEIGHT.value) else 0.0,
        }
        for (role, in_head), parameters in members.items()
    ]


def automatic(recipe: Recipe, *, classes: int, optimizer_steps: float, epochs: int, saved: str | None = None) -> Recipe:
    """Return the recipe with the optimizer that `auto` selects, as in Ultralytics.

    Args:
        recipe: The configured recipe, whose `optimizer`, `lr0` and `warmup_bias_lr` are replaced.
        classes: Number of classes.
        optimizer_steps: Those of the whole training, at the nominal batch or the batch size, whichever is larger.
        epochs: Epochs of the whole training.
        saved: Optimizer class in the checkpoint that is resumed, which is kept for a changed number of epochs.
    """
    if saved == "MuSGD" or (saved is None and optimizer_steps > LONG_TRAINING):
        warms_up = min(settled(recipe.warmup_epochs), epochs - 1) > 0
        momentum = recipe.momentum if warms_up else AUTO_MOMENTUM
        return replace(recipe, optimizer="MuSGD", lr0=0.01, momentum=momentum, warmup_bias_lr=0.0)
    lr0 = round(0.002 * 5 / (4 + classes), 6)
    return replace(recipe, optimizer="AdamW", lr0=lr0, momentum=AUTO_MOMENTUM, warmup_bias_lr=0.0)


def make_optimizer(recipe: Recipe, groups: list[dict[str, Any]], *, scaled: bool = False) -> Optimizer:
    """Return the optimizer over groups of `parameter_groups`.

    `scaled` is whether a gradient scaler is used (precision 16-mixed).
    """
    choice = recipe.optimizer
    build = choice if callable(choice) else _named(choice, recipe)
    try:
        optimizer = build(groups)
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"it returns {type(optimizer).__name__}")
    except (TypeError, ValueError) as error:
        raise UserError(
            f"model.recipe.optimizer must accept the parameters of the network, as {', '.join(OPTIMIZERS)} do: {error}"
        ) from error
    name = type(optimizer).__name__
    if callable(choice):
        _check_arguments(optimizer)
    if scaled and recipe.clip_norm and getattr(optimizer, "_step_supports_amp_scaling", False):
        raise UserError(
            f"model.recipe.optimizer: {name} with fused true unscales gradients after they have been clipped; with "
            "trainer.precision 16-mixed set fused to false, or model.recipe.clip_norm to 0"
        )
    optimizer.register_load_state_dict_post_hook(match_layouts)
    return optimizer


def _check_arguments(optimizer: Optimizer) -> None:
    """Raise a UserError if an argument of a class of the user is set before every step, from the recipe."""
    name = type(optimizer).__name__
    for argument, option in FROM_RECIPE.items():
        parameter = signature(type(optimizer)).parameters.get(argument)
        value = optimizer.defaults.get(argument)
        if parameter is not None and parameter.default is not Parameter.empty and value != parameter.default:
            raise UserError(f"model.recipe.optimizer: {name} got {argument} {value}; set model.recipe.{option} instead")


def _named(name: str, recipe: Recipe) -> Callable[[list[dict[str, Any]]], Optimizer]:
    arguments: dict[str, Any] = {"betas": (recipe.momentum, SECOND_BETA)}
    if name in ("SGD", "MuSGD", "RMSprop"):
        arguments = {"momentum": recipe.momentum}
    if name in ("SGD", "MuSGD"):
        arguments["nesterov"] = True
    if name == "MuSGD":
        return partial(MuSGD, lr=recipe.lr0, **arguments, **MUON_SHARES)
    return partial(getattr(torch.optim, name), lr=recipe.lr0, **arguments)


def apply_settings(optimizer: Optimizer, settings: OptimizerSettings, weight_decay: float) -> None:
    """Set learning rate, momentum (if the optimizer has one) and weight decay of every parameter group."""
    for group in optimizer.param_groups:
        rates = settings.class_head_rates if group.get("class_head") else settings.learning_rates
        role = group.get("role", group["name"])
        group["lr"] = rates[role]
        if "momentum" in group:
            group["momentum"] = settings.momentum
        group["weight_decay"] = weight_decay if role == Group.WEIGHT else 0.0


def match_layouts(optimizer: Optimizer) -> None:
    """Give loaded states the memory layout of their parameters.

    With `fused` true, PyTorch reads parameters and states in the order of their memory: on a CPU, states that were
    saved in another layout (`model.convolution.memory_format`) would belong to other weights.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for parameter in parameters:
        states = optimizer.state.get(parameter, {})
        for name, value in states.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape and value.stride() != parameter.stride():
                states[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def check_same_optimizer(saved: str | None, optimizer: Optimizer) -> None:
    """Raise a UserError if the optimizer class in the checkpoint is known and another one."""
    name = type(optimizer).__name__
    if saved not in (None, name):
        raise UserError(
            f"model.recipe.optimizer must be {saved}, as in the checkpoint, got {name}; to train with another "
            "optimizer start a new run from the weights with model.weights"
        )
