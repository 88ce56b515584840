"""Source text of the GPU kernels, and their launcher."""

from collections.abc import Sequence
from pathlib import Path

import torch

from yolo_lightning.conv.kernels import batch_norm_launch, fused_launch
from yolo_lightning.conv.kernels.launcher import Launcher
from yolo_lightning.conv.kernels.runtime_compiler import RuntimeCompiled
from yolo_lightning.conv.kernels.verified import BuildError
from yolo_lightning.errors import log_unexpected

_FILES = ("elements.cuh", "fused_windows.cuh", "fused.cu", "winograd.cu", "batch_norm.cu")


def kernel_lines() -> dict[str, str]:
    """Return the C++ line that defines each kernel, by kernel name."""
    return fused_launch.instances() | batch_norm_launch.instances()


def source(kernels: Sequence[str]) -> str:
    """Return the source text with the given kernels of `kernel_lines`."""
    lines = kernel_lines()
    texts = (Path(__file__).with_name(name).read_text(encoding="utf-8") for name in _FILES)
    return "\n".join((*texts, *(lines[name] for name in kernels), ""))


def make_launcher(device: torch.device, build_folder: Path) -> Launcher:
    """Return a launcher of the kernels for a GPU with an index, or raise `BuildError`.

    Compiled kernels are stored in `build_folder`, which several processes may share.
    """
    try:
        return RuntimeCompiled(device, source, build_folder, list(kernel_lines()))
    except Exception as error:  # torch and the dynamic loader raise various types
        log_unexpected(error, RuntimeError, OSError, AttributeError, AssertionError)
        raise BuildError(f"{type(error).__name__}: {str(error).strip()[:500]}") from error
