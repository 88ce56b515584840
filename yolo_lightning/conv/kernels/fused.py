"""Optional implicit GEMM convolution on a GPU (fused.cu): windows are not written to global memory.

Chetlur et al.: cuDNN: Efficient Primitives for Deep Learning (2014), section 3. A roofline model, not a measurement, of
all convolutions in a training step of YOLOv8n on an RX 5600 XT (batch 8, 640 pixels, float32) gives 31 ms, compared
with 51 ms for row lowering and 60 ms for im2col.

The kernels are disabled until `enable` is called, and compiled when a problem first uses them. The first choice is the
runtime compiler that every torch build contains (NVRTC, HIPRTC), through `torch.cuda._compile_kernel`: about 0.1 s, no
files, no toolkit. The function is private, exists from torch 2.8 on (ROCm: 2.10), and requires that CUDA_HOME or
ROCM_HOME is a folder; any folder works, because the kernels include no headers. The second choice is
`torch.utils.cpp_extension`, which is public, but needs nvcc or hipcc, a C++ compiler and ninja.
"""

import ctypes
import hashlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from yolo_lightning.conv.algorithms import rows_channels_last
from yolo_lightning.conv.algorithms.problem import Problem
from yolo_lightning.conv.kernels import fused_launch
from yolo_lightning.conv.kernels.fused_launch import MOST_ELEMENTS, THREADS, Grid, Launcher, instances
from yolo_lightning.conv.kernels.verified import BuildError, OptionalKernels

# Time limit for the lock of another process that builds; a build takes about a minute.
BUILD_TIMEOUT_S = 600.0

_KERNELS = OptionalKernels("fused convolution kernels", fused_launch, rows_channels_last)


def enable(build_folder: Path) -> None:
    """Enable the kernels, without compiling them yet; builds with a toolkit are stored in the folder."""
    _KERNELS.enable(lambda device: make_launcher(device, build_folder))


disable = _KERNELS.disable
forward = _KERNELS.forward
input_gradient = _KERNELS.input_gradient
weight_gradient = _KERNELS.weight_gradient


def available(device: torch.device) -> bool:
    """Return whether the kernels are enabled and compiled for this device; compile them if necessary.

    Warns once if the compilation fails.
    """
    if device.type != "cuda" or not _KERNELS.enabled:
        return False
    index = torch.cuda.current_device() if device.index is None else device.index
    return _KERNELS.work_on(torch.device("cuda", index))


def accepts(problem: Problem, dtype: torch.dtype, device_type: str) -> bool:
    """Return whether the kernels support a problem: on a GPU, channels_last, one group, float32, 32-bit offsets."""
    sizes = (problem.input_size, problem.output_size, problem.weight_size)
    most = max(torch.Size(size).numel() for size in sizes)
    return (
        device_type == "cuda"
        and dtype == torch.float32
        and problem.channels_last
        and problem.groups == 1
        and min(min(size) for size in sizes) > 0
        and most <= MOST_ELEMENTS
    )


def make_launcher(device: torch.device, build_folder: Path) -> Launcher:
    """Return a launcher of the kernels for a GPU with an index, or raise `BuildError`.

    Builds with a toolkit are stored in `build_folder`, which several processes may share.
    """
    reasons = []
    for way in (lambda: RuntimeCompiled(device), lambda: LibraryLauncher(build_library(device, build_folder))):
        try:
            launcher: Launcher = way()
        except Exception as error:  # compilers, cpp_extension and the dynamic loader raise various types
            reasons.append(f"{type(error).__name__}: {str(error).strip()[:500]}")
        else:
            return launcher
    raise BuildError(f"runtime compiler: {reasons[0]}; toolkit: {reasons[1]}")


def source(kernels: Sequence[str]) -> str:
    """Return the source text with the given kernels of `instances`."""
    lines = instances()
    listed = " ".join(f"X({name})" for name in kernels)
    made = "\n".join(lines[name] for name in kernels)
    return f"{_text('fused_windows.cuh')}\n{_text('fused.cu')}\n{made}\n#define FUSED_KERNELS(X) {listed}\n"


def library_source() -> str:
    """Return the source text for nvcc, or for hipcc after hipify: all kernels and a launch function."""
    return f"#include <cuda_runtime.h>\n\n{source(list(instances()))}\n{_text('fused_launch.cu')}"


