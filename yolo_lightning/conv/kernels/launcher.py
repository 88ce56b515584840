"""Launches of GPU kernels by name, the elements that the kernels support, and a launcher for a shared library."""

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

Grid = tuple[int, int, int]
Argument = Tensor | None

THREADS = 256
"""Threads of a block; equal to THREADS in elements.cuh."""
# Offsets in the kernels are 32-bit and exceed the last element by up to one tile.
MOST_ELEMENTS = (1 << 31) - (1 << 20)


class KernelElement(NamedTuple):
    """Element of the tensors that a kernel reads and writes."""

    cpp_type: str  # in elements.cuh
    suffix: str  # of the kernel name


ELEMENTS = {
    torch.float32: KernelElement("float", ""),
    torch.float16: KernelElement("Half", "_half"),
    torch.bfloat16: KernelElement("BFloat16", "_bfloat16"),
}


class Launcher(Protocol):
    """Launches a kernel on the current stream of the device of the tensors."""

    def __call__(self, name: str, grid: Grid, tensors: Sequence[Argument], numbers: Sequence[int | float]) -> None:
        """Launch `grid` blocks; the arguments are the addresses of the tensors, followed by the numbers.

        None is a null pointer; an integer is an `int` and a float a `float` of the kernel.
        """


class LibraryLauncher:
    """Launcher of kernels in a shared library that exports `fused_launch`."""

    def __init__(self, library: Path) -> None:
        self._launch = ctypes.CDLL(str(library)).fused_launch
        self._launch.restype = ctypes.c_char_p

    def __call__(self, name: str, grid: Grid, tensors: Sequence[Argument], numbers: Sequence[int | float]) -> None:
        slots = argument_slots(tensors, numbers)
        device = device_of(tensors)
        blocks = map(ctypes.c_uint, grid)
        if device.type == "cuda":
            with torch.cuda.device(device):
                stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
                failure = self._launch(name.encode(), *blocks, slots.addresses, stream)
        else:
            failure = self._launch(name.encode(), *blocks, slots.addresses, None)
        if failure is not None:
            raise RuntimeError(f"cannot launch kernel {name}: {failure.decode(errors='replace')}")


class ArgumentSlots(NamedTuple):
    """Arguments of a kernel: `addresses` points to the 8-byte slots, which must live as long as the call."""

    values: "ctypes.Array[ctypes.c_longlong]"
    addresses: "ctypes.Array[ctypes.c_void_p]"


def argument_slots(tensors: Sequence[Argument], numbers: Sequence[int | float]) -> ArgumentSlots:
    """Return the arguments for a launch; the first bytes of a slot are a pointer, an `int` or a `float`."""
    values = [0 if tensor is None else tensor.data_ptr() for tensor in tensors]
    for number in numbers:
        is_float = isinstance(number, float)
        values.append(ctypes.c_uint.from_buffer(ctypes.c_float(number)).value if is_float else int(number))
    slots = (ctypes.c_longlong * len(values))(*values)
    first = ctypes.addressof(slots)
    addresses = (ctypes.c_void_p * len(values))(*range(first, first + 8 * len(values), 8))
    return ArgumentSlots(slots, addresses)


def device_of(tensors: Sequence[Argument]) -> torch.device:
    return next(tensor.device for tensor in tensors if tensor is not None)


def pixels_of(images: Tensor) -> Tensor:
    """Return `(N, height, width, C)` with evenly spaced pixels; a view if possible, also of a slice of channels."""
    pixels = images.permute(0, 2, 3, 1)
    _, height, width, channels = pixels.shape
    step = pixels.stride(2)
    even = (height * width * step, width * step, step, 1)
    is_even = pixels.stride() == even and step >= channels and pixels.size(0) * even[0] <= MOST_ELEMENTS
    return pixels if is_even else pixels.clone(memory_format=torch.contiguous_format)


def reads_by_four(steps: Sequence[int], tensors: Sequence[Tensor]) -> bool:
    """Return whether all rows consist of aligned groups of four elements."""
    return all(step % 4 == 0 for step in steps) and all(
        tensor.data_ptr() % (4 * tensor.element_size()) == 0 for tensor in tensors
    )
