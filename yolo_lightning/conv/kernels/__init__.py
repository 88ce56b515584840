"""Optional CUDA/HIP kernels, compiled on first use: convolutions (`fused`), normalization with SiLU (`fused_norm`)."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from yolo_lightning.conv.kernels import fused, fused_norm
from yolo_lightning.conv.kernels.build import make_launcher

_KERNELS = (fused.KERNELS, fused_norm.KERNELS)


def enable_gpu_kernels(build_folder: Path) -> None:
    """Enable the optional GPU kernels for convolutions and for batch normalization with SiLU.

    The kernels are compiled on first use, and verified against PyTorch operations on a small problem. If the
    compilation or the verification fails, a warning is issued and other algorithms are used.

    Args:
        build_folder: Folder for compiled kernels; several processes may share it.
    """
    folder = Path(build_folder)
    for kernels in _KERNELS:
        kernels.enable(lambda device: make_launcher(device, folder))


def disable_gpu_kernels() -> None:
    """Undo `enable_gpu_kernels`."""
    for kernels in _KERNELS:
        kernels.disable()


def gpu_kernels_enabled() -> bool:
    """Return whether all GPU kernels are enabled and none has failed."""
    return all(kernels.enabled for kernels in _KERNELS)


@contextmanager
def gpu_kernels_paused() -> Iterator[None]:
    """Use no GPU kernels in the block, and keep those that are compiled and verified."""
    with ExitStack() as stack:
        for kernels in _KERNELS:
            stack.enter_context(kernels.paused())
        yield
