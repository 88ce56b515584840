"""Helpers of several algorithms: padding, kernel taps, tiles, accumulation, mirrored weights."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from yolo_lightning.conv.algorithms.problem import Problem, Tensors

# Lowered elements per CPU thread that stay in the cache until the matrix product reads them.
CPU_TILE_ELEMENTS = 1 << 18
# Limit of the scratch memory on an accelerator (256 MiB in float32); smaller tiles have no advantage there.
ACCELERATOR_TILE_ELEMENTS = 1 << 26
# Blocks of 64 x 64 results that occupy an accelerator: 4 on each of 40 compute units. The number, and therefore the
# order of a sum, is equal on every device.
BUSY_BLOCKS = 160
# Least number of pixels in a part of a sum over pixels.
PIXELS_PER_PART = 256
# Largest number of rows and columns of a matrix product on an accelerator. Above it, float32 products of rocBLAS and
# hipBLASLt are silently wrong on some cards (ROCm/ROCm#6595, ROCm/rocm-libraries#8645). Can be deleted when the oldest
# supported ROCm contains the fix.
MAX_PRODUCT_ROWS = 1 << 19


def have_data(tensors: Tensors) -> bool:
    """Return whether tensors have data in memory, which excludes subclasses and traced tensors."""
    return (
        all(type(tensor) in (Tensor, nn.Parameter) for tensor in tensors)
        and not is_traced()
        and not torch.compiler.is_compiling()
    )


def exports_to_onnx() -> bool:
    """Return whether `torch.onnx.export` traces the call, with either of its exporters.

    ONNX has operators for convolution and batch normalization, so the layers then call those of PyTorch, which the
    exporters translate. No kernel of a vendor library runs: the tensors of a trace are fake, or those of one example.
    """
    if torch.compiler.is_dynamo_compiling():
        return False
    return (torch.compiler.is_compiling() or is_traced()) and torch.onnx.is_in_onnx_export()


def is_recorded(tensor: Tensor) -> bool:
    """Return whether a compiler or exporter records the call. Sizes may then be symbolic."""
    return torch.compiler.is_compiling() or not all(type(size) is int for size in tensor.shape)


def is_traced() -> bool:
    """Return whether `torch.jit.trace` records the call. Sizes are then tensors."""
    is_tracing: bool = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    return is_tracing


def has_autocast(device_type: str) -> bool:
    """Return whether PyTorch has autocast for a type of device, such as "cuda"."""
    return torch.amp.is_autocast_available(device_type)


# torch.compile of torch 2.11 and earlier cannot trace `torch.amp.is_autocast_available`. The attribute is all that
# `torch.compiler.assume_constant_result` sets, but the decorator imports torch._dynamo, which takes 1.5 s.
has_autocast._dynamo_marked_constant = True  # type: ignore[attr-defined]


def is_under_autocast(device_type: str) -> bool:
    """Return whether autocast is enabled for a type of device."""
    return has_autocast(device_type) and torch.is_autocast_enabled(device_type)


def without_autocast(tensor: Tensor) -> AbstractContextManager[object]:
    """Disable autocast: operands are already cast, and the backward pass may run under another autocast setting."""
    device_type = tensor.device.type
    if not has_autocast(device_type):
        return nullcontext()
    return torch.autocast(device_type, enabled=False)


def is_capturing(device: torch.device) -> bool:
    """Return whether the current stream records a CUDA graph instead of computing."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def channels_last_strides(size: Sequence[int]) -> tuple[int, int, int, int]:
    """Return the strides of a dense channels_last tensor `(N, C, H, W)`."""
    _, channels, height, width = size
    return height * width * channels, 1, width * channels, channels


def contiguous_strides(size: Sequence[int]) -> tuple[int, int, int, int]:
    """Return the strides of a contiguous tensor `(N, C, H, W)`."""
    _, channels, height, width = size
    return channels * height * width, height * width, width, 1


