"""Options by full key, such as `data.loader.num_workers`, and as nested mappings."""

from collections.abc import Mapping
from typing import Any


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested mappings by full key, with dots between the names."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def section(options: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the options of a section, such as `data.loader`, without its name and the dot."""
    prefix = f"{name}."
    return {key.removeprefix(prefix): value for key, value in options.items() if key.startswith(prefix)}


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    """Return the nested mappings of values by full key; the inverse of `flatten`."""
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        *groups, name = key.split(".")
        place = tree
        for group in groups:
            place = place.setdefault(group, {})
        place[name] = value
    return tree
