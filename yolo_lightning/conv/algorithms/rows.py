"""Row lowering for NCHW tensors: only horizontal taps are copied (3 copies for a 3x3 kernel); vertical taps are views.

Cho, Brand: MEC, Memory-efficient Convolution for Deep Neural Network (ICML 2017, arXiv 1706.06873), extended to strides
and dilations. The lowered image of a sample is `(kernel width * C, rows * output width)`. A vertical tap is an offset
of whole rows into this matrix and needs no further copy. A vertical stride `s` splits the rows by their remainder
modulo `s`; every tap reads the rows of one remainder.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from yolo_lightning.conv.algorithms.problem import Problem
from yolo_lightning.conv.algorithms.shared import crop, items_per_tile, pad, tap


def forward(input: Tensor, weight: Tensor, problem: Problem) -> Tensor:
    matrices = _matrices(weight)
    samples, outputs, height, width = problem.output_size
    output = input.new_empty(samples, outputs, height * width)
    for run, lowered, taps, first in _lowered_tiles(input, problem):
        for number, (index, pixels) in enumerate(taps):
            beta = 0 if first and number == 0 else 1
            output[run].baddbmm_(matrices[index].expand(lowered.size(0), -1, -1), lowered[:, :, pixels], beta=beta)
    return output.view(problem.output_size)


def input_gradient(grad_output: Tensor, weight: Tensor, problem: Problem) -> Tensor:
    """Return the input gradient, `problem.input_size`; products are added at the positions they were lowered from."""
    matrices = _matrices(weight).transpose(1, 2)
    samples, channels, _, _ = problem.input_size
    _, outputs, height, width = problem.output_size
    grads = grad_output.reshape(samples, outputs, height * width)
    grad_padded = grad_output.new_zeros(samples, channels, *problem.padded_size)
    for remainder, taps in _taps_by_remainder(problem).items():
        rows = _row_count(remainder, problem)
        step = items_per_tile(problem.kernel[1] * channels * rows * width, samples, grads.device)
        for start in range(0, samples, step):
            run = slice(start, start + step)
            part = grads[run]
            lowered = part.new_zeros(part.size(0), problem.kernel[1] * channels, rows * width)
            for index, pixels in taps:
                lowered[:, :, pixels].baddbmm_(matrices[index].expand(part.size(0), -1, -1), part)
            images = lowered.view(part.size(0), problem.kernel[1], channels, rows, width)
            target = grad_padded[run, :, remainder :: problem.stride[0]]
            for column in range(problem.kernel[1]):
                target[..., tap(1, column, problem)] += images[:, column]
    return crop(grad_padded, problem)


def weight_gradient(input: Tensor, grad_output: Tensor, problem: Problem) -> Tensor:
    samples, outputs, height, width = problem.output_size
    kernel_height, kernel_width = problem.kernel
    channels = problem.input_size[1]
    grads = grad_output.reshape(samples, outputs, height * width)
    total = input.new_zeros(kernel_height, outputs, kernel_width * channels)
    for run, lowered, taps, _ in _lowered_tiles(input, problem):
        for index, pixels in taps:
            total[index] += torch.bmm(grads[run], lowered[:, :, pixels].transpose(1, 2)).sum(0)
    grad_weight = total.view(kernel_height, outputs, kernel_width, channels).permute(1, 3, 0, 2)
    return grad_weight.contiguous()


def _lowered_tiles(input: Tensor, problem: Problem) -> Iterator[tuple[slice, Tensor, list[tuple[int, slice]], bool]]:
    """Yield slices of samples, their lowered images, the vertical taps that read them, and whether the slice is new."""
    padded = pad(input, problem)
    samples, channels, _, _ = problem.input_size
    width = problem.output_size[3]
    for number, (remainder, taps) in enumerate(_taps_by_remainder(problem).items()):
        rows = _row_count(remainder, problem)
        step = items_per_tile(problem.kernel[1] * channels * rows * width, samples, input.device)
        buffer = input.new_empty(step, problem.kernel[1], channels, rows, width)
        for start in range(0, samples, step):
            source = padded[start : start + step, :, remainder :: problem.stride[0]]
            lowered = buffer[: source.size(0)]
            for column in range(problem.kernel[1]):
                lowered[:, column].copy_(source[..., tap(1, column, problem)])
            yield slice(start, start + step), lowered.flatten(3).flatten(1, 2), taps, number == 0


def _taps_by_remainder(problem: Problem) -> dict[int, list[tuple[int, slice]]]:
    """Return the vertical taps by remainder: their indices and the pixels of the lowered image that they read."""
    _, _, height, width = problem.output_size
    taps: dict[int, list[tuple[int, slice]]] = {}
    for index in range(problem.kernel[0]):
        row, remainder = divmod(index * problem.dilation[0], problem.stride[0])
        taps.setdefault(remainder, []).append((index, slice(row * width, (row + height) * width)))
    return taps


def _row_count(remainder: int, problem: Problem) -> int:
    return len(range(remainder, problem.padded_size[0], problem.stride[0]))


def _matrices(weight: Tensor) -> Tensor:
    """Return the weight as `(kernel height, O, kernel width * C)`."""
    outputs, channels, height, width = weight.shape
    return weight.permute(2, 0, 3, 1).reshape(height, outputs, width * channels)
