"""Launches of the kernels in fused.cu for a convolution: kernel name, tile size, windows and grid.

The device depends on the `Launcher` only; the tests use an emulation on the CPU.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from yolo_lightning.conv.algorithms.problem import Problem
from yolo_lightning.conv.algorithms.rows_channels_last import Remainder, remainders_of

Grid = tuple[int, int, int]

THREADS = 256
"""Threads of a block; equal to THREADS in fused.cu."""
DEPTH = 16
"""Terms of each sum in shared memory at once; equal to DEPTH in fused.cu."""

# Blocks that occupy a device: 4 on each of 40 compute units. The value, and therefore the order of the sums, is equal
# on every device.
BUSY_BLOCKS = 160
# Minimum number of output pixels per block of the weight gradient, and maximum size of all partial sums (64 MiB).
PIXELS_PER_SPLIT = 256
PARTIAL_ELEMENTS = 1 << 24
# Offsets in the kernels are 32-bit and exceed the last element by up to one tile.
MOST_ELEMENTS = (1 << 31) - (1 << 20)


class Launcher(Protocol):
    """Launches a kernel of `instances` on the current stream of the device of the tensors."""

    def __call__(self, name: str, grid: Grid, tensors: Sequence[Tensor], numbers: Sequence[int]) -> None:
        """Launch `grid` blocks; the arguments are the addresses of the tensors, followed by the numbers."""


class KernelTile(NamedTuple):
    """Part of a result that one block computes; each thread computes `rows_each` x 4 elements."""

    rows: int
    columns: int
    rows_each: int

    def kernel(self, product: str, by_four: bool) -> str:
        """Return the name of the kernel for `correlate` or `sum_products`; `by_four` selects aligned float4 loads."""
        return f"{product}_{self.rows}x{self.columns}_{'by_four' if by_four else 'by_one'}"

    def blocks(self, rows: int, columns: int) -> tuple[int, int]:
        """Return the number of tiles along the rows and columns of a result."""
        return -(-rows // self.rows), -(-columns // self.columns)

    def cost(self, rows: int, columns: int, least_blocks: int) -> float:
        """Return the relative number of reads from shared memory, for at least `least_blocks` blocks."""
        blocks = max(math.prod(self.blocks(rows, columns)), least_blocks)
        return blocks * self.rows * self.columns * (1 / self.rows_each + 1 / 4)


TILES = (
    KernelTile(128, 64, 8),
    KernelTile(256, 32, 8),
    KernelTile(64, 64, 4),
    KernelTile(128, 32, 4),
    KernelTile(256, 16, 4),
)


def instances() -> dict[str, str]:
    """Return the C++ line that defines each kernel, by kernel name."""
    return {
        tile.kernel(product, by_four): f"{product.upper()}({tile.kernel(product, by_four)}, {tile.rows}, "
        f"{tile.columns}, {tile.rows_each}, {str(by_four).lower()})"
        for product in ("correlate", "sum_products")
        for tile in TILES
        for by_four in (True, False)
    }


class _Windows(NamedTuple):
    """`Windows` of fused_windows.cuh without the sizes of the image, in the order of the kernel arguments."""

    place_rows: int
    place_columns: int
    row_step: int
    first_row: int
    tap_row_step: int
    column_step: int
    first_column: int
    tap_column_step: int
    tap_rows: int
    tap_columns: int

    def numbers(self, image: Tensor) -> tuple[int, ...]:
        _, height, width, channels = image.shape
        return height, width, channels, image.stride(2), *self


class _Spacing(NamedTuple):
    """Evenly spaced taps of a `Remainder`, and the outputs of its first position."""

    taps: slice  # slice of the kernel
    first: int  # output for which the first tap reads the position
    step: int  # distance from there to the output of the next tap


def forward(launch: Launcher, input: Tensor, weight: Tensor, problem: Problem) -> Tensor:
    samples, outputs, height, width = problem.output_size
    matrix = weight.permute(2, 3, 1, 0).contiguous()
    output = input.new_empty(samples, height, width, outputs)
    _correlate(launch, _pixels(input), matrix, output, _output_windows(problem), (1, 0, 1, 0))
    return output.permute(0, 3, 1, 2)


def input_gradient(launch: Launcher, grad_output: Tensor, weight: Tensor, problem: Problem) -> Tensor:
    """Return the input gradient, `problem.input_size`, channels_last.

    The input positions of one remainder modulo the stride are read by evenly spaced taps; their gradient is a
    convolution of the output gradient with stride 1.
    """
    samples, channels, height, width = problem.input_size
    grads = _pixels(grad_output)
    grad_input = grad_output.new_empty(samples, height, width, channels)
    for rows in remainders_of(0, problem):
        for columns in remainders_of(1, problem):
            if not (rows.taps and columns.taps):
                grad_input[:, rows.pixels, columns.pixels].zero_()
                continue
            row, column = _spacing(rows), _spacing(columns)
            taps = weight[:, :, row.taps, column.taps].permute(2, 3, 0, 1).contiguous()
            windows = _Windows(
                *(rows.count, columns.count, 1, row.first, row.step, 1, column.first, column.step, *taps.shape[:2])
            )
            places = (problem.stride[0], rows.pixels.start, problem.stride[1], columns.pixels.start)
            _correlate(launch, grads, taps, grad_input, windows, places)
    return grad_input.permute(0, 3, 1, 2)


def weight_gradient(launch: Launcher, input: Tensor, grad_output: Tensor, problem: Problem) -> Tensor:
    """Return the weight gradient, `problem.weight_size`, contiguous.

    Blocks sum ranges of output pixels in parallel, and the partial sums are added in a fixed order, so that the result
    is deterministic.
    """
    image, grads = _pixels(input), _pixels(grad_output)
    samples, outputs, height, width = problem.output_size
    pixels, rows = samples * height * width, math.prod(problem.weight_size[1:])
    tile = min(TILES, key=lambda tile: tile.cost(rows, outputs, least_blocks=0))
    blocks = tile.blocks(rows, outputs)
    wanted = min(2 * BUSY_BLOCKS // math.prod(blocks), pixels // PIXELS_PER_SPLIT, PARTIAL_ELEMENTS // (rows * outputs))
    per_split = -(-pixels // (max(1, wanted) * DEPTH)) * DEPTH
    splits = -(-pixels // per_split)
    partials = input.new_empty(splits, rows, outputs)
    numbers = (*_output_windows(problem).numbers(image), pixels, per_split, outputs, grads.stride(2))
    by_four = _by_four((problem.input_size[1], image.stride(2), outputs, grads.stride(2)), (image, grads, partials))
    launch(tile.kernel("sum_products", by_four), (*blocks, splits), (image, grads, partials), numbers)
    total = partials.sum(0) if splits > 1 else partials[0]
    return total.view(*problem.kernel, -1, outputs).permute(3, 2, 0, 1).contiguous()


def _correlate(
    launch: Launcher, image: Tensor, matrix: Tensor, result: Tensor, windows: _Windows, places: tuple[int, ...]
) -> None:
    """Write the products of the windows of `image` and the contiguous `matrix` to places of the contiguous `result`.

    The matrix is `(tap rows, tap columns, C, columns)`. `windows` has one window per place; `places` are row step,
    first row, column step and first column of the places.
    """
    samples, height, width, columns = result.shape
    rows = samples * windows.place_rows * windows.place_columns
    tile = min(TILES, key=lambda tile: tile.cost(rows, columns, BUSY_BLOCKS))
    by_four = _by_four((image.size(3), image.stride(2), columns), (image, matrix, result))
    numbers = (*windows.numbers(image), height, width, *places, rows, columns)
    launch(tile.kernel("correlate", by_four), (*tile.blocks(rows, columns), 1), (image, matrix, result), numbers)


def _spacing(remainder: Remainder) -> _Spacing:
    first, last = remainder.taps[0], remainder.taps[-1]
    gaps = max(1, len(remainder.taps) - 1)
    index_step = max(1, (last.index - first.index) // gaps)
    taps = slice(first.index, last.index + 1, index_step)
    return _Spacing(taps, remainder.first - first.shift, (first.shift - last.shift) // gaps)


def _output_windows(problem: Problem) -> _Windows:
    top, _, left, _ = problem.padding
    return _Windows(
        *problem.output_size[2:],
        *(problem.stride[0], -top, problem.dilation[0]),
        *(problem.stride[1], -left, problem.dilation[1]),
        *problem.kernel,
    )


def _pixels(images: Tensor) -> Tensor:
    """Return `(N, height, width, C)` with evenly spaced pixels; a view if possible, also of a slice of channels."""
    pixels = images.permute(0, 2, 3, 1)
    _, height, width, channels = pixels.shape
    step = pixels.stride(2)
    even = (height * width * step, width * step, step, 1)
    is_even = pixels.stride() == even and step >= channels and pixels.size(0) * even[0] <= MOST_ELEMENTS
    return pixels if is_even else pixels.clone(memory_format=torch.contiguous_format)


def _by_four(steps: Sequence[int], tensors: Sequence[Tensor]) -> bool:
    """Return whether all rows consist of aligned groups of four values."""
    return all(step % 4 == 0 for step in steps) and all(tensor.data_ptr() % 16 == 0 for tensor in tensors)
