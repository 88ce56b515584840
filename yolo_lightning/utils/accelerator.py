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
    backend: Any = torch.get_device_module(device.type)
    if not hasattr(backend, "get_device_name"):
        return device.type
    return str(backend.get_device_name(device))


def accelerator_or_cpu() -> torch.device:
    """Return the current accelerator, or the CPU, without using the accelerator."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return accelerator or torch.device("cpu")


def random_states() -> tuple[str, list[Tensor]]:
    """Return the type of the accelerator, and the states of the random generators of its devices."""
    device_type = accelerator_or_cpu().type
    backend: Any = torch.get_device_module(device_type)
    if not hasattr(backend, "get_rng_state"):  # the CPU, whose generator is not one of an accelerator
        return device_type, []
    return device_type, [backend.get_rng_state(number) for number in range(backend.device_count())]


def set_random_states(device_type: str, states: list[Tensor]) -> None:
    """Set the random generators of accelerators, unless their type or number has changed."""
    current_type, current_states = random_states()
    if device_type == current_type and len(states) == len(current_states):
        backend: Any = torch.get_device_module(device_type)
        for number, state in enumerate(states):
            backend.set_rng_state(state.cpu(), number)


def _call(device: torch.device, name: str) -> None:
    """Call a function of `torch.cuda`, `torch.xpu`, `torch.mps`, ..., if the backend has this function."""
    if device.type in ("cpu", "meta"):
        return
    backend: Any = torch.get_device_module(device.type)
    if hasattr(backend, name):
        getattr(backend, name)()


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
    except (RuntimeError, AssertionError) as error:
        raise UserError(problem) from error
    if device.type not in ("cpu", "cuda", "xpu", "mps"):
        raise UserError(problem)
    return device
