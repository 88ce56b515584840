"""ATen's depthwise kernel for CUDA and ROCm devices, which needs no vendor library. Forward product only.

The backward kernels are accessible only through `aten::convolution_backward`, which may dispatch to the vendor library.
"""

import torch
from torch import Tensor

from yolo_lightning.conv.algorithms.problem import Problem


def forward(input: Tensor, weight: Tensor, problem: Problem) -> Tensor:
    """Return the output, `problem.output_size`, contiguous; half types accumulate in float32.

    Raises:
        RuntimeError: If the tensors are too large for 32-bit indices, or this torch build has no such operator.
    """
    top, _, left, _ = problem.padding
    output: Tensor = torch.ops.aten._conv_depthwise2d(
        input, weight, problem.kernel, None, problem.stride, (top, left), problem.dilation
    )
    return output


def accepts(problem: Problem) -> bool:
    """Return whether the padding is >= 0 and equal on opposite sides, as the operator requires."""
    top, bottom, left, right = problem.padding
    return top == bottom >= 0 and left == right >= 0
