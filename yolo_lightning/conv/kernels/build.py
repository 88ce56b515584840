"""Source text of the GPU kernels, and their compilation by the runtime compiler or a toolkit.

The first choice is the runtime compiler that every torch for CUDA or ROCm contains (see runtime_compiler.py). The
second choice is `torch.utils.cpp_extension`, which needs nvcc or hipcc, a C++ compiler and ninja.
"""

import hashlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from yolo_lightning.conv.kernels import batch_norm_launch, fused_launch
from yolo_lightning.conv.kernels.launcher import Launcher, LibraryLauncher
from yolo_lightning.conv.kernels.runtime_compiler import RuntimeCompiled, architecture_of
from yolo_lightning.conv.kernels.verified import BuildError

# Time limit for the lock of another process that builds; a build takes a few minutes.
BUILD_TIMEOUT_S = 1200.0

_CONVOLUTION_FILES = ("fused_windows.cuh", "fused.cu", "winograd.cu")
_BATCH_NORM_FILES = ("batch_norm.cu",)


def kernel_lines() -> dict[str, str]:
    """Return the C++ line that defines each kernel, by kernel name."""
    return fused_launch.instances() | batch_norm_launch.instances()


def source(kernels: Sequence[str]) -> str:
    """Return the source text with the given kernels of `kernel_lines`, and the files that they need."""
    lines = kernel_lines()
    convolutions = fused_launch.instances()
    files = ["elements.cuh"]
    if any(name in convolutions for name in kernels):
        files += _CONVOLUTION_FILES
    if any(name not in convolutions for name in kernels):
        files += _BATCH_NORM_FILES
    listed = " ".join(f"X({name})" for name in kernels)
    made = "\n".join(lines[name] for name in kernels)
    return "\n".join((*map(_text, files), made, f"#define FUSED_KERNELS(X) {listed}", ""))


def library_source() -> str:
    """Return the source text for nvcc, or for hipcc after hipify: all kernels and a launch function."""
    return f"#include <cuda_runtime.h>\n\n{source(list(kernel_lines()))}\n{_text('fused_launch.cu')}"


def _text(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def make_launcher(device: torch.device, build_folder: Path) -> Launcher:
    """Return a launcher of the kernels for a GPU with an index, or raise `BuildError`.

    Compiled kernels are stored in `build_folder`, which several processes may share.
    """
    reasons = []
    for way in (
        lambda: RuntimeCompiled(device, source, build_folder, list(kernel_lines())),
        lambda: LibraryLauncher(build_library(device, build_folder)),
    ):
        try:
            launcher: Launcher = way()
        except Exception as error:  # compilers, cpp_extension and the dynamic loader raise various types
            reasons.append(f"{type(error).__name__}: {str(error).strip()[:500]}")
        else:
            return launcher
    raise BuildError(f"runtime compiler: {reasons[0]}; toolkit: {reasons[1]}")


def build_library(device: torch.device, build_folder: Path) -> Path:
    """Return a library built with nvcc or hipcc for this torch version, architecture and source text.

    Build the library if `build_folder` has no such build; one process builds at a time. May raise `BuildError` and any
    error of `torch.utils.cpp_extension.load`.
    """
    # Imported here: the import searches for toolkits and logs warnings.
    from torch.utils import cpp_extension

    architecture = architecture_of(device).partition(":")[0]
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
