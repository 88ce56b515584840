"""The accelerator of this process, of any vendor (CUDA, ROCm, XPU, MPS): memory, random generators, names."""

from typing import Any

import torch
from torch import Tensor

from yolo_lightning.errors import UserError
from yolo_lightning.utils.activity import Activity, during

OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "STATUS_ALLOC_FAILED")
"""Messages of `RuntimeError`s by which MPS, the CPU allocator and BLAS libraries report a lack of memory."""

NO_PINNED_MEMORY = ("cpu", "mps", "meta")
"""Device types that share the memory of the host, or have none."""


def is_out_of_memory(error: RuntimeError) -> bool:
    """Return whether an error reports a lack of memory; only some backends raise `torch.OutOfMemoryError`."""
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in OUT_OF_MEMORY)


def uses_pinned_memory(device: torch.device) -> bool:
    """Return whether copies to a device are faster from page-locked memory."""
    return device.type not in NO_PINNED_MEMORY


def free_cached_memory(device: torch.device) -> None:
    """Return the unused memory that the allocator of a device has cached to the driver."""
    _call(device, "empty_cache")


def synchronize(device: torch.device) -> None:
    """Wait until a device has finished its work."""
    with during(Activity.DEVICE_WAIT):
        _call(device, "synchronize")


def device_name(device: torch.device) -> str:
    """Return the model of an accelerator, or else its type."""
    get_device_name = _function(device.type, "get_device_name")
    return device.type if get_device_name is None else str(get_device_name(device))


def accelerator_type() -> str:
    """Return the type of the accelerator that torch finds, such as `cuda`, `xpu` or `mps`; `cpu` without one."""
    return accelerator_or_cpu().type


def accelerator_or_cpu() -> torch.device:
    """Return the current accelerator, or the CPU, without using the accelerator."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return accelerator or torch.device("cpu")


def random_states() -> tuple[str, list[Tensor]]:
    """Return the type of the accelerator, and the states of the random generators of its devices."""
    device_type = accelerator_type()
    get_all = _function(device_type, "get_rng_state_all")
    get_first = _function(device_type, "get_rng_state")
    if device_type == "cpu" or get_first is None:
        return device_type, []
    if get_all is None:
        return device_type, [get_first()]
    return device_type, list(get_all())


def set_random_states(device_type: str, states: list[Tensor]) -> None:
    """Set the random generators of accelerators, unless their type or number has changed."""
    current_type, current_states = random_states()
    if device_type != current_type or not states or len(states) != len(current_states):
        return
    on_host = [state.cpu() for state in states]
    set_all = _function(device_type, "set_rng_state_all")
    set_first = _function(device_type, "set_rng_state")
    if set_all is not None:
        set_all(on_host)
    elif set_first is not None:
        set_first(on_host[0])


def _call(device: torch.device, name: str) -> None:
    if device.type in ("cpu", "meta"):
        return
    function = _function(device.type, name)
    if function is not None:
        function()


def _function(device_type: str, name: str) -> Any:
    """Return a function of `torch.cuda`, `torch.xpu`, `torch.mps`, ..., or None if the backend has none."""
    return getattr(torch.get_device_module(device_type), name, None)


def chosen_device(name: str) -> torch.device:
    """Return the device called `name` after a test allocation; `auto` is the accelerator, or the CPU without one."""
    available = accelerator_or_cpu()
    if name == "auto":
        return available
    accepted = dict.fromkeys(("auto", "cpu", str(available)))
    problem = f"device must be one of {', '.join(accepted)}, got {name!r}"
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UserError(problem) from error
    if device.type not in ("cpu", "cuda", "xpu", "mps"):
        raise UserError(problem)
    return device
