"""Input gradient of stride 1 as a convolution of the output gradient with the mirrored weight."""

from dataclasses import replace

from torch import Tensor

from yolo_lightning.conv.algorithms.problem import Problem


def correlation(problem: Problem) -> Problem:
    """Return the problem that maps the output gradient and `mirrored_weight` to the input gradient."""
    assert problem.stride == (1, 1), problem
    kernel_height, kernel_width = problem.kernel
    rows, columns = problem.dilation[0] * (kernel_height - 1), problem.dilation[1] * (kernel_width - 1)
    top, bottom, left, right = problem.padding
    return replace(
        problem,
        input_size=problem.output_size,
        weight_size=(problem.input_size[1], problem.weight_size[0] // problem.groups, kernel_height, kernel_width),
        # Negative, i.e. cropping, if a side is padded by more than the extent of the kernel.
        padding=(rows - top, rows - bottom, columns - left, columns - right),
    )


def mirrored_weight(weight: Tensor, groups: int) -> Tensor:
    """Rotate the kernels of `(groups * O, C, kH, kW)` by 180 degrees and return `(groups * C, O, kH, kW)`."""
    outputs, channels, height, width = weight.shape
    grouped = weight.flip(2, 3).reshape(groups, outputs // groups, channels, height, width)
    return grouped.transpose(1, 2).reshape(groups * channels, outputs // groups, height, width)
