"""Search for layers that a model holds without registering them as submodules."""

from collections.abc import Collection, Iterable, Iterator

from torch import nn

DEEPEST = 3  # Levels of nested lists and dictionaries that are searched
LONGEST = 1000  # Longer lists and dictionaries are data, not layers
REGISTRIES = frozenset(vars(nn.Module()))
"""Attributes of every module: those with submodules, parameters, buffers and hooks."""


def unregistered_layers(module: nn.Module, skipped: Collection[int] = ()) -> Iterator[tuple[str, nn.Module]]:
    """Yield name and module of the layers in plain lists, tuples, sets and dictionaries of a model, and below them.

    A layer that is a submodule at another place of the model is left out. `skipped` are the ids of submodules whose
    attributes are not searched.
    """
    seen = {id(submodule) for submodule in module.modules()}
    for prefix, submodule in list(module.named_modules()):
        if id(submodule) in skipped:
            continue
        for attribute, value in vars(submodule).items():
            if attribute in REGISTRIES:
                continue
            name = f"{prefix}.{attribute}" if prefix else attribute
            for place, held in _held_modules(name, value, DEEPEST):
                for path, layer in held.named_modules(prefix=place):
                    if id(layer) not in seen:
                        seen.add(id(layer))
                        yield path, layer


def _held_modules(name: str, value: object, levels: int) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules in a value with the expression that names each of them."""
    if isinstance(value, nn.Module):
        yield name, value
    elif levels and isinstance(value, list | tuple | set | dict) and len(value) <= LONGEST:
        items: Iterable[tuple[object, object]] = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from _held_modules(f"{name}[{key!r}]", item, levels - 1)
