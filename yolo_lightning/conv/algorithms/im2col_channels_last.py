"""im2col for channels_last tensors: all channels of a pixel are copied at once, and samples share a matrix product.

Windows are copied for a few image rows at a time, into a small buffer that stays in the cache of a CPU between the copy
and the matrix product.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from yolo_lightning.conv.algorithms.problem import Problem
from yolo_lightning.conv.algorithms.shared import accumulation_dtype, add_products_, crop, items_per_tile, pad, tap


def forward(input: Tensor, weight: Tensor, problem: Problem) -> Tensor:
    """Return the output, `problem.output_size`."""
    matrix = _matrix(weight)
    samples, outputs, height, width = problem.output_size
    output = input.new_empty(samples * height * width, outputs)
    for pixels, windows in _window_tiles(input, problem):
        torch.mm(windows, matrix.t(), out=output[pixels])
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
        windows = (part.reshape(-1, outputs) @ matrix).view(part.size(0), height, width, *problem.kernel, channels)
        for row in range(problem.kernel[0]):
            for column in range(problem.kernel[1]):
                target = total[start : start + step, tap(0, row, problem), tap(1, column, problem)]
                target += windows[:, :, :, row, column]
    return crop(total.permute(0, 3, 1, 2), problem).to(grad_output.dtype)


def weight_gradient(input: Tensor, grad_output: Tensor, problem: Problem) -> Tensor:
    """Return the weight gradient, `problem.weight_size`; half types are summed over tiles in float32."""
    outputs, channels, height, width = problem.weight_size
    grads = grad_output.permute(0, 2, 3, 1).reshape(-1, outputs)
    pixels_per_sample = problem.output_size[2] * problem.output_size[3]
    total = input.new_zeros(outputs, height * width * channels, dtype=accumulation_dtype(input.dtype))
    for pixels, windows in _window_tiles(input, problem):
        samples = max(1, windows.size(0) // pixels_per_sample)
        add_products_(total, grads[pixels], windows, samples)
    grad_weight = total.to(input.dtype).view(outputs, height, width, channels)
    return grad_weight.permute(0, 3, 1, 2).contiguous()


def _window_tiles(input: Tensor, problem: Problem) -> Iterator[tuple[slice, Tensor]]:
    """Yield slices of output pixels and their windows `(pixels, kernel taps * C)` in one buffer that is reused."""
    padded = pad(input, problem)
    (kernel_height, kernel_width), channels = problem.kernel, problem.input_size[1]
    samples, _, height, width = problem.output_size
    by_sample, by_channel, by_row, by_column = padded.stride()
    windows = padded.as_strided(
        (samples, height, width, kernel_height, kernel_width, channels),
        (
            by_sample,
            by_row * problem.stride[0],
            by_column * problem.stride[1],
            by_row * problem.dilation[0],
            by_column * problem.dilation[1],
            by_channel,
        ),
    )
    depth = kernel_height * kernel_width * channels
    step = items_per_tile(depth * width, samples * height, input.device)
    buffer = input.new_empty(step * width, depth)
    for sample_run, row_run in _runs(samples, height, step):
        source = windows[sample_run, row_run]
        tile = buffer[: source.size(0) * source.size(1) * width]
        tile.view(source.shape).copy_(source)
        first = (sample_run.start * height + row_run.start) * width
        yield slice(first, first + tile.size(0)), tile


def _runs(samples: int, height: int, rows_per_tile: int) -> Iterator[tuple[slice, slice]]:
    """Yield slices of samples and rows: whole samples if they fit into a tile, else some rows of one sample."""
    if rows_per_tile >= height:
        step = rows_per_tile // height
        for start in range(0, samples, step):
            yield slice(start, min(start + step, samples)), slice(0, height)
        return
    for sample in range(samples):
        for start in range(0, height, rows_per_tile):
            yield slice(sample, sample + 1), slice(start, min(start + rows_per_tile, height))


def _matrix(weight: Tensor) -> Tensor:
    """Return the weight as `(O, kernel taps * C)`."""
    return weight.permute(0, 2, 3, 1).reshape(weight.size(0), -1)
