"""Compiles winograd.cpp and windows.cpp for this machine's CPU, and finds the matrix product that they call.

They include nothing of torch's, so that any C++17 compiler with OpenMP does, in seconds. The product is `sgemm_` of the
BLAS library that torch itself uses: MKL, OpenBLAS and Accelerate have it, with sizes of 32 bits.
"""

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
from pathlib import Path

import torch

from yolo_lightning.conv.kernels.compiled_launch import Loops
from yolo_lightning.conv.kernels.fused_build import alone
from yolo_lightning.conv.kernels.verified import BuildError

SOURCES = ("winograd.cpp", "windows.cpp")
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC")
BUILD_TIMEOUT_S = 300.0
"""A build takes some five seconds; nobody waits longer than this, for a compiler or for another process."""


def build(build_folder: Path) -> Loops:
    """Compile the loops, or find what was compiled before; one process at a time.

    Args:
        build_folder: Holds one folder for each source, compiler and CPU; made where it is missing.

    Raises:
        BuildError: If there is no compiler, it fails, or torch's BLAS library has no `sgemm_`.
    """
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise BuildError("there is no C++ compiler (c++, g++, clang++, or the environment variable CXX)")
    here = Path(__file__).parent
    sources = [here / name for name in SOURCES]
    text = "\n".join(file.read_text(encoding="utf-8") for file in (*sources, here / "compiled.h"))
    key = hashlib.sha256("\n".join((text, compiler, *FLAGS, _processor())).encode()).hexdigest()[:16]
    try:
        folder = build_folder / f"yolo_lightning_compiled_{key}"
        folder.mkdir(parents=True, exist_ok=True)
        library = folder / "compiled.so"
        with alone(folder / "building", BUILD_TIMEOUT_S):
            if not library.exists():
                _compile(compiler, sources, library)
        return Loops(ctypes.CDLL(str(library)), _sgemm())
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildError(f"{type(error).__name__}: {error}") from error


def _compile(compiler: str, sources: list[Path], library: Path) -> None:
    made = library.with_suffix(".new")
    words = [*shlex.split(compiler), *FLAGS, *map(str, sources), "-o", str(made)]
    done = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=BUILD_TIMEOUT_S)
    if done.returncode != 0:
        raise BuildError(f"{compiler} ended with {done.returncode}: {done.stderr.strip()[:500]}")
    made.replace(library)


def _processor() -> str:
    """What decides which instructions a library may hold."""
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
