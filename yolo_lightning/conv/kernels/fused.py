"""Optional implicit GEMM convolution on a GPU (fused.cu): windows are not written to global memory.

Chetlur et al.: cuDNN: Efficient Primitives for Deep Learning (2014), section 3. A roofline model, not a measurement, of
all convolutions in a training step of YOLOv8n on an RX 5600 XT (batch 8, 640 pixels, float32) gives 31 ms, compared
with 51 ms for row lowering and 60 ms for im2col.

The kernels are disabled until `enable` is called, and compiled when a problem first uses them.
"""

from pathlib import Path

import torch

from yolo_lightning.conv.algorithms import rows_channels_last
from yolo_lightning.conv.algorithms.problem import Problem
from yolo_lightning.conv.kernels import fused_build, fused_launch
from yolo_lightning.conv.kernels.fused_launch import MOST_ELEMENTS
from yolo_lightning.conv.kernels.verified import OptionalKernels

_KERNELS = OptionalKernels("fused convolution kernels", fused_launch, rows_channels_last)


def enable(build_folder: Path) -> None:
    """Enable the kernels, without compiling them yet; builds with a toolkit are stored in the folder."""
    _KERNELS.enable(lambda device: fused_build.make_launcher(device, build_folder))


disable = _KERNELS.disable
forward = _KERNELS.forward
input_gradient = _KERNELS.input_gradient
weight_gradient = _KERNELS.weight_gradient


def available(device: torch.device) -> bool:
    """Return whether the kernels are enabled and compiled for this device; compile them if necessary.

    Warns once if the compilation fails.
    """
    if device.type != "cuda" or not _KERNELS.enabled:
        return False
    index = torch.cuda.current_device() if device.index is None else device.index
    return _KERNELS.work_on(torch.device("cuda", index))


def accepts(problem: Problem, dtype: torch.dtype, device_type: str) -> bool:
    """Return whether the kernels support a problem: on a GPU, channels_last, one group, float32, 32-bit offsets."""
    sizes = (problem.input_size, problem.output_size, problem.weight_size)
    most = max(torch.Size(size).numel() for size in sizes)
    return (
        device_type == "cuda"
        and dtype == torch.float32
        and problem.channels_last
        and problem.groups == 1
        and min(min(size) for size in sizes) > 0
        and most <= MOST_ELEMENTS
    )
