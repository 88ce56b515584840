"""Convolution in C++ loops of our own on a CPU (winograd.cpp, windows.cpp), compiled on the spot. Optional.

The algorithms are those of `_winograd` and `_channels_last`. In Python each tile costs dozens of small operations, and
threads share each of them; here a thread does all of a tile, while another one does the next.

Off until `enable` is called. The loops are compiled when the first problem asks for them.
"""

from pathlib import Path

import torch

from yolo_lightning.conv.algorithms import rows_channels_last
from yolo_lightning.conv.algorithms.problem import Problem
from yolo_lightning.conv.kernels import compiled_build, compiled_launch
from yolo_lightning.conv.kernels.compiled_launch import Loops
from yolo_lightning.conv.kernels.verified import OptionalKernels, product_of

PRODUCTS = tuple(
    product_of(name, compiled_launch, rows_channels_last)
    for name in ("forward", "input_gradient", "weight_gradient", "gradients")
)
_LOOPS: OptionalKernels[Loops] = OptionalKernels("compiled convolution loops", PRODUCTS)


def enable(build_folder: Path) -> None:
    """Let the loops be candidates from here on, also after earlier ones failed; does not build them yet.

    Args:
        build_folder: Where they are built; several processes may share it.
    """
    _LOOPS.enable(lambda device: compiled_build.build(build_folder))


disable = _LOOPS.disable
forward = _LOOPS.forward
input_gradient = _LOOPS.input_gradient
weight_gradient = _LOOPS.weight_gradient
gradients = _LOOPS.gradients


def available() -> bool:
    """Whether the loops are enabled and can be had; builds them, and warns once if that fails."""
    return _LOOPS.work_on(torch.device("cpu"))


def accepts(problem: Problem, dtype: torch.dtype, device_type: str) -> bool:
    """Whether the loops can compute a problem: on a CPU, channels_last, one group, float32, nothing empty."""
    sizes = (problem.input_size, problem.output_size, problem.weight_size)
    return (
        device_type == "cpu"
        and dtype == torch.float32
        and problem.channels_last
        and problem.groups == 1
        and min(min(size) for size in sizes) > 0
    )
