"""Memory of a device, for CUDA, ROCm, XPU, MPS and CPU; torch 2.11 and newer."""

import gc
from contextlib import suppress
from typing import Any

import torch

from yolo_lightning.commands.benchmark.comparison import synchronize
from yolo_lightning.utils.choices import chosen_device

MIB = 2**20


def open_device(name: str) -> torch.device:
    """Return the device called `name`, with its index, and make it the current device of its kind.

    Raises:
        ValueError: If there is no such device.
    """
    device = chosen_device(name)
    if device.type not in ("cuda", "xpu"):
        return device
    if ":" not in str(device):
        device = torch.device(device.type, torch.accelerator.current_device_index())
    torch.accelerator.set_device_index(device.index)
    return device


def memory_bytes(device: torch.device) -> int | None:
    """Return the total memory of an accelerator in bytes, or None if it is unknown or the device is a CPU."""
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory())
    if device.type in ("cuda", "xpu"):
        return int(torch.get_device_module(device).get_device_properties(device).total_memory)
    return None


def begin_peak(device: torch.device) -> None:
    """Begin a measurement of the peak memory."""
    synchronize(device)
    if device.type in ("cuda", "xpu"):
        torch.get_device_module(device).reset_peak_memory_stats(device)


def peak_bytes(device: torch.device) -> int | None:
    """Return the highest memory use of tensors since `begin_peak` in bytes, or None if it cannot be measured."""
    synchronize(device)
    if device.type in ("cuda", "xpu"):
        return int(torch.get_device_module(device).max_memory_allocated(device))
    return None


def free_cached_memory(device: torch.device) -> None:
    """Return the memory that torch holds for later tensors to the device."""
    gc.collect()
    if device.type != "cpu":
        torch.get_device_module(device).empty_cache()


def limit_memory(device: torch.device, limit_bytes: int | None) -> bool:
    """Limit the memory that torch may allocate; None removes the limit. Return whether the device supports a limit."""
    total, module = memory_bytes(device), None if device.type == "cpu" else torch.get_device_module(device)
    setter: Any = getattr(module, "set_per_process_memory_fraction", None)
    if total is None or setter is None or (limit_bytes is not None and limit_bytes >= total):
        return False
    fraction = 1.0 if limit_bytes is None else limit_bytes / total
    if device.type == "mps":
        setter(fraction)
    else:
        setter(fraction, device)
    return True


def supports_float64(device: torch.device) -> bool:
    """Return whether the device computes in float64; MPS and some Intel GPUs do not."""
    with suppress(RuntimeError, TypeError):
        return bool((torch.ones(1, dtype=torch.float64, device=device) + 1).item() == 2)
    return False
