"""Launches of the kernels in fused.cu for a convolution: kernel name, tile size, windows and grid.

The device depends on the `Launcher` only; the tests use an emulation on the CPU.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from yolo_lightning.conv.algorithms.problem import Problem
from yolo_lightning.conv.algorithms.rows_channels_last import Remainder, remainders_of
from yolo_lightning.conv.kernels.launcher import ELEMENTS, Argument, Grid, Launcher, pixels_of, reads_by_four

DEPTH = 16
"""Terms of each sum in shared memory at once; equal to DEPTH in fused.cu."""

# Blocks that occupy a device: 4 on each of 40 compute units. The value, and therefore the order of the sums, is equal
# on every device.
BUSY_BLOCKS = 160
# Minimum number of output pixels per block of the weight gradient, and maximum size of all partial sums (64 MiB).
PIXELS_PER_SPLIT = 256
PARTIAL_ELEMENTS = 1 << 24


class KernelTile(NamedTuple):
    """Part of a result that one block computes; each thread computes `rows_each` x 4 elements."""

    rows: int
    columns: int
    rows_each: int

    def kernel(self, product: str, by_four: bool, dtype: torch.dtype = torch.float32) -> str:
        """Return the name of the kernel for `correlate` or `sum_products`; `by_four` selects aligned vector loads."""
        width = "by_four" if by_four else "by_one"
        return f"{product}_{self.rows}x{self.columns}_{width}{ELEMENTS[dtype].suffix}"

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
        tile.kernel(product, by_four, dtype): f"{product.upper()}({tile.kernel(product, by_four, dtype)}, "
        f"{element.cpp_type}, {tile.rows}, {tile.columns}, {tile.rows_each}, {str(by_four).lower()})"
        for dtype, element in ELEMENTS.items()
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


def forward(
    launch: Launcher, input: Tensor, weight: Tensor, problem: Problem, tiles: Sequence[KernelTile] = TILES
) -> Tensor:
    samples, outputs, height, width = problem.output_size
    matrix = weight.permute(2, 3, 1, 0).contiguous()
    output = input.new_empty(samples, height, width, outputs)
    _correlate(launch, pixels_of(input), matrix, output, _output_windows(problem), (1, 0, 1, 0), tiles)
    return output.permute(0, 3, 1, 2)


def input_gradient(
    launch: Launcher, grad_output: Tensor, weight: Tensor, problem: Problem, tiles: Sequence[KernelTile] = TILES
) -> Tensor:
    """Return the input gradient, `problem.input_size`, channels_last.

    The input positions of one remainder modulo the stride are read by evenly spaced taps; their gradient is a
    convolution of the output gradient with stride 1.
    """
    samples, channels, height, width = problem.input_size
    grads = pixels_of(grad_output)
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
            _correlate(launch, grads, taps, grad_input, windows, places, tiles)
    return grad_input.permute(0, 3, 1, 2)


def weight_gradient(
    launch: Launcher, input: Tensor, grad_output: Tensor, problem: Problem, tiles: Sequence[KernelTile] = TILES
) -> Tensor:
    """Return the weight gradient, `problem.weight_size`, channels_last.

    Blocks sum ranges of output pixels in parallel, and the partial sums are added in a fixed order, so that the result
    is deterministic. Partial sums are float32.
    """
    image, grads = pixels_of(input), pixels_of(grad_output)
    samples, outputs, height, width = problem.output_size
    pixels, rows = samples * height * width, math.prod(problem.weight_size[1:])
    tile = min(tiles, key=lambda tile: tile.cost(rows, outputs, least_blocks=0))
    blocks = tile.blocks(rows, outputs)
    wanted = min(2 * BUSY_BLOCKS // math.prod(blocks), pixels // PIXELS_PER_SPLIT, PARTIAL_ELEMENTS // (rows * outputs))
    per_split = -(-pixels // (max(1, wanted) * DEPTH)) * DEPTH
    splits = -(-pixels // per_split)
    partials = input.new_empty(splits, rows, outputs, dtype=torch.float32)
    numbers = (*_output_windows(problem).numbers(image), pixels, per_split, outputs, grads.stride(2))
    steps = (problem.input_size[1], image.stride(2), outputs, grads.stride(2))
    by_four = reads_by_four(steps, (image, grads, partials))
    name = tile.kernel("sum_products", by_four, input.dtype)
    launch(name, (*blocks, splits), (image, grads, partials), numbers)
    # `(O, kernel height, kernel width, C)` in memory, which is the layout of a channels_last parameter.
    total = input.new_empty(outputs, rows, dtype=torch.float32)
    torch.sum(partials, 0, out=total.t())
    return total.to(input.dtype).view(outputs, *problem.kernel, -1).permute(0, 3, 1, 2)


def tiles_for(operation: str, problem: Problem, dtype: torch.dtype) -> list[KernelTile]:
    """Return the tiles that the function `operation` of this module selects for a problem, without computing it."""
    names = set[str]()

    def record(name: str, grid: Grid, tensors: Sequence[Argument], numbers: Sequence[int | float]) -> None:
        names.add(name)

    sizes = {
        "input_gradient": (problem.output_size, problem.weight_size),
        "forward": (problem.input_size, problem.weight_size),
    }
    first, second = sizes.get(operation, (problem.input_size, problem.output_size))
    images = torch.empty(first, dtype=dtype, device="meta", memory_format=torch.channels_last)
    other = torch.empty(second, dtype=dtype, device="meta", memory_format=torch.channels_last)
    {"forward": forward, "input_gradient": input_gradient, "weight_gradient": weight_gradient}[operation](
        record, images, other, problem
    )
    return [tile for tile in TILES if any(f"_{tile.rows}x{tile.columns}_" in name for name in names)]


def _correlate(
    launch: Launcher,
    image: Tensor,
    matrix: Tensor,
    result: Tensor,
    windows: _Windows,
    places: tuple[int, ...],
    tiles: Sequence[KernelTile],
) -> None:
    """Write the products of the windows of `image` and the contiguous `matrix` to places of the contiguous `result`.

    The matrix is `(tap rows, tap columns, C, columns)`. `windows` has one window per place; `places` are row step,
    first row, column step and first column of the places.
    """
    samples, height, width, columns = result.shape
    rows = samples * windows.place_rows * windows.place_columns
    tile = min(tiles, key=lambda tile: tile.cost(rows, columns, BUSY_BLOCKS))
    by_four = reads_by_four((image.size(3), image.stride(2), columns), (image, matrix, result))
    numbers = (*windows.numbers(image), height, width, *places, rows, columns)
    name = tile.kernel("correlate", by_four, image.dtype)
    launch(name, (*tile.blocks(rows, columns), 1), (image, matrix, result), numbers)


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
