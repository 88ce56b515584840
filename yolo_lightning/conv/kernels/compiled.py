"""Optional convolution in C++ on a CPU (winograd.cpp, windows.cpp), compiled on first use.

The algorithms are those of `winograd` and `im2col_channels_last`. With PyTorch operations, each tile needs dozens of
small operations, and the threads synchronize after each of them. Here each thread computes whole tiles.

The loops are disabled until `enable` is called, and compiled when a problem first uses them.
"""

from pathlib import Path

import torch

from yolo_lightning.conv.algorithms import rows_channels_last
from yolo_lightning.conv.algorithms.problem import Problem
from yolo_lightning.conv.kernels import compiled_build, compiled_launch
from yolo_lightning.conv.kernels.verified import OptionalKernels

_LOOPS = OptionalKernels("compiled convolution loops", compiled_launch, rows_channels_last)


def enable(build_folder: Path) -> None:
    """Enable the loops, without compiling them yet; several processes may share the folder of the compiled library."""
    _LOOPS.enable(lambda device: compiled_build.build(build_folder))


disable = _LOOPS.disable
forward = _LOOPS.forward
input_gradient = _LOOPS.input_gradient
weight_gradient = _LOOPS.weight_gradient
gradients = _LOOPS.gradients


def available() -> bool:
    """Return whether the loops are enabled and compiled; compile them if necessary and warn once on failure."""
    return _LOOPS.work_on(torch.device("cpu"))


def accepts(problem: Problem, dtype: torch.dtype, device_type: str) -> bool:
    """Return whether the loops support a problem: on a CPU, channels_last, one group, float32, not empty."""
    sizes = (problem.input_size, problem.output_size, problem.weight_size)
    return (
        device_type == "cpu"
        and dtype == torch.float32
        and problem.channels_last
        and problem.groups == 1
        and min(min(size) for size in sizes) > 0
    )
