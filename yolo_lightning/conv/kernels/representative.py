"""Small convolutions that use the kernels of a large one, for the verification of kernels."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from yolo_lightning.conv.algorithms import im2col
from yolo_lightning.conv.algorithms.algorithm import Operation
from yolo_lightning.conv.algorithms.problem import Problem, Tensors
from yolo_lightning.conv.kernels import fused_launch
from yolo_lightning.conv.kernels.verified import Pairs, generated

# Elements of the input and of the output of a small problem.
MOST_ELEMENTS = 1 << 19


def small_problem(problem: Problem) -> Problem:
    """Return the problem with at most two samples and, if it is still large, with fewer image rows."""
    _, channels, height, width = problem.input_size
    _, outputs, out_rows, out_width = problem.output_size
    samples = min(2, problem.input_size[0])
    row_elements = samples * max(channels * width * problem.stride[0], outputs * out_width)
    top, bottom, _, _ = problem.padding
    reach = problem.dilation[0] * (problem.kernel[0] - 1) + 1
    rows = min(out_rows, max(2, MOST_ELEMENTS // row_elements))
    needed = (rows - 1) * problem.stride[0] + reach - top - bottom
    if rows == out_rows or needed < 1:
        needed = height
    return replace(problem, input_size=(samples, channels, min(height, needed), width))


def compared(
    operation: Operation,
    problem: Problem,
    dtype: torch.dtype,
    device: torch.device,
    kernels: Any,
) -> Pairs:
    """Yield results of the kernels for a small problem, each with the result of `im2col` in float32.

    Every tile that `fused_launch` selects for the problem is computed.
    """
    small = small_problem(problem)
    input = _images(small.input_size, dtype, device, 1)
    grads = _images(small.output_size, dtype, device, 2)
    weight = generated(*small.weight_size, dtype=dtype, device=device, seed=3)
    operands: dict[Operation, Tensors] = {
        Operation.FORWARD: (input, weight),
        Operation.INPUT_GRADIENT: (grads, weight),
        Operation.WEIGHT_GRADIENT: (input, grads),
    }
    exact = im2col.ALGORITHM.products[operation](*(tensor.float() for tensor in operands[operation]), small)
    assert isinstance(exact, Tensor)
    for tile in fused_launch.tiles_for(operation, problem, dtype):
        found = fused_launch.PRODUCTS[operation](kernels, *operands[operation], small, tiles=(tile,))
        yield found.float(), exact


def _images(size: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device, seed: int) -> Tensor:
    samples, channels, height, width = size
    return generated(samples, height, width, channels, dtype=dtype, device=device, seed=seed).permute(0, 3, 1, 2)
