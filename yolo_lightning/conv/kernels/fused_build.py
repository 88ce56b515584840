"""Makes the kernels of fused.cu runnable on a device, without a compiler where possible.

First choice is the runtime compiler that is part of every torch build (NVRTC, HIPRTC), through
`torch.cuda._compile_kernel`: a tenth of a second, no files, no toolkit. The function is private and its place may
change, it exists from torch 2.8 on (for ROCm from 2.10 on), and it wants CUDA_HOME or ROCM_HOME to name a folder,
though any will do, because these kernels include nothing. Second choice is `torch.utils.cpp_extension`, which is
public, but needs nvcc or hipcc, a C++ compiler and ninja.
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

from yolo_lightning.conv.kernels.fused_kernels import THREADS, Grid, Launcher, instances
from yolo_lightning.conv.kernels.verified import BuildError

# A build takes about a minute; other processes wait no longer than this for it.
BUILD_TIMEOUT_S = 600.0


def make_launcher(device: torch.device, build_folder: Path) -> Launcher:
    """Compile the kernels for an accelerator.

    Args:
        device: With an index.
        build_folder: For what a toolkit builds; made where it is missing, shared between processes.

    Raises:
        BuildError: If there is no way to compile them.
    """
    reasons = []
    for way in (lambda: RuntimeCompiled(device), lambda: LibraryLauncher(build_library(device, build_folder))):
        try:
            launcher: Launcher = way()
        except Exception as error:  # whatever a compiler, its caller or the loader may say
            reasons.append(f"{type(error).__name__}: {str(error).strip()[:500]}")
        else:
            return launcher
    raise BuildError(f"runtime compiler: {reasons[0]}; toolkit: {reasons[1]}")


def source(kernels: Sequence[str]) -> str:
    """C++ with the given kernels of `instances`."""
    lines = instances()
    listed = " ".join(f"X({name})" for name in kernels)
    made = "\n".join(lines[name] for name in kernels)
    return f"{_text('fused_windows.cuh')}\n{_text('fused.cu')}\n{made}\n#define FUSED_KERNELS(X) {listed}\n"


def library_source() -> str:
    """C++ for nvcc, or after hipify for hipcc: all kernels, and a function that starts them."""
    return f"#include <cuda_runtime.h>\n\n{source(list(instances()))}\n{_text('fused_launch.cu')}"


def _text(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


class RuntimeCompiled:
    """Kernels compiled by NVRTC or HIPRTC when they are first started.

    Args:
        device: With an index.

    Raises:
        BuildError: If this torch has no runtime compiler or does not find it.
        Exception: What torch says if it fails otherwise.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._kernels: dict[str, Any] = {}
        # One at once: what stands in the way of it stands in the way of all.
        self._kernel(next(iter(instances())))

    def __call__(self, name: str, grid: Grid, tensors: Sequence[Tensor], numbers: Sequence[int]) -> None:
        """See `Launcher`."""
        with torch.cuda.device(self._device):
            self._kernel(name)(grid=grid, block=(THREADS, 1, 1), args=[*tensors, *numbers])

    def _kernel(self, name: str) -> Any:
        if name not in self._kernels:
            compile_kernel = getattr(torch.cuda, "_compile_kernel", None)
            if compile_kernel is None:
                raise BuildError(f"torch {torch.__version__} has no torch.cuda._compile_kernel")
            # The first words keep torch 2.8 and 2.9 from putting `extern "C"` before all the rest.
            text = f'extern "C" {{}}\n{source([name])}'
            try:
                with torch.cuda.device(self._device):
                    self._kernels[name] = compile_kernel(text, name)
            except OSError as error:
                hint = " Where there is none, any folder will do." if "_HOME" in str(error) else ""
                raise BuildError(f"{error}{hint}") from error
        return self._kernels[name]


class LibraryLauncher:
    """Kernels in a shared library that exports `fused_launch`.

    Args:
        library: The file.

    Raises:
        OSError: If it cannot be loaded.
    """

    def __init__(self, library: Path) -> None:
        self._launch = ctypes.CDLL(str(library)).fused_launch
        self._launch.restype = ctypes.c_char_p

    def __call__(self, name: str, grid: Grid, tensors: Sequence[Tensor], numbers: Sequence[int]) -> None:
        """See `Launcher`."""
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
            raise RuntimeError(f"kernel {name} was not started: {failure.decode(errors='replace')}")


def build_library(device: torch.device, build_folder: Path) -> Path:
    """Build the kernels with nvcc or hipcc, or find what was built before; one process at a time.

    Args:
        device: An accelerator, with an index.
        build_folder: Holds one folder for each torch build, architecture and source.

    Raises:
        BuildError: If another process builds for too long, or on Windows.
        Exception: What `torch.utils.cpp_extension.load` says where it fails.
    """
    # Imported late: it looks for toolkits, and complains on the log.
    from torch.utils import cpp_extension

    properties = torch.cuda.get_device_properties(device)
    architecture = str(getattr(properties, "gcnArchName", f"sm_{properties.major}{properties.minor}")).partition(":")[0]
    text = library_source()
    key = hashlib.sha256("\n".join((torch.__version__, architecture, text)).encode()).hexdigest()[:16]
    # Every build has a name of its own: for a known name in another folder, torch would choose another one.
    name = f"yolo_lightning_fused_{key}"
    folder = build_folder / name
    folder.mkdir(parents=True, exist_ok=True)
    flags = [f"--offload-arch={architecture}"] if torch.version.hip else []
    with alone(folder / "building", BUILD_TIMEOUT_S):
        # Up to torch 2.14 the mere existence of this file, as a killed build leaves it, means waiting for ever.
        (folder / "lock").unlink(missing_ok=True)
        file = folder / f"{name}.cu"
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")
        cpp_extension.load(
            name, [str(file)], extra_cuda_cflags=flags, build_directory=str(folder), is_python_module=False
        )
    return folder / f"{name}.so"


@contextmanager
def alone(file: Path, timeout_s: float) -> Iterator[None]:
    """Hold a lock that goes with the process.

    Raises:
        BuildError: If another process keeps it for `timeout_s`, or on Windows, which has no such lock.
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
