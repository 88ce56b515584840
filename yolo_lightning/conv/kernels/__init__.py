"""Optional kernels, compiled on first use: CUDA/HIP on a GPU (`fused`), C++ loops on a CPU (`compiled`)."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from yolo_lightning.conv.kernels import compiled, fused, fused_norm

_KERNELS = (fused.KERNELS, fused_norm.KERNELS, compiled.KERNELS)


def enable_compiled_kernels(build_folder: Path) -> None:
    """Enable the optional compiled kernels: `enable_gpu_kernels` on a GPU, C++ loops for convolutions on a CPU.

    Args:
        build_folder: Folder for compiled libraries; several processes may share it.
    """
    enable_gpu_kernels(build_folder)
    compiled.enable(build_folder)


def enable_gpu_kernels(build_folder: Path) -> None:
    """Enable the optional GPU kernels for convolutions and for batch normalisation with SiLU.

    The kernels are compiled on first use, and verified against PyTorch operations on a small problem. If the
    compilation or the verification fails, a warning is issued and other algorithms are used.

    Args:
        build_folder: Folder for compiled kernels; several processes may share it.
    """
    fused.enable(build_folder)
    fused_norm.enable(build_folder)


def disable_compiled_kernels() -> None:
    """Undo `enable_compiled_kernels` and `enable_gpu_kernels`."""
    fused.disable()
    fused_norm.disable()
    compiled.disable()


def compiled_kernels_enabled() -> bool:
    """Return whether all compiled kernels are enabled and none has failed."""
    return all(kernels.enabled for kernels in _KERNELS)


@contextmanager
def compiled_kernels_paused() -> Iterator[None]:
    """Use no compiled kernels in the block, and keep those that are compiled and verified."""
    with ExitStack() as stack:
        for kernels in _KERNELS:
            stack.enter_context(kernels.paused())
        yield
