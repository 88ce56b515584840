"""Launches of GPU kernels by name, and the elements that the kernels support."""

import ctypes
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from yolo_lightning.conv.algorithms.shared import channels_last_strides, is_capturing

Grid = tuple[int, int, int]
Argument = Tensor | None

THREADS = 256
"""Threads of a block; equal to THREADS in elements.cuh."""
LEAST_COUNTERS = 1 << 12
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


class Operands(NamedTuple):
    """Tensors of a launch; None is a null pointer. The kernel has them as arguments in this order."""

    reads: tuple[Argument, ...]
    writes: tuple[Argument, ...]
    partials: Tensor | None = None  # blocks of the launch write it, and other blocks of the launch read it
    counters: Tensor | None = None  # of the function `counters`

    @property
    def tensors(self) -> tuple[Argument, ...]:
        """All tensors, in the order of the arguments."""
        if self.partials is None:
            return *self.reads, *self.writes
        return *self.reads, *self.writes, self.partials, self.counters

    @property
    def bytes(self) -> int:
        """Bytes that the launch moves if each tensor is read or written once, and the partial results both."""
        moved = (*self.reads, *self.writes, self.partials, self.partials)
        return sum(tensor.nbytes for tensor in moved if tensor is not None)


class Launcher(Protocol):
    """Launches a kernel on the current stream of the device of the tensors."""

    def __call__(self, name: str, grid: Grid, operands: Operands, numbers: Sequence[int | float]) -> None:
        """Launch `grid` blocks; the arguments are the addresses of the tensors, followed by the numbers.

        An integer is an `int` and a float a `float` of the kernel.
        """


class Launch(NamedTuple):
    """One launch of a kernel."""

    name: str
    grid: Grid
    operands: Operands


class LaunchRecorder:
    """Launcher that records launches and computes nothing, for tensors on any device, also on `meta`."""

    def __init__(self) -> None:
        self.launches: list[Launch] = []

    def __call__(self, name: str, grid: Grid, operands: Operands, numbers: Sequence[int | float]) -> None:
        self.launches.append(Launch(name, grid, operands))


class ArgumentSlots(NamedTuple):
    """Arguments of a kernel: `addresses` points to the 8-byte slots, which must live as long as the call."""

    values: "ctypes.Array[ctypes.c_longlong]"
    addresses: "ctypes.Array[ctypes.c_void_p]"


def argument_slots(operands: Operands, numbers: Sequence[int | float]) -> ArgumentSlots:
    """Return the arguments for a launch; the first bytes of a slot are a pointer, an `int` or a `float`."""
    values = [0 if tensor is None else tensor.data_ptr() for tensor in operands.tensors]
    for number in numbers:
        if isinstance(number, float):
            values.append(ctypes.c_uint.from_buffer(ctypes.c_float(number)).value)
        else:
            values.append(int(number))
    slots = (ctypes.c_longlong * len(values))(*values)
    first = ctypes.addressof(slots)
    addresses = (ctypes.c_void_p * len(values))(*range(first, first + 8 * len(values), 8))
    return ArgumentSlots(slots, addresses)


def evenly_spaced(images: Tensor) -> Tensor:
    """Return `(N, C, height, width)` whose pixels, of adjacent channels, have equal distances in memory.

    A channels_last tensor and a slice of its channels are returned as they are, others are copied. The distance is
    `stride(3)`, in elements.
    """
    samples, channels, height, width = images.shape
    step = images.stride(3)
    even = (height * width * step, 1, width * step, step)
    strides = images.stride()
    # The distance between samples and between channels is of no importance if there is one of them.
    is_even = (
        strides[2:] == even[2:]
        and (channels == 1 or strides[1] == 1)
        and (samples == 1 or strides[0] == even[0])
        and step >= channels
    )
    if is_even and samples * even[0] <= MOST_ELEMENTS:
        return images
    return images.clone(memory_format=torch.channels_last)


def empty_images(like: Tensor, size: Sequence[int]) -> Tensor:
    """Return a channels_last tensor of the size `(N, C, height, width)` that is no view."""
    return like.new_empty_strided(tuple(size), channels_last_strides(size))


_counters: dict[tuple[torch.device, int], Tensor] = {}


def counters(like: Tensor, count: int) -> Tensor:
    """Return at least `count` int32 zeros on the device of `like`, for kernels on the current stream.

    A kernel sets them to zero again when it ends (`is_last_block` in elements.cuh), so that they are filled once. The
    kernels of a stream run one after the other, and each stream has its own counters. Counters that are created while
    a CUDA graph is captured belong to that graph: the graph fills them at each replay, and nothing else uses them.
    """
    device = like.device
    if is_capturing(device):
        return torch.zeros(count, dtype=torch.int32, device=device)
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    key = (device, stream)
    if key not in _counters or _counters[key].numel() < count:
        _counters[key] = torch.zeros(max(count, LEAST_COUNTERS), dtype=torch.int32, device=device)
    return _counters[key]


def reads_by_four(steps: Sequence[int], tensors: Sequence[Tensor]) -> bool:
    """Return whether all rows consist of aligned groups of four elements."""
    return all(step % 4 == 0 for step in steps) and all(
        tensor.data_ptr() % (4 * tensor.element_size()) == 0 for tensor in tensors
    )
