"""Compilation of GPU kernels by NVRTC or HIPRTC and launches through the driver, without a toolkit.

torch for CUDA depends on NVRTC, and torch for ROCm contains HIPRTC, so that a torch installed by pip is sufficient. The
kernels include no headers. `torch.cuda._compile_kernel` is not used: it is private, it requires CUDA_HOME or ROCM_HOME,
and it opens the driver library at every launch.

Compiled kernels are stored on disk per architecture, source text and torch version.
"""

import ctypes
import hashlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch

from yolo_lightning.conv.cache_file import replace_file
from yolo_lightning.conv.kernels.launcher import THREADS, Grid, Operands, argument_slots
from yolo_lightning.conv.kernels.verified import BuildError


class GpuFunctions(NamedTuple):
    """Names of the functions of a vendor's compiler and driver library."""

    compiler: str  # name of the compiler library without `lib` and extension
    driver: str  # name of the driver library
    prefix: str  # of the functions of the compiler
    code: str  # suffix of the functions that return the machine code and its size
    load: str
    function: str
    launch: str
    architecture_option: str


NVIDIA = GpuFunctions(
    compiler="nvrtc",
    driver="cuda",
    prefix="nvrtc",
    code="CUBIN",
    load="cuModuleLoadData",
    function="cuModuleGetFunction",
    launch="cuLaunchKernel",
    architecture_option="--gpu-architecture=",
)
AMD = GpuFunctions(
    compiler="hiprtc",
    driver="amdhip64",
    prefix="hiprtc",
    code="Code",
    load="hipModuleLoadData",
    function="hipModuleGetFunction",
    launch="hipModuleLaunchKernel",
    architecture_option="--offload-arch=",
)


def vendor() -> GpuFunctions:
    """Return the functions for the GPUs that this torch supports."""
    return AMD if torch.version.hip else NVIDIA


def architecture_of(device: torch.device) -> str:
    """Return the architecture of a GPU, for example `sm_90` or `gfx1030`."""
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip:
        return str(properties.gcnArchName)
    return f"sm_{properties.major}{properties.minor}"  # `gcnArchName` contains the name of the device here


def library_files(name: str) -> Iterator[str]:
    """Yield names and paths to try for a shared library of the vendor, for example `nvrtc` or `amdhip64`.

    The library that this process has loaded comes first: it is the one that torch uses. Then follow AMD's Python
    packages, the folder of torch, NVIDIA's Python packages, the search path of the dynamic loader, and /opt/rocm.
    """
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        maps = ""
    loaded = {line.split(maxsplit=5)[-1] for line in maps.splitlines() if f"/lib{name}.so" in line}
    yield from sorted(loaded)
    yield from _rocm_sdk_files(name)
    folders = [Path(torch.__file__).parent / "lib"]
    nvidia = find_spec("nvidia")
    if nvidia is not None:
        for root in nvidia.submodule_search_locations or []:
            folders += sorted(Path(root).glob("*/lib"))
    for folder in folders:
        # The builtins of NVRTC have a longer name and are no alternative.
        yield from map(str, sorted(folder.glob(f"lib{name}.so*")))
    if sys.platform == "win32":
        yield f"{name}.dll"
    else:
        if torch.version.cuda:
            yield f"lib{name}.so.{torch.version.cuda.partition('.')[0]}"
        yield f"lib{name}.so"
        yield f"lib{name}.so.1"
        yield f"/opt/rocm/lib/lib{name}.so"


def _rocm_sdk_files(name: str) -> list[str]:
    """Return the paths that AMD's Python package `rocm_sdk`, a dependency of newer ROCm builds of torch, reports."""
    if torch.version.hip is None or find_spec("rocm_sdk") is None:
        return []
    try:
        return [str(file) for file in import_module("rocm_sdk").find_libraries(name)]
    except Exception:  # the package raises its own errors for libraries that it does not contain
        return []


def open_library(name: str) -> ctypes.CDLL:
    """Open a shared library of the vendor. Raises `BuildError` with the searched names if there is none."""
    tried = list(dict.fromkeys(library_files(name)))
    for file in tried:
        try:
            return ctypes.CDLL(file)
        except OSError:
            continue
    raise BuildError(f"no library {name} among {', '.join(tried)}")


