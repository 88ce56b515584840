"""Optional kernels, compiled on first use: CUDA/HIP on a GPU (`fused`), C++ loops on a CPU (`compiled`)."""

from pathlib import Path

from yolo_lightning.conv.kernels import compiled, fused


def enable_compiled_kernels(build_folder: Path) -> None:
    """Enable the optional compiled kernels: fused.cu on a GPU, C++ loops on a CPU.

    The kernels are compiled on first use, and their first result for each problem is verified against another
    algorithm. If the compilation or the verification fails, a warning is issued and other algorithms are used.

    Args:
        build_folder: Folder for compiled libraries; several processes may share it.
    """
    fused.enable(build_folder)
    compiled.enable(build_folder)


def disable_compiled_kernels() -> None:
    """Undo `enable_compiled_kernels`."""
    fused.disable()
    compiled.disable()
