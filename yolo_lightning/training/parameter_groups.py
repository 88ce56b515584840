"""Which parameters decay, and what warms up from which learning rate."""

from enum import StrEnum
from typing import Any

from torch import nn

NORMALISATION_LAYERS = (
    nn.modules.batchnorm._NormBase,
    nn.GroupNorm,
    nn.LayerNorm,
    nn.LocalResponseNorm,
    nn.CrossMapLRN2d,
)


class Group(StrEnum):
    """Why a parameter is in its group: what decays, and what warms up from which learning rate."""

    WEIGHT = "weight"
    NORMALISATION = "normalisation"
    BIAS = "bias"


def parameter_groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Split the parameters into weights (decayed), normalisation weights and biases (neither decayed).

    Args:
        module: Owns the parameters; those without gradient are included, as SGD passes them over.
        weight_decay: Of the weight group.
    """
    members: dict[Group, list[nn.Parameter]] = {group: [] for group in (Group.BIAS, Group.WEIGHT, Group.NORMALISATION)}
    for part in module.modules():
        for name, parameter in part.named_parameters(recurse=False):
            if "bias" in name:
                members[Group.BIAS].append(parameter)
            elif isinstance(part, NORMALISATION_LAYERS):
                members[Group.NORMALISATION].append(parameter)
            else:
                members[Group.WEIGHT].append(parameter)
    return [
        {"params": parameters, "name": group.value, "weight_decay": weight_decay if group is Group.WEIGHT else 0.0}
        for group, parameters in members.items()
    ]