@dataclass(frozen=True)
class RuntimeCompiler:
    """NVRTC or HIPRTC."""

    library: ctypes.CDLL
    functions: GpuFunctions

    def compile(self, text: str, architecture: str) -> bytes:
        """Return the machine code for a source text. Raises `BuildError` with the log of the compiler."""
        program = ctypes.c_void_p()
        self._call("CreateProgram", ctypes.byref(program), text.encode(), b"kernels.cu", 0, None, None)
        try:
            options = [f"{self.functions.architecture_option}{architecture}".encode(), b"-std=c++17"]
            if self.functions is AMD:
                options.append(b"-O3")
            listed = (ctypes.c_char_p * len(options))(*options)
            try:
                self._call("CompileProgram", program, len(options), listed)
            except BuildError as error:
                log = self._bytes("ProgramLog", program).rstrip(b"\0").decode(errors="replace").strip()
                raise BuildError(f"{error}: {log[:500]}") from None
            return self._bytes(self.functions.code, program)
        finally:
            self._call("DestroyProgram", ctypes.byref(program))

    def _bytes(self, what: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"Get{what}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self._call(f"Get{what}", program, buffer)
        return buffer.raw

    def _call(self, name: str, *arguments: Any) -> None:
        prefix = self.functions.prefix
        status = getattr(self.library, f"{prefix}{name}")(*arguments)
        if status != 0:
            describe = getattr(self.library, f"{prefix}GetErrorString")
            describe.restype = ctypes.c_char_p
            words = (describe(status) or b"").decode(errors="replace")
            raise BuildError(f"{prefix}{name} failed with code {status} ({words})")


class Driver:
    """The driver library: loads machine code and launches kernels."""

    def __init__(self, library: ctypes.CDLL, functions: GpuFunctions) -> None:
        self._library = library
        self._functions = functions
        self._launch = getattr(library, functions.launch)
        self._launch.argtypes = [ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3]
        self._bound = threading.local()
        self._context = ctypes.c_void_p()

    def load(self, code: bytes, name: str, device_index: int) -> ctypes.c_void_p:
        """Load machine code on the current device and return the kernel `name`; the code stays loaded."""
        self.bind(device_index)
        module = ctypes.c_void_p()
        function = ctypes.c_void_p()
        self._call(self._functions.load, ctypes.byref(module), code)
        self._call(self._functions.function, ctypes.byref(function), module, name.encode())
        return function

    def launch(self, function: ctypes.c_void_p, grid: Grid, stream: int, addresses: Any) -> None:
        status = self._launch(function, *grid, THREADS, 1, 1, 0, stream, addresses, None)
        if status != 0:
            raise RuntimeError(f"{self._functions.launch} failed with code {status} ({self._words(status)})")

    def bind(self, device_index: int) -> None:
        """Make the context of torch current in this thread, which CUDA does on the first runtime call only.

        A thread of the backward pass may launch before any other call. HIP needs no context.
        """
        if self._functions is AMD or getattr(self._bound, "done", False):
            return
        current = ctypes.c_void_p()
        self._call("cuCtxGetCurrent", ctypes.byref(current))
        if not current:
            if not self._context:
                device = ctypes.c_int()
                self._call("cuDeviceGet", ctypes.byref(device), device_index)
                self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), device)
            self._call("cuCtxSetCurrent", self._context)
        self._bound.done = True

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status != 0:
            raise BuildError(f"{name} failed with code {status} ({self._words(status)})")

    def _words(self, status: int) -> str:
        if self._functions is AMD:
            describe = self._library.hipGetErrorString
            describe.restype = ctypes.c_char_p
            return (describe(status) or b"").decode(errors="replace")
        text = ctypes.c_char_p()
        self._library.cuGetErrorString(status, ctypes.byref(text))
        return (text.value or b"").decode(errors="replace")


class RuntimeCompiled:
    """Launcher of kernels that are compiled on first launch, on a GPU with an index.

    Args:
        device: The GPU.
        source: Returns the source text of the given kernels.
        cache_folder: Folder for machine code; several processes may share it.
        kernels: Names of all kernels; the first one is compiled at once, so that a missing compiler is found here.

    Raises:
        BuildError: If a library is missing or the compilation fails.
    """

    def __init__(
        self,
        device: torch.device,
        source: Callable[[Sequence[str]], str],
        cache_folder: Path,
        kernels: Sequence[str],
    ) -> None:
        functions = vendor()
        self._device = device
        self._source = source
        self._index = 0 if device.index is None else device.index
        self._architecture = architecture_of(device)
        self._cache_folder = cache_folder
        # torch initialises the driver, and loads its libraries.
        torch.cuda.init()  # type: ignore[no-untyped-call]
        self._compiler = RuntimeCompiler(open_library(functions.compiler), functions)
        self._driver = Driver(open_library(functions.driver), functions)
        self._functions: dict[str, ctypes.c_void_p] = {}
        self._lock = threading.Lock()
        with torch.cuda.device(device):
            self._function(kernels[0])

    def __call__(self, name: str, grid: Grid, operands: Operands, numbers: Sequence[int | float]) -> None:
        if torch.cuda.current_device() != self._index:
            with torch.cuda.device(self._device):
                self._launch(name, grid, operands, numbers)
        else:
            self._launch(name, grid, operands, numbers)

    def _launch(self, name: str, grid: Grid, operands: Operands, numbers: Sequence[int | float]) -> None:
        function = self._functions.get(name) or self._function(name)
        self._driver.bind(self._index)
        slots = argument_slots(operands, numbers)
        stream = torch.cuda.current_stream(self._device).cuda_stream
        self._driver.launch(function, grid, stream, slots.addresses)

    def _function(self, name: str) -> ctypes.c_void_p:
        """Return a loaded kernel; read its machine code from the cache, or compile and store it."""
        with self._lock:
            if name in self._functions:
                return self._functions[name]
            text = self._source([name])
            file = self._cache_file(name, text)
            code = file.read_bytes() if file.exists() else b""
            if code:
                try:
                    self._functions[name] = self._driver.load(code, name, self._index)
                    return self._functions[name]
                except BuildError:
                    pass  # an incomplete file, or code for another driver: compile again
            code = self._compiler.compile(text, self._architecture)
            self._functions[name] = self._driver.load(code, name, self._index)
            with suppress(OSError):  # a folder that cannot be written only costs the time of the next compilation
                file.parent.mkdir(parents=True, exist_ok=True)
                replace_file(file, code)
            return self._functions[name]

    def _cache_file(self, name: str, text: str) -> Path:
        key = hashlib.sha256("\n".join((torch.__version__, self._architecture, text)).encode()).hexdigest()[:16]
        architecture = self._architecture.replace(":", "_")
        return self._cache_folder / f"yolo_lightning_{architecture}" / f"{name}_{key}.bin"
