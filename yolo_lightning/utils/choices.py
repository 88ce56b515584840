"""Checks of option values, and the choice of a device."""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from numbers import Integral, Real
from os import PathLike
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, dataclass_transform, get_args, get_origin, get_type_hints

import torch

from yolo_lightning.utils.suggestions import did_you_mean, similar

Settings = TypeVar("Settings")
TYPES: dict[Any, tuple[Any, str]] = {
    int: (Integral, "an integer"),
    float: (Real, "a number"),
    bool: (bool, "true or false"),
    str: ((str, PathLike), "a text"),
    **dict.fromkeys((tuple, list, Sequence), ((tuple, list), "a list")),
    NoneType: (NoneType, "null"),
    Callable: (Callable, "a class path"),
}
"""Accepted values of an annotated type, and their name."""

COMPARISONS = {">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt}


def check_choices(name: str, values: Iterable[str], choices: Any) -> None:
    """Raise a ValueError if one of the values is not in `choices`, a `Literal`; `name` is the full option name."""
    for value in values:
        if value not in get_args(choices):
            raise ValueError(f"{name} must be one of {', '.join(get_args(choices))}, got {value!r}")


def as_settings(kind: type[Settings], value: Settings | Mapping[str, Any]) -> Settings:
    """Return a group of settings, which a checkpoint stores as a dictionary; raise a ValueError for unknown names."""
    if not isinstance(value, Mapping):
        return value
    known = [one.name for one in fields(kind)]  # type: ignore[arg-type]
    for name in value.keys() - known:
        raise ValueError(f"{kind.__name__} has no setting {name!r}{did_you_mean(similar(name, known))}")
    return kind(**value)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def settings_group(key: str) -> Callable[[type[Settings]], type[Settings]]:
    """Return a decorator for a frozen dataclass of the options `key.*`; it checks types before `__post_init__`."""

    def decorated(kind: type[Settings]) -> type[Settings]:
        check_values = getattr(kind, "__post_init__", lambda _: None)

        def check(self: Settings) -> None:
            check_types(key, kind, {one.name: getattr(self, one.name) for one in fields(self)})  # type: ignore[arg-type]
            check_values(self)

        kind.__post_init__ = check  # type: ignore[attr-defined]
        return dataclass(frozen=True)(kind)

    return decorated


def check_types(key: str, annotated: Any, values: Mapping[str, Any]) -> None:
    """Raise a ValueError if a value does not have the type that a class or a function annotates for its name."""
    for name, hint in get_type_hints(annotated).items():
        if name in values and not _has_type(values[name], hint):
            names: list[str] = []
            for one in _alternatives(hint):
                kind = get_origin(one) or one
                names += map(str, get_args(one)) if kind is Literal else [TYPES.get(kind, (kind, kind.__name__))[1]]
            accepted = " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
            raise ValueError(f"{key}.{name} must be {accepted}, got {values[name]!r}")


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _has_type(value: Any, hint: Any) -> bool:
    if len(kinds := _alternatives(hint)) > 1:
        return any(_has_type(value, one) for one in kinds)
    kind, elements = get_origin(hint) or hint, get_args(hint)
    if kind is Literal:
        return value in elements
    if kind is Any or (is_dataclass(kind) and isinstance(value, Mapping)):
        return True
    accepted, _ = TYPES.get(kind, (kind, ""))
    members = value if kind in (tuple, list, Sequence) and isinstance(value, accepted) else ()
    return isinstance(value, accepted) and all(_has_type(one, elements[0]) for one in members)


def check_range(name: str, value: Any, *limits: str) -> None:
    """Raise a ValueError unless the value is a number that satisfies all limits, such as `>= 0` or `< 1`; no NaN."""
    if not isinstance(value, Real):
        what = "the text " if isinstance(value, str) else ""
        raise ValueError(f"{name} must be a number {' and '.join(limits)}, got {what}{value!r}")
    for limit in limits:
        sign, bound = limit.split()
        if not COMPARISONS[sign](value, float(bound)):
            raise ValueError(f"{name} must be {' and '.join(limits)}, got {value!r}")


def chosen_device(name: str) -> torch.device:
    """Return the device called `name` after a test allocation; `auto` is the accelerator, or the CPU without one."""
    available = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if name == "auto":
        return torch.device("cpu") if available is None else available
    problem = f"device must be one of auto, cpu{f', {available}' if available is not None else ''}, got {name!r}"
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(problem) from error
    if device.type not in ("cpu", "cuda", "xpu", "mps"):
        raise ValueError(problem)
    return device
