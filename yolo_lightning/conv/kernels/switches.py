"""Switches for the kernels of our own, which need a compiler."""

from pathlib import Path

from yolo_lightning.conv.kernels import compiled, fused


def enable_fused_kernels(build_folder: Path) -> None:
    """Let kernels of our own be candidates from here on: fused.cu on an accelerator, loops in C++ on a CPU.

    They are built when a problem first asks for them, and compared with another algorithm. Where that fails there is a
    warning, and the other algorithms compute.

    Args:
        build_folder: Where they are built; several processes may share it.
    """
    fused.enable(build_folder)
    compiled.enable(build_folder)


def disable_fused_kernels() -> None:
    """Undo `enable_fused_kernels`."""
    fused.disable()
    compiled.disable()
