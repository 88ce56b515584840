"""Which parts of the graph keep their weights: no gradients, and normalisation by what was learned before."""

from collections.abc import Iterable
from typing import Any

from torch import nn

Freeze = int | list[int | str]
"""The first n layers; or a list of layers by number and of parts by name, such as `22.cv3`."""


def freeze_parts(graph: Any, freeze: Freeze) -> tuple[str, ...]:
    """Take the gradients away from parts of the graph.

    Args:
        graph: A YOLOv8 graph; changed in place.
        freeze: Which parts.

    Returns:
        Their names in the graph, for `keep_norms_frozen`.

    Raises:
        ValueError: If there is no such part, or nothing would be left to train.
    """
    layers = len(graph.model)
    if isinstance(freeze, bool) or (isinstance(freeze, int) and not 0 <= freeze < layers):
        raise ValueError(f"model.freeze is {freeze}, allowed are 0 to {layers - 1} layers, or a list of them")
    chosen: Iterable[int | str] = range(freeze) if isinstance(freeze, int) else freeze
    names = tuple(f"model.{part}" for part in chosen)
    modules = dict(graph.named_modules())
    for name, part in zip(names, chosen, strict=True):
        if name not in modules:
            raise ValueError(f"model.freeze names {part!r}, allowed are {_allowed(graph, str(part))}")
        modules[name].requires_grad_(False)
    if not any(parameter.requires_grad for parameter in graph.parameters()):
        raise ValueError(f"model.freeze {freeze} leaves nothing to train, allowed are fewer of the {layers} layers")
    return names


def keep_norms_frozen(graph: nn.Module, names: tuple[str, ...]) -> None:
    """Put the normalisation of frozen parts into evaluation: their statistics stay, and are what is normalised by.

    Looks layers up by name, as some are replaced after construction (SyncBatchNorm).
    """
    for name, layer in graph.named_modules():
        is_frozen = any(name == part or name.startswith(f"{part}.") for part in names)
        if is_frozen and isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.eval()


def _allowed(graph: Any, part: str) -> str:
    layer = part.partition(".")[0]
    layers = f"the numbers 0 to {len(graph.model) - 1}"
    if not layer.isdecimal() or int(layer) >= len(graph.model):
        return f"{layers}, and names of parts such as 22.cv3"
    parts = ", ".join(f"{layer}.{name}" for name, _ in graph.model[int(layer)].named_children())
    return f"{layers}, and in layer {layer} the parts {parts or 'none'}"
