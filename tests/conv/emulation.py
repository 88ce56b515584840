"""GPU kernels on a CPU: compilation with kernel_emulation.h, and a launcher that checks every access to memory."""

import ctypes
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from yolo_lightning.conv.kernels import build, verified
from yolo_lightning.conv.kernels.launcher import Grid, Launch, Operands, argument_slots

COMPILER = shutil.which("g++") or shutil.which("clang++")
READ, WRITE, PARTIAL, COUNTER = range(4)  # kinds of operands in race_check.cpp


def compile_emulated(folder: Path, text: str = "", names: Sequence[str] = (), *, checked: bool = True) -> Path:
    """Compile a source text with the named kernels, or all kernels, for the CPU, and return the library.

    The library is many times as fast unchecked.
    """
    source, library = folder / "kernels.cpp", folder / "kernels.so"
    names = names or list(build.kernel_lines())
    listed = " ".join(f"X({name})" for name in names)
    lines = ('#include "kernel_emulation.h"', text or build.source(names), f"#define FUSED_KERNELS(X) {listed}")
    source.write_text("\n".join((*lines, "EMULATED_LAUNCH", "")))
    here = Path(__file__).parent
    flags = ["-std=c++17", "-fPIC", "-fno-gnu-unique", "-Wno-unknown-pragmas", f"-I{here}"]
    steps: tuple[list[str | Path], ...] = (
        # The instrumentation of ThreadSanitizer without its library: race_check.cpp contains the functions.
        [*(["-O0", "-fsanitize=thread"] if checked else ["-O1"]), "-c", source, "-o", folder / "kernels.o"],
        ["-O2", "-shared", here / "race_check.cpp", folder / "kernels.o", "-o", library],
    )
    for words in steps:
        result = subprocess.run([str(COMPILER), *flags, *words], capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
    return library


class LibraryLauncher:
    """Launcher of the kernels in a library of `compile_emulated`."""

    def __init__(self, library: Path) -> None:
        self._launch = ctypes.CDLL(str(library)).fused_launch
        self._launch.restype = ctypes.c_char_p

    def __call__(self, name: str, grid: Grid, operands: Operands, numbers: Sequence[int | float]) -> None:
        slots = argument_slots(operands, numbers)
        failure = self._launch(name.encode(), *map(ctypes.c_uint, grid), slots.addresses, None)
        if failure is not None:
            raise RuntimeError(f"cannot launch kernel {name}: {failure.decode(errors='replace')}")


class Guarded:
    """Launch with a check of every access: inside its operand, not to another one's elements, and without a race."""

    def __init__(self, library: Path) -> None:
        self.launcher = LibraryLauncher(library)
        self.register = ctypes.CDLL(str(library)).checked_operand
        self.launches: list[Launch] = []

    def __call__(self, name: str, grid: Grid, operands: Operands, numbers: Sequence[int | float]) -> None:
        self.launches.append(Launch(name, grid, operands))
        read, kinds = len(operands.reads), {id(operands.partials): PARTIAL, id(operands.counters): COUNTER}
        masks = []  # as long as the launch
        for number, tensor in enumerate(operands.tensors):
            if tensor is None or not tensor.numel():
                continue
            mask = torch.zeros(span(tensor), dtype=torch.uint8)
            mask.as_strided(tensor.shape, tensor.stride()).fill_(1)
            masks.append(mask)
            address, is_element = ctypes.c_void_p(tensor.data_ptr()), ctypes.c_void_p(mask.data_ptr())
            sizes = ctypes.c_size_t(len(mask)), ctypes.c_size_t(tensor.element_size())
            self.register(address, is_element, *sizes, READ if number < read else kinds.get(id(tensor), WRITE))
        self.launcher(name, grid, operands, numbers)
        if operands.counters is not None:
            assert not operands.counters.any(), f"{name} has left a counter that is not zero"


def span(tensor: Tensor) -> int:
    """Return the number of elements from the first to the last element of a tensor that is not empty."""
    return 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))


@contextmanager
def assume_available(device_type: str) -> Iterator[None]:
    """Treat a device type as one that has the GPU kernels; on `meta`, this shows which operators a GPU would launch."""
    verified._ACCELERATORS.add(device_type)
    try:
        yield
    finally:
        verified._ACCELERATORS.discard(device_type)