def with_usual_strides(tensor: Tensor, channels_last: bool) -> Tensor:
    """Return a tensor that is dense in a memory format with the usual strides also in dimensions of size 1.

    These strides have no effect on the content. `looks_channels_last` distinguishes the two formats of a tensor with
    one channel or one pixel by them.
    """
    size = tensor.shape
    if 1 not in size or 0 in size:
        return tensor
    strides = channels_last_strides(size) if channels_last else contiguous_strides(size)
    if tensor.stride() == strides:
        return tensor
    return tensor.as_strided(size, strides)


def with_bias(output: Tensor, bias: Tensor | None) -> Tensor:
    """Return the output of a convolution `(N, O, ...)` with the bias `(O,)` of its channels."""
    if bias is None:
        return output
    return output + bias.view(-1, *(1,) * (output.dim() - 2))


def pad(input: Tensor, problem: Problem) -> Tensor:
    """Return the padded input `(N, C, padded height, padded width)`, dense in `problem.memory_format`.

    Without padding, the result may be the input itself.
    """
    top, bottom, *horizontal = problem.padding
    if any(problem.padding):
        input = F.pad(input, (*horizontal, top, bottom))
    return input.contiguous(memory_format=problem.memory_format)


def windows(padded: Tensor, problem: Problem) -> Tensor:
    """Return the windows of the padded input as a view `(N, C, kernel height, kernel width, output height, width)`."""
    by_sample, by_channel, by_row, by_column = padded.stride()
    taps = (by_row * problem.dilation[0], by_column * problem.dilation[1])
    places = (by_row * problem.stride[0], by_column * problem.stride[1])
    size = (*problem.input_size[:2], *problem.kernel, *problem.output_size[2:])
    return padded.as_strided(size, (by_sample, by_channel, *taps, *places))


def crop(grad_padded: Tensor, problem: Problem) -> Tensor:
    """Return the gradient of `pad`: the input without the border, dense in `problem.memory_format`."""
    top, _, before, _ = problem.padding
    _, _, height, width = problem.input_size
    inner = grad_padded[:, :, top : top + height, before : before + width]
    return inner.contiguous(memory_format=problem.memory_format)


def tap(axis: int, index: int, problem: Problem) -> slice:
    """Return the padded rows (axis 0) or columns (axis 1) that kernel tap `index` reads, one per output."""
    start = index * problem.dilation[axis]
    return slice(start, start + (problem.output_size[2 + axis] - 1) * problem.stride[axis] + 1, problem.stride[axis])


