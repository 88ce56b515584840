"""PyTorch's own depthwise kernel for accelerators of the CUDA family (CUDA and ROCm), which needs no vendor library.

Only the forward product is here. The kernels of its backward are reached through `aten::convolution_backward` alone,
which may hand over to the vendor library instead.
"""

import torch
from torch import Tensor

from yolo_lightning.conv.algorithms.problem import Problem


def forward(input: Tensor, weight: Tensor, problem: Problem) -> Tensor:
    """The output, `problem.output_size`, contiguous; sums in float32 for the half types.

    Raises:
        RuntimeError: If the tensors are too large for its 32-bit indices, or this build lacks the operator.
    """
    top, _, left, _ = problem.padding
    output: Tensor = torch.ops.aten._conv_depthwise2d(
        input, weight, problem.kernel, None, problem.stride, (top, left), problem.dilation
    )
    return output


def accepts(problem: Problem) -> bool:
    """Whether the padding is the same on opposite sides and crops nothing, as the operator asks."""
    top, bottom, left, right = problem.padding
    return top == bottom >= 0 and left == right >= 0
