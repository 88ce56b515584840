"""Optional convolution in C++ on a CPU (winograd.cpp, windows.cpp), compiled on first use.

The algorithms are those of `winograd` and `im2col_channels_last`. With PyTorch operations, each tile needs dozens of
small operations, and the threads synchronize after each of them. Here each thread computes whole tiles.

The loops are disabled until `enable` is called. The sources do not include torch headers, so that any C++17 compiler
with OpenMP compiles them in seconds. They call `sgemm_` of the BLAS library that torch uses (MKL, OpenBLAS or
Accelerate), with 32-bit sizes.
"""

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from yolo_lightning.conv.algorithms import rows_channels_last
from yolo_lightning.conv.algorithms.problem import Problem, Tensors
from yolo_lightning.conv.algorithms.shared import have_data
from yolo_lightning.conv.kernels import compiled_launch
from yolo_lightning.conv.kernels.build import file_lock
from yolo_lightning.conv.kernels.compiled_launch import Loops
from yolo_lightning.conv.kernels.representative import compared
from yolo_lightning.conv.kernels.verified import BuildError, OptionalKernels

SOURCES = ("winograd.cpp", "windows.cpp")
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC")
BUILD_TIMEOUT_S = 300.0
"""Time limit for the compiler and for the lock of another process, seconds; a build takes about 5 s."""

_LOOPS = OptionalKernels("compiled convolution loops")
_REFERENCE: ModuleType = rows_channels_last


def enable(build_folder: Path) -> None:
    """Enable the loops, without compiling them yet; several processes may share the folder of the compiled library."""
    _LOOPS.enable(lambda device: build(build_folder))


disable = _LOOPS.disable


def forward(input: Tensor, weight: Tensor, problem: Problem) -> Tensor:
    return _compute("forward", (input, weight), problem)[0]


def input_gradient(grad_output: Tensor, weight: Tensor, problem: Problem) -> Tensor:
    return _compute("input_gradient", (grad_output, weight), problem)[0]


def weight_gradient(input: Tensor, grad_output: Tensor, problem: Problem) -> Tensor:
    return _compute("weight_gradient", (input, grad_output), problem)[0]


def gradients(input: Tensor, grad_output: Tensor, weight: Tensor, problem: Problem) -> tuple[Tensor, Tensor]:
    """Return the input gradient and the weight gradient."""
    grad_input, grad_weight = _compute("gradients", (input, grad_output, weight), problem)
    return grad_input, grad_weight


def _compute(operation: str, operands: Tensors, problem: Problem) -> Tensors:
    """Compute with the loops if possible, else with the reference."""
    device, dtype = operands[0].device, operands[0].dtype

    def run(module: ModuleType, *arguments: object) -> Tensors:
        result = getattr(module, operation)(*arguments, problem)
        return result if isinstance(result, tuple) else (result,)

    results = None
    if have_data(operands):
        results = _LOOPS.run(
            (operation, problem, dtype),
            device,
            lambda: run(compiled_launch, _LOOPS.required(device), *operands),
            lambda: compared(operation, problem, dtype, device, _LOOPS.required(device), compiled_launch, _REFERENCE),
        )
    return run(_REFERENCE, *operands) if results is None else results


def available() -> bool:
    """Return whether the loops are enabled and compiled; compile them if necessary and warn once on failure."""
    return _LOOPS.on(torch.device("cpu")) is not None


def accepts(problem: Problem, dtype: torch.dtype, device_type: str) -> bool:
    """Return whether the loops support a problem: on a CPU, channels_last, one group, float32, not empty."""
    sizes = (problem.input_size, problem.output_size, problem.weight_size)
    return (
        device_type == "cpu"
        and dtype == torch.float32
        and problem.channels_last
        and problem.groups == 1
        and min(min(size) for size in sizes) > 0
    )


def compiler() -> str | None:
    """Return the command of the C++ compiler, or None if there is none."""
    return os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")


def build(build_folder: Path) -> Loops:
    """Return the compiled loops; compile them if `build_folder` has no build for these sources, compiler and CPU.

    One process compiles at a time. Raises `BuildError` if there is no compiler, the compiler fails, or the BLAS library
    of torch has no `sgemm_`.
    """
    found = compiler()
    if found is None:
        raise BuildError("no C++ compiler found: install c++, g++ or clang++, or set the environment variable CXX")
    here = Path(__file__).parent
    sources = [here / name for name in SOURCES]
    text = "\n".join(file.read_text(encoding="utf-8") for file in (*sources, here / "compiled.h"))
    key = hashlib.sha256("\n".join((text, found, *FLAGS, _processor())).encode()).hexdigest()[:16]
    try:
        folder = build_folder / f"yolo_lightning_compiled_{key}"
        folder.mkdir(parents=True, exist_ok=True)
        library = folder / "compiled.so"
        with file_lock(folder / "building", BUILD_TIMEOUT_S):
            if not library.exists():
                _compile(found, sources, library)
        return Loops(ctypes.CDLL(str(library)), _sgemm())
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildError(f"{type(error).__name__}: {error}") from error


def _compile(compiler: str, sources: list[Path], library: Path) -> None:
    made = library.with_suffix(".new")
    words = [*shlex.split(compiler), *FLAGS, *map(str, sources), "-o", str(made)]
    done = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=BUILD_TIMEOUT_S)
    if done.returncode != 0:
        raise BuildError(f"{compiler} failed with exit code {done.returncode}: {done.stderr.strip()[:500]}")
    made.replace(library)


def _processor() -> str:
    """Return a description of the CPU; -march=native makes a library specific to its instruction set."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    features = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{platform.machine()} {platform.processor()} {features}"


def _sgemm() -> int:
    libraries = sorted((Path(torch.__file__).parent / "lib").glob("*torch_cpu.*"))
    for library in libraries:
        try:
            function = ctypes.CDLL(str(library)).sgemm_
        except (OSError, AttributeError):
            continue
        address = ctypes.cast(function, ctypes.c_void_p).value
        assert address is not None
        return address
    raise BuildError(f"no sgemm_ in {', '.join(file.name for file in libraries) or 'torch/lib'}")
