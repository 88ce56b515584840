"""What users may choose: a value of a list, a device; anything else is refused with what is allowed."""

from collections.abc import Iterable
from typing import Any, get_args

import torch


def check_choices(name: str, values: Iterable[str], choices: Any) -> None:
    """Refuse values that are not among `choices`, a `Literal`.

    Raises:
        ValueError: If one is not.
    """
    for value in values:
        if value not in get_args(choices):
            raise ValueError(f"{name} is {value!r}, allowed are {', '.join(get_args(choices))}")


def chosen_device(name: str) -> torch.device:
    """The device of that name, `auto` being the accelerator where there is one; it is tried out.

    Raises:
        ValueError: If there is no such device here.
    """
    available = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if name == "auto":
        return torch.device("cpu") if available is None else available
    allowed = "auto, cpu" + (f", {available}" if available is not None else "; no accelerator was found")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(f"device is {name!r}, allowed are {allowed}") from error
    if device.type not in ("cpu", "cuda", "xpu", "mps"):
        raise ValueError(f"device is {name!r}, allowed are {allowed}")
    return device
