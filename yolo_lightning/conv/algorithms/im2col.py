"""im2col, the algorithm for all problems: each window becomes a row of a matrix, multiplied by the weight.

Chellapilla, Puri, Simard: High Performance Convolutional Neural Networks for Document Processing (2006), for
channels_last tensors: all channels of a pixel are copied at once, and samples share a matrix product. Windows are
copied for a few image rows at a time, into a small buffer that stays in the cache of a CPU between the copy and the
product.
"""

from collections.abc import Iterator
from math import prod

import torch
from torch import Tensor

from yolo_lightning.conv.algorithms.algorithm import Algorithm, Operation
from yolo_lightning.conv.algorithms.problem import Problem
from yolo_lightning.conv.algorithms.shared import (
    accumulation_dtype,
    add_products_,
    crop,
    items_per_tile,
    multiply,
    pad,
    tap,
    tiles,
    windows,
)


def forward(input: Tensor, weight: Tensor, problem: Problem) -> Tensor:
    """Return the output, `problem.output_size`, in channels_last."""
    matrices = _matrices(weight, problem).transpose(1, 2)
    samples, outputs, height, width = problem.output_size
    output = input.new_empty(samples * height * width, outputs)
    for pixels, tile in _window_tiles(input, problem):
        if problem.groups == 1:
            multiply(tile[:, 0], matrices[0], out=output[pixels])
        else:
            multiply(tile.transpose(0, 1), matrices, out=_by_group(output[pixels], problem))
    return output.view(samples, height, width, outputs).permute(0, 3, 1, 2)


def input_gradient(grad_output: Tensor, weight: Tensor, problem: Problem) -> Tensor:
    """Return the input gradient, `problem.input_size`; overlapping windows are summed in float32 or float64."""
    samples, channels, _, _ = problem.input_size
    _, outputs, height, width = problem.output_size
    groups = problem.groups
    depth = prod(problem.weight_size[1:])
    dtype = accumulation_dtype(grad_output.dtype)
    total = grad_output.new_zeros(samples, *problem.padded_size, groups, channels // groups, dtype=dtype)
    grads = grad_output.permute(0, 2, 3, 1).reshape(samples, -1, outputs)
    matrices = _matrices(weight, problem)
    step = items_per_tile(height * width * groups * depth, samples, grad_output.device)
    for start in range(0, samples, step):
        part = grads[start : start + step].reshape(-1, outputs)
        if groups == 1:
            products = multiply(part, matrices[0])
        else:
            products = multiply(_by_group(part, problem), matrices).transpose(0, 1)
        seen = products.reshape(-1, height, width, groups, *problem.kernel, channels // groups)
        for row in range(problem.kernel[0]):
            for column in range(problem.kernel[1]):
                target = total[start : start + step, tap(0, row, problem), tap(1, column, problem)]
                target += seen[:, :, :, :, row, column]
    return crop(total.flatten(3).permute(0, 3, 1, 2), problem).to(grad_output.dtype)


def weight_gradient(input: Tensor, grad_output: Tensor, problem: Problem) -> Tensor:
    """Return the weight gradient, `problem.weight_size`; half types are summed over tiles in float32."""
    outputs, channels, height, width = problem.weight_size
    grads = grad_output.permute(0, 2, 3, 1).reshape(-1, outputs)
    pixels_per_sample = problem.output_size[2] * problem.output_size[3]
    size = problem.groups, outputs // problem.groups, height * width * channels
    total = input.new_zeros(size, dtype=accumulation_dtype(input.dtype))
    for pixels, tile in _window_tiles(input, problem):
        if problem.groups == 1:
            add_products_(total[0], grads[pixels], tile[:, 0], max(1, tile.size(0) // pixels_per_sample))
        else:
            total += multiply(_by_group(grads[pixels], problem).transpose(1, 2), tile.transpose(0, 1))
    grad_weight = total.to(input.dtype).view(outputs, height, width, channels).permute(0, 3, 1, 2)
    if problem.groups == 1:
        return grad_weight
    return grad_weight.contiguous(memory_format=problem.memory_format)


def _window_tiles(input: Tensor, problem: Problem) -> Iterator[tuple[slice, Tensor]]:
    """Yield slices of output pixels and their windows `(pixels, groups, kernel taps * C / groups)`.

    All windows are in one buffer that is reused.
    """
    seen = windows(pad(input, problem), problem)
    samples, channels, *taps, height, width = seen.shape
    seen = torch.unflatten(seen, 1, (problem.groups, channels // problem.groups)).permute(0, 5, 6, 1, 3, 4, 2)
    depth = prod(taps) * channels
    step = items_per_tile(depth * width, samples * height, input.device)
    buffer = input.new_empty(step * width, problem.groups, depth // problem.groups)
    for run in tiles(samples, height, step):
        source = seen[run.samples, run.rows]
        tile = buffer[: source.size(0) * source.size(1) * width]
        tile.view(source.shape).copy_(source)
        first = (run.samples.start * height + run.rows.start) * width
        yield slice(first, first + tile.size(0)), tile


def _matrices(weight: Tensor, problem: Problem) -> Tensor:
    """Return the weight as `(groups, O / groups, kernel taps * C / groups)`."""
    return weight.permute(0, 2, 3, 1).reshape(problem.groups, weight.size(0) // problem.groups, -1)


def _by_group(pixels: Tensor, problem: Problem) -> Tensor:
    """Return `(pixels, O)` as `(groups, pixels, O / groups)`."""
    return pixels.view(pixels.size(0), problem.groups, -1).transpose(0, 1)


def _serves(problem: Problem, dtype: torch.dtype, device_type: str) -> bool:
    return problem.channels_last and not problem.is_pointwise


ALGORITHM = Algorithm(
    "im2col",
    {
        Operation.FORWARD: forward,
        Operation.INPUT_GRADIENT: input_gradient,
        Operation.WEIGHT_GRADIENT: weight_gradient,
    },
    _serves,
)
