"""Frozen parts of the graph: no gradients, and batch normalization with fixed statistics."""

from collections.abc import Iterable
from typing import Any

from torch import nn

from yolo_lightning.errors import UserError

Freeze = int | list[int | str]  # the first n layers; or a list of layer numbers and names of parts, such as `22.cv3`


def freeze_parts(graph: Any, freeze: Freeze) -> tuple[str, ...]:
    """Disable the gradients of parts of a YOLOv8 graph, in place, and return the names of the parts."""
    layers = len(graph.model)
    if isinstance(freeze, bool) or (isinstance(freeze, int) and not 0 <= freeze < layers):
        raise UserError(f"model.freeze must be a number of layers from 0 to {layers - 1} or a list, got {freeze}")
    parts: Iterable[int | str] = range(freeze) if isinstance(freeze, int) else freeze
    names = tuple(f"model.{part}" for part in parts)
    modules = dict(graph.named_modules())
    for name, part in zip(names, parts, strict=True):
        if name not in modules:
            raise UserError(
                f"model.freeze must contain layer numbers from 0 to {layers - 1} or names of parts such as 22.cv3, "
                f"got {part!r}"
            )
        modules[name].requires_grad_(False)
    if not any(parameter.requires_grad for parameter in graph.parameters()):
        raise UserError(f"model.freeze must leave at least one of {layers} layers trainable, got {freeze}")
    return names


def keep_norms_frozen(graph: nn.Module, names: tuple[str, ...]) -> None:
    """Put the batch normalization of the named parts into evaluation mode.

    Layers are looked up by name, because some are replaced after construction (SyncBatchNorm).
    """
    for name, layer in graph.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and in_parts(name, names):
            layer.eval()


def in_parts(name: str, parts: tuple[str, ...]) -> bool:
    """Return whether the layer `name` is one of the named parts or inside one."""
    return any(name == part or name.startswith(f"{part}.") for part in parts)