def items_per_tile(elements_per_item: int, items: int, device: torch.device) -> int:
    """Return the number of items (samples or image rows) to lower at once."""
    budget = ACCELERATOR_TILE_ELEMENTS
    if device.type == "cpu":
        budget = CPU_TILE_ELEMENTS * torch.get_num_threads()
    return max(1, min(items, budget // max(1, elements_per_item)))


def largest_product(device: torch.device) -> int:
    """Return the largest number of rows and columns of a matrix product."""
    return sys.maxsize if device.type == "cpu" else MAX_PRODUCT_ROWS


def multiply(left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
    """Return the matrix product, computed in parts if it has too many rows or columns.

    Args:
        left: `(rows, K)` or `(batch, rows, K)`; broadcast if `right` has 4 dimensions.
        right: `(K, columns)`, `(batch, K, columns)` or `(samples, batch, K, columns)`.
        out: Receives the result, for 2 and 3 dimensions of `right`.
    """
    limit = largest_product(left.device)
    rows = left.size(-2)
    columns = right.size(-1)
    if max(rows, columns) <= limit:
        function: Callable[..., Tensor] = {2: torch.mm, 3: torch.bmm}.get(right.dim(), torch.matmul)
        if out is None:
            return function(left, right)
        return function(left, right, out=out)
    result = out
    if result is None:
        result = left.new_empty(*right.shape[:-2], rows, columns)
    for row, column in product(range(0, rows, limit), range(0, columns, limit)):
        part = multiply(left[..., row : row + limit, :], right[..., column : column + limit])
        result[..., row : row + limit, column : column + limit] = part
    return result


def add_products_(total: Tensor, grads: Tensor, values: Tensor, samples: int) -> None:
    """Add `grads` transposed times `values` to `total`.

    On an accelerator, samples are multiplied separately and then summed: a single product with a small result and a
    long inner dimension would use few compute units. `total` is `(O, K)` in the accumulation dtype, `grads` is
    `(pixels, O)` and `values` is `(pixels, K)`.
    """
    if grads.device.type == "cpu" and total.dtype == grads.dtype:
        total.addmm_(grads.t(), values)
        return
    by_sample = grads.view(samples, -1, grads.size(1)).transpose(1, 2)
    total += multiply(by_sample, values.view(samples, -1, values.size(1))).sum(0, dtype=total.dtype)


@lru_cache(maxsize=1 << 10)
def product_parts(pixels: int, rows: int, columns: int) -> int:
    """Return into how many products of `(rows, pixels / parts)` and `(pixels / parts, columns)` to divide a long sum.

    The smallest divisor of `pixels` with `BUSY_BLOCKS` blocks of the results, or the largest with at least
    `PIXELS_PER_PART` pixels in each product.
    """
    blocks = -(-rows // 64) * -(-columns // 64)
    parts = 1
    for divisor in range(1, pixels // PIXELS_PER_PART + 1):
        if pixels % divisor == 0:
            parts = divisor
            if divisor * blocks >= BUSY_BLOCKS:
                break
    return parts


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of partial sums: float32 for the half types."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


@dataclass(frozen=True)
class Tile:
    """A range of rows of a range of samples."""

    samples: slice
    rows: slice


def tiles(samples: int, rows: int, rows_per_tile: int) -> Iterator[Tile]:
    """Yield ranges of rows of one sample or, if whole samples fit into a tile, ranges of samples."""
    if rows_per_tile < rows:
        for sample, first in product(range(samples), range(0, rows, rows_per_tile)):
            yield Tile(slice(sample, sample + 1), slice(first, min(first + rows_per_tile, rows)))
        return
    step = rows_per_tile // rows
    for sample in range(0, samples, step):
        yield Tile(slice(sample, min(sample + step, samples)), slice(0, rows))


def overlap(first: int, step: int, count: int, size: int) -> tuple[slice, slice]:
    """Return the slice of indices and the slice of positions of those `first + index * step` that are in `range(size)`.

    The indices are in `range(count)`.
    """
    low = min(count, max(0, -(first // step)))
    high = max(low, min(count, -((first - size) // step)))
    if low == high:
        return slice(low, low), slice(0, 0)
    return slice(low, high), slice(first + low * step, first + (high - 1) * step + 1, step)


def correlation(problem: Problem) -> Problem:
    """Return the problem that maps the output gradient and `mirrored_weight` to the input gradient."""
    assert problem.stride == (1, 1), problem
    kernel_height, kernel_width = problem.kernel
    rows = problem.dilation[0] * (kernel_height - 1)
    columns = problem.dilation[1] * (kernel_width - 1)
    top, bottom, before, after = problem.padding
    return replace(
        problem,
        input_size=problem.output_size,
        weight_size=(problem.input_size[1], problem.weight_size[0] // problem.groups, kernel_height, kernel_width),
        # Negative, i.e. cropping, if a side is padded by more than the extent of the kernel.
        padding=(rows - top, rows - bottom, columns - before, columns - after),
    )


def mirrored_weight(weight: Tensor, groups: int) -> Tensor:
    """Rotate the kernels of `(groups * O, C, kH, kW)` by 180 degrees and return `(groups * C, O, kH, kW)`."""
    outputs, channels, height, width = weight.shape
    grouped = weight.flip(2, 3).reshape(groups, outputs // groups, channels, height, width)
    return grouped.transpose(1, 2).reshape(groups * channels, outputs // groups, height, width)
