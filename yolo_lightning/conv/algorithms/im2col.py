"""im2col, the general algorithm: each window becomes a column of a matrix; one batched product per tile of samples.

Chellapilla, Puri, Simard: High Performance Convolutional Neural Networks for Document Processing (2006).
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from yolo_lightning.conv.algorithms.problem import Problem
from yolo_lightning.conv.algorithms.shared import accumulation_dtype, crop, items_per_tile, pad, windows


def forward(input: Tensor, weight: Tensor, problem: Problem) -> Tensor:
    matrices = _matrices(weight, problem)
    output = input.new_empty(_grouped_output(problem))
    for samples, columns in _column_tiles(input, problem):
        torch.matmul(matrices, columns, out=output[samples])
    return output.view(problem.output_size).contiguous(memory_format=problem.memory_format)


def input_gradient(grad_output: Tensor, weight: Tensor, problem: Problem) -> Tensor:
    """Return the input gradient, `problem.input_size`; overlapping windows are summed in float32 or float64."""
    matrices = _matrices(weight, problem).transpose(1, 2)
    columns = matrices @ grad_output.reshape(_grouped_output(problem))
    samples, channels, _, _ = problem.input_size
    flat = columns.view(samples, channels * problem.kernel[0] * problem.kernel[1], columns.size(3))
    grad_padded = F.fold(
        flat.to(accumulation_dtype(flat.dtype)),
        problem.padded_size,
        problem.kernel,
        dilation=problem.dilation,
        stride=problem.stride,
    )
    return crop(grad_padded.to(grad_output.dtype), problem)


def weight_gradient(input: Tensor, grad_output: Tensor, problem: Problem) -> Tensor:
    """Return the weight gradient, `problem.weight_size`; half types are summed over samples in float32."""
    grouped = grad_output.reshape(_grouped_output(problem))
    total = torch.zeros((), dtype=accumulation_dtype(input.dtype), device=input.device)
    for samples, columns in _column_tiles(input, problem):
        total = total + (grouped[samples] @ columns.transpose(2, 3)).sum(0, dtype=total.dtype)
    return total.to(input.dtype).view(problem.weight_size)


def _column_tiles(input: Tensor, problem: Problem) -> Iterator[tuple[slice, Tensor]]:
    """Yield slices of samples and their columns `(samples, groups, C / groups * kernel taps, output pixels)`."""
    seen = windows(pad(input, problem), problem)
    samples, channels, kernel_height, kernel_width, height, width = seen.shape
    depth = channels // problem.groups * kernel_height * kernel_width
    step = items_per_tile(problem.groups * depth * height * width, samples, input.device)
    for start in range(0, samples, step):
        run = seen[start : start + step]
        yield slice(start, start + step), run.reshape(run.size(0), problem.groups, depth, height * width)


def _matrices(weight: Tensor, problem: Problem) -> Tensor:
    return weight.reshape(problem.groups, problem.weight_size[0] // problem.groups, -1)


def _grouped_output(problem: Problem) -> tuple[int, int, int, int]:
    samples, outputs, height, width = problem.output_size
    return samples, problem.groups, outputs // problem.groups, height * width
