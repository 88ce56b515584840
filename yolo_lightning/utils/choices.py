"""Checks of option values, and the choice of a device."""

import operator
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, TypeVar, get_args

import torch

from yolo_lightning.utils.suggestions import did_you_mean, similar

Settings = TypeVar("Settings")

COMPARISONS = {">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt}


def check_choices(name: str, values: Iterable[str], choices: Any) -> None:
    """Raise a ValueError if one of the values is not in `choices`, a `Literal`; `name` is the full option name."""
    for value in values:
        if value not in get_args(choices):
            raise ValueError(f"{name} must be one of {', '.join(get_args(choices))}, got {value!r}")


def as_settings(kind: type[Settings], value: Settings | Mapping[str, Any]) -> Settings:
    """Return a group of settings, which a checkpoint stores as a dictionary; raise a ValueError for other values."""
    if isinstance(value, kind):
        return value
    known = [one.name for one in fields(kind)]  # type: ignore[arg-type]
    if not isinstance(value, Mapping):
        raise ValueError(f"{kind.__name__}({', '.join(known)}) is expected, got {value!r}")
    for name in value.keys() - known:
        raise ValueError(f"{kind.__name__} has no setting {name!r}{did_you_mean(similar(name, known))}")
    return kind(**value)


def check_range(name: str, value: float | str, *limits: str) -> None:
    """Raise a ValueError unless the value satisfies all limits, such as `>= 0` or `< 1`; NaN and texts satisfy none."""
    for limit in limits:
        sign, bound = limit.split()
        if isinstance(value, str):
            raise ValueError(f"{name} must be a number {' and '.join(limits)}, got the text {value!r}")
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
