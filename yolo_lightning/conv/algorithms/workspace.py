"""Workspace of each algorithm in bytes: an upper bound for its temporary tensors, without operands and results.

After an out-of-memory error, a plan tries only algorithms with a smaller workspace. The operands are assumed to be
dense in the memory format of the problem. Scratch memory that a thread keeps between calls counts, too.
"""

from math import prod

import torch

from yolo_lightning.conv.algorithms import column_batches
from yolo_lightning.conv.algorithms.problem import Problem
from yolo_lightning.conv.algorithms.shared import accumulation_dtype, items_per_tile, product_parts
from yolo_lightning.conv.algorithms.winograd_transforms import OUTPUTS, PATCH_VALUES

KERNEL_PARTIAL_ELEMENTS = 1 << 24
"""Largest partial sums of the compiled GPU kernels for a weight gradient, in elements."""


def pointwise(operation: str, problem: Problem, dtype: torch.dtype, device_type: str) -> int:
    weight, pixels = prod(problem.weight_size), problem.input_size[0] * prod(problem.input_size[2:])
    copies = problem.input_size[0] + 1
    if problem.channels_last and problem.groups == 1:
        is_sum = operation in ("weight_gradient", "gradients") and device_type != "cpu"
        copies = product_parts(pixels, *problem.weight_size[:2]) if is_sum else 1
    return copies * weight * _total(dtype)


def depthwise(operation: str, problem: Problem, dtype: torch.dtype, device_type: str) -> int:
    images = 2 * _padded(problem) + 3 * prod(problem.output_size) + prod(problem.input_size)
    return (images + 2 * prod(problem.weight_size)) * _total(dtype)


def native_depthwise(operation: str, problem: Problem, dtype: torch.dtype, device_type: str) -> int:
    return 0


