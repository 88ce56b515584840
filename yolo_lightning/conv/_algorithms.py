"""Chooses how a convolution is computed. Every algorithm is a module with the three functions of `Algorithm`."""

from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from yolo_lightning.conv import _channels_last, _depthwise, _im2col, _pointwise, _rows
from yolo_lightning.conv._arguments import Problem


class Algorithm(Protocol):
    """The three products of a convolution; none of them needs to be differentiable."""

    def forward(self, input: Tensor, weight: Tensor, problem: Problem) -> Tensor:
        """The output, `problem.output_size`."""

    def input_gradient(self, grad_output: Tensor, weight: Tensor, problem: Problem) -> Tensor:
        """The gradient for the input, `problem.input_size`."""

    def weight_gradient(self, input: Tensor, grad_output: Tensor, problem: Problem) -> Tensor:
        """The gradient for the weight, `problem.weight_size`."""


def choose(problem: Problem, dtype: torch.dtype) -> Algorithm:
    """The algorithm for a problem: a fixed table."""
    if problem.is_pointwise:
        return _pointwise
    if problem.is_depthwise:
        return _depthwise
    if problem.groups > 1:
        return _im2col
    if problem.channels_last:
        return _channels_last
    # Rows are summed by several multiplications into one output, which rounds a half output once for each.
    return _rows if dtype in (torch.float32, torch.float64) else _im2col


def forward(input: Tensor, weight: Tensor, problem: Problem) -> Tensor:
    """The convolution, `problem.output_size` in `problem.memory_format`."""
    if _is_empty(problem):
        return input.new_zeros(problem.output_size)
    return choose(problem, input.dtype).forward(input, weight, problem)


def input_gradient(grad_output: Tensor, weight: Tensor, problem: Problem) -> Tensor:
    """The gradient for the input, `problem.input_size` in `problem.memory_format`.

    With stride 1 it is a convolution itself: of the padded output gradient with the mirrored weight, input and output
    channels exchanged.
    """
    if _is_empty(problem):
        return grad_output.new_zeros(problem.input_size)
    if problem.stride != (1, 1) or problem.is_pointwise:
        return choose(problem, grad_output.dtype).input_gradient(grad_output, weight, problem)
    kernel_height, kernel_width = problem.kernel
    rows, columns = problem.dilation[0] * (kernel_height - 1), problem.dilation[1] * (kernel_width - 1)
    top, bottom, left, right = problem.padding
    mirrored = _exchange_channels(weight.flip(2, 3), problem.groups)
    correlation = replace(
        problem,
        input_size=problem.output_size,
        weight_size=(mirrored.size(0), mirrored.size(1), kernel_height, kernel_width),
        # A side padded by more than the kernel's reach is cut off here: negative padding crops.
        padding=(rows - top, rows - bottom, columns - left, columns - right),
    )
    return choose(correlation, grad_output.dtype).forward(grad_output, mirrored, correlation)


def weight_gradient(input: Tensor, grad_output: Tensor, problem: Problem) -> Tensor:
    """The gradient for the weight, `problem.weight_size`, contiguous."""
    if _is_empty(problem):
        return input.new_zeros(problem.weight_size)
    return choose(problem, input.dtype).weight_gradient(input, grad_output, problem)


def _is_empty(problem: Problem) -> bool:
    return 0 in problem.input_size or 0 in problem.weight_size


def _exchange_channels(weight: Tensor, groups: int) -> Tensor:
    """`(g * O, C, kH, kW)` to `(g * C, O, kH, kW)`, group by group."""
    outputs, channels, height, width = weight.shape
    grouped = weight.reshape(groups, outputs // groups, channels, height, width)
    return grouped.transpose(1, 2).reshape(groups * channels, outputs // groups, height, width)