def _text(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


class RuntimeCompiled:
    """Launcher of kernels that NVRTC or HIPRTC compile on first launch, on a GPU with an index.

    Raises `BuildError` if torch has no runtime compiler or does not find it.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._kernels: dict[str, Any] = {}
        # Compile one kernel now, so that a missing compiler is found here.
        self._kernel(next(iter(instances())))

    def __call__(self, name: str, grid: Grid, tensors: Sequence[Tensor], numbers: Sequence[int]) -> None:
        with torch.cuda.device(self._device):
            self._kernel(name)(grid=grid, block=(THREADS, 1, 1), args=[*tensors, *numbers])

    def _kernel(self, name: str) -> Any:
        if name not in self._kernels:
            compile_kernel = getattr(torch.cuda, "_compile_kernel", None)
            if compile_kernel is None:
                raise BuildError(f"torch {torch.__version__} has no torch.cuda._compile_kernel")
            # The prefix prevents torch 2.8 and 2.9 from adding `extern "C"` before the whole text.
            text = f'extern "C" {{}}\n{source([name])}'
            try:
                with torch.cuda.device(self._device):
                    self._kernels[name] = compile_kernel(text, name)
            except OSError as error:
                hint = " The kernels include no headers: any folder is sufficient." if "_HOME" in str(error) else ""
                raise BuildError(f"{error}{hint}") from error
        return self._kernels[name]


class LibraryLauncher:
    """Launcher of kernels in a shared library that exports `fused_launch`."""

    def __init__(self, library: Path) -> None:
        self._launch = ctypes.CDLL(str(library)).fused_launch
        self._launch.restype = ctypes.c_char_p

    def __call__(self, name: str, grid: Grid, tensors: Sequence[Tensor], numbers: Sequence[int]) -> None:
        values = [*(ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors), *map(ctypes.c_int, numbers)]
        addresses = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        device = tensors[0].device
        blocks = map(ctypes.c_uint, grid)
        if device.type == "cuda":
            with torch.cuda.device(device):
                stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
                failure = self._launch(name.encode(), *blocks, addresses, stream)
        else:
            failure = self._launch(name.encode(), *blocks, addresses, None)
        if failure is not None:
            raise RuntimeError(f"cannot launch kernel {name}: {failure.decode(errors='replace')}")


def build_library(device: torch.device, build_folder: Path) -> Path:
    """Return a library built with nvcc or hipcc for this torch version, architecture and source text.

    Build the library if `build_folder` has no such build; one process builds at a time. May raise `BuildError` and any
    error of `torch.utils.cpp_extension.load`.
    """
    # Imported here: the import searches for toolkits and logs warnings.
    from torch.utils import cpp_extension

    properties = torch.cuda.get_device_properties(device)
    architecture = str(getattr(properties, "gcnArchName", f"sm_{properties.major}{properties.minor}")).partition(":")[0]
    text = library_source()
    key = hashlib.sha256("\n".join((torch.__version__, architecture, text)).encode()).hexdigest()[:16]
    # The name is unique per build: torch renames a module whose name it has already loaded from another folder.
    name = f"yolo_lightning_fused_{key}"
    folder = build_folder / name
    folder.mkdir(parents=True, exist_ok=True)
    flags = [f"--offload-arch={architecture}"] if torch.version.hip else []
    with file_lock(folder / "building", BUILD_TIMEOUT_S):
        # torch <= 2.14 waits forever if this file exists, which a killed build leaves behind.
        (folder / "lock").unlink(missing_ok=True)
        file = folder / f"{name}.cu"
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")
        cpp_extension.load(
            name, [str(file)], extra_cuda_cflags=flags, build_directory=str(folder), is_python_module=False
        )
    return folder / f"{name}.so"


@contextmanager
def file_lock(file: Path, timeout_s: float) -> Iterator[None]:
    """Hold an exclusive file lock, which the system releases when the process exits.

    Raises `BuildError` if another process holds the lock for `timeout_s`, or on Windows, which has no `fcntl`.
    """
    if sys.platform == "win32":
        raise BuildError("building with a toolkit is supported on POSIX systems only")
    import fcntl

    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise BuildError(f"another process has held {file} for {timeout_s:g} s") from None
                time.sleep(0.2)
        yield
    finally:
        os.close(descriptor)