def rows(operation: str, problem: Problem, dtype: torch.dtype, device_type: str) -> int:
    samples, _, _, width = problem.output_size
    weight = prod(problem.weight_size)
    lowered_rows = -(-problem.padded_size[0] // problem.stride[0])
    by_sample = problem.kernel[1] * problem.input_size[1] * lowered_rows * width
    step = items_per_tile(by_sample, samples, torch.device(device_type))
    sums = 3 * weight + 2 * step * weight // problem.kernel[0]
    matrices = step * weight // problem.kernel[0]
    return (2 * _padded(problem) + step * by_sample + weight + max(sums, matrices)) * dtype.itemsize


def rows_channels_last(operation: str, problem: Problem, dtype: torch.dtype, device_type: str) -> int:
    return max(_rows_by_input(problem, device_type), _rows_by_grads(operation, problem, device_type)) * dtype.itemsize


def _rows_by_input(problem: Problem, device_type: str) -> int:
    samples, _, height, width = problem.output_size
    return _row_tile(width, problem.kernel[1] * problem.input_size[1], samples, height, problem, device_type)


def _rows_by_grads(operation: str, problem: Problem, device_type: str) -> int:
    if operation in ("forward", "weight_gradient"):
        return 0
    samples, channels, height, width = problem.input_size
    by_axis = (-(-size // step) for size, step in zip((height, width), problem.stride, strict=True))
    rows_of_one, columns = by_axis
    taps = -(-problem.kernel[1] // problem.stride[1])
    tile = _row_tile(columns, taps * problem.weight_size[0], samples, rows_of_one, problem, device_type)
    # The result of one remainder cannot be written in place; neither can the input be read in place.
    return tile + 2 * samples * channels * rows_of_one * columns


def _row_tile(width: int, depth: int, samples: int, height: int, problem: Problem, device_type: str) -> int:
    step = items_per_tile(width * depth, samples * height, torch.device(device_type))
    # A tile also has the rows that the other taps of its first and last rows read.
    images = max(1, step // height)
    lowered = (step + images * problem.kernel[0] * problem.dilation[0]) * width * depth
    weight = prod(problem.weight_size)
    return lowered + 4 * weight + 2 * images * weight // problem.kernel[0]


def im2col_channels_last(operation: str, problem: Problem, dtype: torch.dtype, device_type: str) -> int:
    samples, outputs, height, width = problem.output_size
    weight = prod(problem.weight_size)
    depth = weight // problem.weight_size[0]
    device = torch.device(device_type)
    step = items_per_tile(depth * width, samples * height, device)
    windows = (2 * _padded(problem) + step * width * depth + weight) * dtype.itemsize
    if operation == "forward":
        return windows
    if operation == "weight_gradient":
        return windows + (max(1, step // height) + 4) * weight * _total(dtype)
    by_sample = items_per_tile(height * width * depth, samples, device)
    products = by_sample * height * width * (depth + outputs) + weight
    return products * dtype.itemsize + 2 * _padded(problem) * _total(dtype)


def winograd(operation: str, problem: Problem, dtype: torch.dtype, device_type: str) -> int:
    samples, outputs, height, width = problem.output_size
    channels = problem.input_size[1]
    if operation in ("gradients", "input_gradient"):
        channels, outputs = outputs, channels
        height, width = problem.input_size[2:]
    patch_rows, columns = -(-height // OUTPUTS), -(-width // OUTPUTS)
    step = items_per_tile(
        PATCH_VALUES * columns * max(channels, outputs), samples * patch_rows, torch.device(device_type)
    )
    # Patches, their first half, the band of the image and a spare buffer; products and their first half, both ways.
    patches = step * (columns + 1) * (100 * channels + 150 * outputs)
    return (patches + 16 * prod(problem.weight_size)) * dtype.itemsize


def im2col(operation: str, problem: Problem, dtype: torch.dtype, device_type: str) -> int:
    samples, _, height, width = problem.output_size
    weight = prod(problem.weight_size)
    by_sample = problem.input_size[1] * prod(problem.kernel) * height * width
    step = items_per_tile(by_sample, samples, torch.device(device_type))
    if operation in ("forward", "weight_gradient"):
        sums = 2 * step * weight + 2 * weight
        return (2 * _padded(problem) + step * by_sample + sums) * _total(dtype)
    # The gradient of all samples is lowered at once, and again in the type of the sum.
    columns = samples * by_sample * (dtype.itemsize + (_total(dtype) if _total(dtype) != dtype.itemsize else 0))
    return columns + (2 * _padded(problem) + samples * weight) * _total(dtype)


def columns(operation: str, problem: Problem, dtype: torch.dtype, device_type: str) -> int:
    """Return the workspace of `column_batches`."""
    return column_batches.workspace(operation, problem) * dtype.itemsize + _column_sums(problem, dtype)


def columns_by_sample(operation: str, problem: Problem, dtype: torch.dtype, device_type: str) -> int:
    """Return the workspace of `column_batches` by sample."""
    return column_batches.workspace(operation, problem, by_sample=True) * dtype.itemsize + _column_sums(problem, dtype)


def _column_sums(problem: Problem, dtype: torch.dtype) -> int:
    return 2 * prod(problem.weight_size) * _total(dtype)


def kernels(operation: str, problem: Problem, dtype: torch.dtype, device_type: str) -> int:
    """Return the workspace of compiled kernels, which lower windows in the memory of a compute unit."""
    weight = prod(problem.weight_size)
    is_sum = operation in ("weight_gradient", "gradients")
    return (4 * weight + (KERNEL_PARTIAL_ELEMENTS if is_sum else 0)) * dtype.itemsize


def conversion(problem: Problem, dtype: torch.dtype) -> int:
    """Return the bytes of copies of all images of a problem in another memory format."""
    return (prod(problem.input_size) + prod(problem.output_size)) * dtype.itemsize


def _padded(problem: Problem) -> int:
    return prod(problem.input_size[:2]) * prod(problem.padded_size)


def _total(dtype: torch.dtype) -> int:
    return accumulation_dtype(dtype).itemsize
