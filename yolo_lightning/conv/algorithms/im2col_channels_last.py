"""im2col for channels_last tensors: all channels of a pixel are copied at once, and samples share a matrix product.

Windows are copied for a few image rows at a time, into a small buffer that stays in the cache of a CPU between the copy
and the matrix product.
"""

from collections.abc import Iterator
from math import prod

import torch
from torch import Tensor

from yolo_lightning.conv.algorithms.problem import Problem
from yolo_lightning.conv.algorithms.shared import (
    accumulation_dtype,
    add_products_,
    crop,
    items_per_tile,
    pad,
    tap,
    tiles,
    windows,
)


def forward(input: Tensor, weight: Tensor, problem: Problem) -> Tensor:
    matrix = _matrix(weight)
    samples, outputs, height, width = problem.output_size
    output = input.new_empty(samples * height * width, outputs)
    for pixels, tile in _window_tiles(input, problem):
        torch.mm(tile, matrix.t(), out=output[pixels])
    return output.view(samples, height, width, outputs).permute(0, 3, 1, 2)


def input_gradient(grad_output: Tensor, weight: Tensor, problem: Problem) -> Tensor:
    """Return the input gradient, `problem.input_size`; overlapping windows are summed in float32 or float64."""
    samples, channels, _, _ = problem.input_size
    _, outputs, height, width = problem.output_size
    total = grad_output.new_zeros(samples, *problem.padded_size, channels, dtype=accumulation_dtype(grad_output.dtype))
    grads, matrix = grad_output.permute(0, 2, 3, 1).reshape(samples, -1, outputs), _matrix(weight)
    step = items_per_tile(height * width * matrix.size(1), samples, grad_output.device)
    for start in range(0, samples, step):
        part = grads[start : start + step]
        products = (part.reshape(-1, outputs) @ matrix).view(part.size(0), height, width, *problem.kernel, channels)
        for row in range(problem.kernel[0]):
            for column in range(problem.kernel[1]):
                target = total[start : start + step, tap(0, row, problem), tap(1, column, problem)]
                target += products[:, :, :, row, column]
    return crop(total.permute(0, 3, 1, 2), problem).to(grad_output.dtype)


def weight_gradient(input: Tensor, grad_output: Tensor, problem: Problem) -> Tensor:
    """Return the weight gradient, `problem.weight_size`; half types are summed over tiles in float32."""
    outputs, channels, height, width = problem.weight_size
    grads = grad_output.permute(0, 2, 3, 1).reshape(-1, outputs)
    pixels_per_sample = problem.output_size[2] * problem.output_size[3]
    total = input.new_zeros(outputs, height * width * channels, dtype=accumulation_dtype(input.dtype))
    for pixels, tile in _window_tiles(input, problem):
        add_products_(total, grads[pixels], tile, max(1, tile.size(0) // pixels_per_sample))
    grad_weight = total.to(input.dtype).view(outputs, height, width, channels)
    return grad_weight.permute(0, 3, 1, 2)


def _window_tiles(input: Tensor, problem: Problem) -> Iterator[tuple[slice, Tensor]]:
    """Yield slices of output pixels and their windows `(pixels, kernel taps * C)` in one buffer that is reused."""
    seen = windows(pad(input, problem), problem).permute(0, 4, 5, 2, 3, 1)
    samples, height, width, *window = seen.shape
    depth = prod(window)
    step = items_per_tile(depth * width, samples * height, input.device)
    buffer = input.new_empty(step * width, depth)
    for run in tiles(samples, height, step):
        source = seen[run.samples, run.rows]
        tile = buffer[: source.size(0) * source.size(1) * width]
        tile.view(source.shape).copy_(source)
        first = (run.samples.start * height + run.rows.start) * width
        yield slice(first, first + tile.size(0)), tile


def _matrix(weight: Tensor) -> Tensor:
    """Return the weight as `(O, kernel taps * C)`."""
    return weight.permute(0, 2, 3, 1).reshape(weight.size(0), -1)
