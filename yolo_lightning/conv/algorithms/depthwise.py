"""Depthwise convolution: one multiply-add over the whole image per kernel tap."""

import torch
from torch import Tensor

from yolo_lightning.conv.algorithms.algorithm import Algorithm, Operation
from yolo_lightning.conv.algorithms.problem import Problem
from yolo_lightning.conv.algorithms.shared import accumulation_dtype, crop, pad, tap


def forward(input: Tensor, weight: Tensor, problem: Problem) -> Tensor:
    """Return the output, `problem.output_size`; half types accumulate in float32."""
    padded = pad(input, problem).unsqueeze(2)
    taps = _taps(weight, problem)
    total = input.new_zeros(_grouped_output(problem), dtype=accumulation_dtype(input.dtype))
    for row in range(problem.kernel[0]):
        for column in range(problem.kernel[1]):
            seen = padded[..., tap(0, row, problem), tap(1, column, problem)]
            total.addcmul_(seen.to(total.dtype), taps[row, column].to(total.dtype))
    output = total.view(problem.output_size).to(input.dtype)
    return output.contiguous(memory_format=problem.memory_format)


def input_gradient(grad_output: Tensor, weight: Tensor, problem: Problem) -> Tensor:
    """Return the input gradient, `problem.input_size`; half types accumulate in float32."""
    samples, channels, _, _ = problem.input_size
    taps = _taps(weight, problem)
    grouped = grad_output.reshape(_grouped_output(problem))
    total = grouped.new_zeros((samples, channels, *problem.padded_size), dtype=accumulation_dtype(grouped.dtype))
    for row in range(problem.kernel[0]):
        for column in range(problem.kernel[1]):
            contribution = (grouped * taps[row, column]).sum(2, dtype=total.dtype)
            total[..., tap(0, row, problem), tap(1, column, problem)] += contribution
    return crop(total, problem).to(grad_output.dtype)


def weight_gradient(input: Tensor, grad_output: Tensor, problem: Problem) -> Tensor:
    """Return the weight gradient, `problem.weight_size`; half types accumulate in float32."""
    padded = pad(input, problem).unsqueeze(2)
    grouped = grad_output.reshape(_grouped_output(problem))
    dtype = accumulation_dtype(input.dtype)
    products = []
    for row in range(problem.kernel[0]):
        for column in range(problem.kernel[1]):
            seen = padded[..., tap(0, row, problem), tap(1, column, problem)]
            products.append((seen * grouped).sum((0, 3, 4), dtype=dtype))
    return torch.stack(products, -1).to(input.dtype).view(problem.weight_size)


def _taps(weight: Tensor, problem: Problem) -> Tensor:
    """Return the weight as `(kernel height, kernel width, 1, C, multiplier, 1, 1)`."""
    channels = problem.groups
    taps = weight.reshape(channels, -1, *problem.kernel).permute(2, 3, 0, 1)
    return taps[:, :, None, :, :, None, None]


def _grouped_output(problem: Problem) -> tuple[int, int, int, int, int]:
    samples, outputs, height, width = problem.output_size
    return samples, problem.groups, outputs // problem.groups, height, width


ALGORITHM = Algorithm(
    "depthwise",
    {
        Operation.FORWARD: forward,
        Operation.INPUT_GRADIENT: input_gradient,
        Operation.WEIGHT_GRADIENT: weight_gradient,
    },
    lambda problem, dtype, device_type: problem.is_depthwise,
)
