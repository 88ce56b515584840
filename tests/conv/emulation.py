"""GPU kernels on a CPU: compilation with kernel_emulation.h, and launchers that detect accesses outside of tensors."""

import ctypes
import mmap
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from yolo_lightning.conv.kernels import build
from yolo_lightning.conv.kernels.launcher import Argument, Grid, Launch, Launcher, Operands

COMPILER = shutil.which("g++") or shutil.which("clang++")
GUARD = 1 << 10
"""Elements before and after each tensor; more than one tile."""
FENCE = 1 << 22
"""Bytes before and after each tensor that must not be accessed."""


def compile_emulated(folder: Path) -> Path:
    """Compile all kernels for the CPU and return the library."""
    source, library = folder / "kernels.cpp", folder / "kernels.so"
    kernels = build.source(list(build.kernel_lines()))
    source.write_text(f'#include "kernel_emulation.h"\n{kernels}\nEMULATED_LAUNCH\n')
    flags = ["-std=c++17", "-O0", "-shared", "-fPIC", "-Wno-unknown-pragmas", f"-I{Path(__file__).parent}"]
    made = subprocess.run([str(COMPILER), *flags, source, "-o", library], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    return library


class Guarded:
    """Launch with NaN around every floating-point tensor, which detects reads and writes outside of the tensor."""

    def __init__(self, launcher: Launcher) -> None:
        self.launcher = launcher
        self.launches: list[Launch] = []

    def __call__(self, name: str, grid: Grid, operands: Operands, numbers: Sequence[int | float]) -> None:
        self.launches.append(Launch(name, grid, operands))
        tensors, read = operands.tensors, len(operands.reads)
        guarded = [self._guard(tensor) for tensor in tensors]
        before = [None if pair is None else pair[0].clone() for pair in guarded]
        views = [None if pair is None else pair[1] for pair in guarded]
        self.launcher(name, grid, Operands(tuple(views), ()), numbers)
        if operands.counters is not None:
            assert views[-1] is not None
            assert not views[-1].any(), f"{name} has left a counter that is not zero"
        for number, (tensor, pair, kept) in enumerate(zip(tensors, guarded, before, strict=True)):
            if tensor is None or pair is None or kept is None:
                continue
            buffer, view = pair
            if number < read:
                assert torch.equal(buffer.nan_to_num(7.0), kept.nan_to_num(7.0)), f"{name} has written to what it reads"
                continue
            tensor.copy_(view)
            view.fill_(torch.nan if view.is_floating_point() else 0)
            outside = buffer.isnan() if view.is_floating_point() else buffer == 0
            assert outside.all(), f"{name} has written outside its result"

    @staticmethod
    def _guard(tensor: Argument) -> tuple[Tensor, Tensor] | None:
        if tensor is None or not tensor.numel():
            return None
        misalignment = tensor.data_ptr() % 16 // tensor.element_size()
        filler = torch.nan if tensor.is_floating_point() else 0
        buffer = torch.full((2 * GUARD + span(tensor) + misalignment,), filler, dtype=tensor.dtype)
        view = buffer.as_strided(tensor.shape, tensor.stride(), GUARD + misalignment)
        return buffer, view.copy_(tensor)


class Fenced:
    """Launch with every tensor inside a fence."""

    def __init__(self, launcher: Launcher, at_the_end: bool) -> None:
        self.launcher = launcher
        self.at_the_end = at_the_end

    def __call__(self, name: str, grid: Grid, operands: Operands, numbers: Sequence[int | float]) -> None:
        tensors, read = operands.tensors, len(operands.reads)
        together = 4 if "by_four" in name else 1
        fenced = [
            tensor
            if tensor is None or not tensor.numel()
            else fence(tensor, together * tensor.element_size(), self.at_the_end)
            for tensor in tensors
        ]
        self.launcher(name, grid, Operands(tuple(fenced), ()), numbers)
        for tensor, copy in list(zip(tensors, fenced, strict=True))[read:]:
            if tensor is not None and copy is not None:
                tensor.copy_(copy)


def fence(tensor: Tensor, alignment: int, at_the_end: bool) -> Tensor:
    """Return a copy at one end of its pages, between pages whose access ends the process."""
    nbytes = span(tensor) * tensor.element_size()
    room = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, room + 2 * FENCE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for border in (start, start + FENCE + room):
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(border), ctypes.c_size_t(FENCE), 0) == 0
    offset = FENCE + ((room - nbytes) // alignment * alignment if at_the_end else 0)
    fenced = torch.frombuffer(memory, dtype=tensor.dtype, count=nbytes // tensor.element_size(), offset=offset)
    return fenced.as_strided(tensor.shape, tensor.stride()).copy_(tensor)


def span(tensor: Tensor) -> int:
    """Return the number of elements from the first to the last element of a tensor that is not empty."""
    return 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
