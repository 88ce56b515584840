"""Optional implicit GEMM convolution on a GPU (fused.cu, winograd.cu): windows are not written to global memory.

Chetlur et al.: cuDNN: Efficient Primitives for Deep Learning (2014), section 3. 3x3 convolutions with stride 1 use
Winograd's algorithm (Lavin and Gray: Fast Algorithms for Convolutional Neural Networks, 2016). Elements are float32,
float16 or bfloat16; sums are float32.

Every product is one operator of `torch.library` in the namespace `yolo_lightning`, with a fake implementation, so that
tools that record operators see the kernel. The kernels are disabled until `enable_gpu_kernels` is called, and compiled
when a problem first uses them (see build.py).
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from yolo_lightning.conv.algorithms import im2col
from yolo_lightning.conv.algorithms.algorithm import Algorithm, Operation, operands_of, result_sizes
from yolo_lightning.conv.algorithms.problem import Problem
from yolo_lightning.conv.algorithms.shared import have_data
from yolo_lightning.conv.kernels import fused_launch
from yolo_lightning.conv.kernels.launcher import ELEMENTS, MOST_ELEMENTS, Launcher, empty_images
from yolo_lightning.conv.kernels.verified import OptionalKernels, Pairs, generated, is_accelerator, operator

KERNELS = OptionalKernels("fused convolution kernels")
available = KERNELS.available
# Elements of the input and of the output of a small problem.
SMALL_ELEMENTS = 1 << 19


def accepts(problem: Problem, dtype: torch.dtype, device_type: str) -> bool:
    """Return whether the kernels support a problem.

    They support a GPU, channels_last, one group, float32, float16 and bfloat16, and 32-bit offsets.
    """
    sizes = (problem.input_size, problem.output_size, problem.weight_size)
    most = max(torch.Size(size).numel() for size in sizes)
    return (
        is_accelerator(device_type)
        and dtype in ELEMENTS
        and problem.channels_last
        and problem.groups == 1
        and min(min(size) for size in sizes) > 0
        and most <= MOST_ELEMENTS
    )


def _compute(operation: Operation, first: Tensor, second: Tensor, problem: Problem) -> Tensor:
    """Compute a product with the kernels if possible, else with the reference."""
    sizes = () if operation is Operation.FORWARD else result_sizes(operation, problem)
    arguments = (first, second, *sizes, problem.stride, problem.padding, problem.dilation)
    results = None
    if have_data((first, second)):
        results = KERNELS.run(
            (operation, problem, first.dtype),
            first.device,
            lambda: (_OPERATORS[operation](*arguments),),
            lambda: _compared(operation, problem, first.dtype, first.device, KERNELS.required(first.device)),
        )
    if results is not None:
        return results[0]
    result = im2col.ALGORITHM.products[operation](first, second, problem)
    assert isinstance(result, Tensor)
    return result


forward = partial(_compute, Operation.FORWARD)
input_gradient = partial(_compute, Operation.INPUT_GRADIENT)
weight_gradient = partial(_compute, Operation.WEIGHT_GRADIENT)


def small_problem(problem: Problem) -> Problem:
    """Return the problem with at most two samples and, if it is still large, with fewer image rows."""
    _, channels, height, width = problem.input_size
    _, outputs, out_rows, out_width = problem.output_size
    samples = min(2, problem.input_size[0])
    row_elements = samples * max(channels * width * problem.stride[0], outputs * out_width)
    top, bottom, _, _ = problem.padding
    reach = problem.dilation[0] * (problem.kernel[0] - 1) + 1
    rows = min(out_rows, max(2, SMALL_ELEMENTS // row_elements))
    needed = (rows - 1) * problem.stride[0] + reach - top - bottom
    if rows == out_rows or needed < 1:
        needed = height
    return replace(problem, input_size=(samples, channels, min(height, needed), width))


def _compared(
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
    operands = operands_of(operation, input, grads, weight)
    exact = im2col.ALGORITHM.products[operation](*(tensor.float() for tensor in operands), small)
    assert isinstance(exact, Tensor)
    for tile in fused_launch.tiles_for(operation, problem, dtype):
        result = fused_launch.PRODUCTS[operation](kernels, *operands, small, tiles=(tile,))
        yield result.float(), exact


def _images(size: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device, seed: int) -> Tensor:
    samples, channels, height, width = size
    return generated(samples, height, width, channels, dtype=dtype, device=device, seed=seed).permute(0, 3, 1, 2)


def _register(operation: Operation, tensors: str, size: str = "") -> Any:
    """Register and return the operator of a product; its schema begins with `tensors` and the `size` of a gradient."""

    def problem_of(first: Tensor, second: Tensor, *sizes: Sequence[int]) -> Problem:
        input_size = sizes[0] if operation is Operation.INPUT_GRADIENT else first.shape
        weight_size = sizes[0] if operation is Operation.WEIGHT_GRADIENT else second.shape
        arguments: list[Any] = [tuple(size) for size in (input_size, weight_size, *sizes[-3:])]
        arguments += [1, True]  # one group, channels_last
        return Problem(*arguments)

    def fake(first: Tensor, second: Tensor, *sizes: Sequence[int]) -> Tensor:
        return empty_images(first, result_sizes(operation, problem_of(first, second, *sizes))[0])

    schema = f"fused_conv_{operation}({tensors}, {size}int[] stride, int[] padding, int[] dilation) -> Tensor"

    @operator(schema, fake, KERNELS)
    def compute(launch: Launcher, first: Tensor, second: Tensor, *sizes: Sequence[int]) -> Tensor:
        return fused_launch.PRODUCTS[operation](launch, first, second, problem_of(first, second, *sizes))

    return compute


_OPERATORS = {
    Operation.FORWARD: _register(Operation.FORWARD, "Tensor input, Tensor weight"),
    Operation.INPUT_GRADIENT: _register(
        Operation.INPUT_GRADIENT, "Tensor grad_output, Tensor weight", "int[] input_size, "
    ),
    Operation.WEIGHT_GRADIENT: _register(
        Operation.WEIGHT_GRADIENT, "Tensor input, Tensor grad_output", "int[] weight_size, "
    ),
}


def _serves(problem: Problem, dtype: torch.dtype, device_type: str) -> bool:
    return accepts(problem, dtype, device_type) and available(torch.device(device_type))


# The kernels split the sum over pixels of a weight gradient; a BLAS product with a small result uses few compute units.
# The other products of a 1x1 convolution are large BLAS products. The table therefore has two entries.
WEIGHT_GRADIENT = Algorithm("fused", {Operation.WEIGHT_GRADIENT: weight_gradient}, _serves)
PRODUCTS = Algorithm("fused", {Operation.FORWARD: forward, Operation.INPUT_GRADIENT: input_gradient}, _serves)
