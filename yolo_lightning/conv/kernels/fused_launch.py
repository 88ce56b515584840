"""Launches of the kernels in fused.cu for a convolution: kernel name, tile size, windows and grid.

The device depends on the `Launcher` only; the tests use an emulation on the CPU.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from yolo_lightning.conv.algorithms.algorithm import Operation
from yolo_lightning.conv.algorithms.problem import Problem
from yolo_lightning.conv.kernels.launcher import (
    ELEMENTS,
    THREADS,
    Launcher,
    LaunchRecorder,
    Operands,
    counters,
    empty_images,
    evenly_spaced,
    reads_by_four,
)

DEPTH = 16
"""Terms of each sum in shared memory at once; equal to DEPTH in fused.cu."""

PROCESSORS = 18
"""Workgroup processors of an RX 5600 XT, each with 128 multiply-adds and 256 bytes of shared memory in a clock cycle.

The value, and therefore the order of the sums, is equal on every device.
"""
# Blocks of a weight gradient, if it has enough pixels.
MOST_BLOCKS = 320
# Minimum number of output pixels per block of the weight gradient.
PIXELS_PER_SPLIT = 256
# Largest number of sums that one block adds without groups; more would take longer than two levels.
SPLITS_PER_GROUP = 16


class KernelTile(NamedTuple):
    """Part of a result that one block computes; each thread computes `rows_each` x `columns_each` elements."""

    rows: int
    columns: int
    rows_each: int
    columns_each: int = 4

    def kernel(self, product: str, by_four: bool, dtype: torch.dtype = torch.float32) -> str:
        """Return the name of the kernel for `correlate` or `sum_products`; `by_four` selects aligned vector loads."""
        width = "by_four" if by_four else "by_one"
        kind = "winograd" if self == WINOGRAD else f"{self.rows}x{self.columns}_{width}"
        return f"{product}_{kind}{ELEMENTS[dtype].suffix}"

    def blocks(self, rows: int, columns: int) -> tuple[int, int]:
        """Return the number of tiles along the rows and columns of a result."""
        return -(-rows // self.rows), -(-columns // self.columns)

    def clocks(self, product: str, blocks: int, terms: int) -> float:
        """Return the modelled clock cycles of a launch on the processors of an RX 5600 XT, without traffic.

        A processor executes its blocks together, at the rate of the vector instructions or of the shared memory,
        whichever is slower. The beginning and the end of a block take as long as one iteration.

        Args:
            product: "correlate" or "sum_products".
            blocks: Blocks of the launch.
            terms: Terms of each sum of a block.
        """
        depth, terms_each, rows, columns = DEPTH, DEPTH, self.rows, self.columns
        if self == WINOGRAD:
            depth, terms_each, rows, columns = WINOGRAD_CHANNELS, 9 * WINOGRAD_CHANNELS, 16 * 32, 16 * 32
            others = 115
        else:  # of an iteration, counted in docs/kernels.md
            others = 38 + 13 * rows // 64 if product == "correlate" else 9 + 35 * rows // 64
        vector = depth * self.rows_each * self.columns_each + others
        shared = depth * 4 * (THREADS * (self.rows_each + self.columns_each) + rows + columns)
        iteration = max(vector * THREADS / 128, shared / 256)
        return -(-blocks // PROCESSORS) * (-(-terms // terms_each) + 1) * iteration


TILES = (
    KernelTile(128, 64, 8),
    KernelTile(256, 32, 8),
    KernelTile(64, 64, 4),
    KernelTile(128, 32, 4),
    KernelTile(256, 16, 4),
)
WINOGRAD = KernelTile(128, 32, 8, 8)
"""32 patches of 2 x 2 results, and 32 columns, in winograd.cu."""
WINOGRAD_CHANNELS = 8
"""Channels in shared memory at once in winograd.cu, which needs a multiple of them."""


def instances() -> dict[str, str]:
    """Return the C++ line that defines each kernel, by kernel name."""
    lines = {}
    for dtype, element in ELEMENTS.items():
        for product in ("correlate", "sum_products"):
            for tile in TILES:
                for by_four in (True, False):
                    name = tile.kernel(product, by_four, dtype)
                    sizes = f"{tile.rows}, {tile.columns}, {tile.rows_each}, {str(by_four).lower()}"
                    lines[name] = f"{product.upper()}({name}, {element.cpp_type}, {sizes})"
        name = WINOGRAD.kernel("correlate", True, dtype)
        lines[name] = f"CORRELATE_WINOGRAD({name}, {element.cpp_type})"
    return lines


def forward(
    launch: Launcher, input: Tensor, weight: Tensor, problem: Problem, tiles: Sequence[KernelTile] = (*TILES, WINOGRAD)
) -> Tensor:
    output = empty_images(input, problem.output_size)
    _correlate(launch, input, weight, output, problem, tiles, is_gradient=False)
    return output


def input_gradient(
    launch: Launcher,
    grad_output: Tensor,
    weight: Tensor,
    problem: Problem,
    tiles: Sequence[KernelTile] = (*TILES, WINOGRAD),
) -> Tensor:
    """Return the input gradient, `problem.input_size`, channels_last.

    The input positions of one remainder modulo the stride are read by evenly spaced taps; their gradient is a
    convolution of the output gradient with stride 1. One launch computes all remainders.
    """
    grad_input = empty_images(grad_output, problem.input_size)
    _correlate(launch, grad_output, weight, grad_input, problem, tiles, is_gradient=True)
    return grad_input


def weight_gradient(
    launch: Launcher, input: Tensor, grad_output: Tensor, problem: Problem, tiles: Sequence[KernelTile] = TILES
) -> Tensor:
    """Return the weight gradient, `problem.weight_size`, channels_last, which is the layout of the parameter.

    Blocks sum ranges of output pixels (splits) in parallel, in float32. The last block of a group of splits adds the
    sums of the group, and the last of these blocks the sums of the groups, in a fixed order, so that the result is
    deterministic.
    """
    image, grads = evenly_spaced(input), evenly_spaced(grad_output)
    samples, outputs, height, width = problem.output_size
    channels, pixels, rows = problem.input_size[1], samples * height * width, math.prod(problem.weight_size[1:])
    result = empty_images(input, problem.weight_size)

    def split(tile: KernelTile) -> tuple[int, int]:
        """Return the number of splits and the pixels of each."""
        wanted = min(MOST_BLOCKS // math.prod(tile.blocks(rows, outputs)), pixels // PIXELS_PER_SPLIT)
        per_split = -(-pixels // (max(1, wanted) * DEPTH)) * DEPTH
        return -(-pixels // per_split), per_split

    def clocks(tile: KernelTile) -> float:
        splits, per_split = split(tile)
        return tile.clocks("sum_products", splits * math.prod(tile.blocks(rows, outputs)), per_split)

    tile = min(tiles, key=clocks)
    blocks, (splits, per_split) = tile.blocks(rows, outputs), split(tile)
    per_group = splits if splits <= SPLITS_PER_GROUP else math.isqrt(splits - 1) + 1
    patches = splits * math.prod(blocks) * tile.rows * tile.columns if splits > 1 else 0
    partials = input.new_empty(patches, dtype=torch.float32)
    counts = counters(input, 2 * math.prod(blocks) * splits)
    numbers = (
        *(*problem.input_size[2:], channels, image.stride(3), height, width),
        *(problem.stride[0], -problem.padding[0], problem.dilation[0]),
        *(problem.stride[1], -problem.padding[2], problem.dilation[1]),
        *(*problem.kernel, pixels, per_split, per_group, outputs, grads.stride(3)),
    )
    by_four = reads_by_four((channels, image.stride(3), outputs, grads.stride(3)), (image, grads, result))
    name = tile.kernel("sum_products", by_four, input.dtype)
    launch(name, (*blocks, splits), Operands((image, grads), (result,), partials, counts), numbers)
    return result


PRODUCTS: dict[Operation, Callable[..., Tensor]] = {
    Operation.FORWARD: forward,
    Operation.INPUT_GRADIENT: input_gradient,
    Operation.WEIGHT_GRADIENT: weight_gradient,
}


def tiles_for(operation: Operation, problem: Problem, dtype: torch.dtype) -> list[KernelTile]:
    """Return the tiles that the function `operation` of this module selects for a problem, without computing it."""
    record = LaunchRecorder()
    sizes = {
        Operation.INPUT_GRADIENT: (problem.output_size, problem.weight_size),
        Operation.FORWARD: (problem.input_size, problem.weight_size),
    }
    first, second = sizes.get(operation, (problem.input_size, problem.output_size))
    images = torch.empty(first, dtype=dtype, device="meta", memory_format=torch.channels_last)
    other = torch.empty(second, dtype=dtype, device="meta", memory_format=torch.channels_last)
    PRODUCTS[operation](record, images, other, problem)
    return [tile_of(launch.name) for launch in record.launches]


def tile_of(kernel: str) -> KernelTile:
    """Return the tile of a kernel of `instances`."""
    return next((tile for tile in TILES if f"_{tile.rows}x{tile.columns}_" in kernel), WINOGRAD)


def _correlate(
    launch: Launcher,
    images: Tensor,
    weight: Tensor,
    result: Tensor,
    problem: Problem,
    tiles: Sequence[KernelTile],
    *,
    is_gradient: bool,
) -> None:
    """Write a convolution of the input, or the input gradient of an output gradient, to `result`, channels_last."""
    images = evenly_spaced(images)
    samples, columns, height, width = result.shape
    remainders = problem.stride if is_gradient else (1, 1)
    rows = samples * -(-height // remainders[0]) * -(-width // remainders[1])
    channels, pixel_step = images.size(1), images.stride(3)
    terms = channels * math.prod(problem.kernel) // math.prod(remainders)

    def clocks(tile: KernelTile) -> float:
        return tile.clocks("correlate", math.prod((*tile.blocks(rows, columns), *remainders)), terms)

    allowed = [tile for tile in tiles if tile != WINOGRAD or _suits_winograd(problem, images, weight)]
    tile = min(allowed or TILES, key=clocks)
    if tile == WINOGRAD:
        rows = samples * -(-height // 2) * -(-width // 2) * 4
    column_step, channel_step, *tap_steps = weight.stride()
    if is_gradient:
        column_step, channel_step = channel_step, column_step
    numbers = (
        *(samples, *images.shape[2:], channels, pixel_step, height, width, columns),
        *(problem.stride[0], problem.padding[0], problem.dilation[0], problem.kernel[0]),
        *(problem.stride[1], problem.padding[2], problem.dilation[1], problem.kernel[1]),
        *(column_step, channel_step, *tap_steps, is_gradient),
    )
    by_four = reads_by_four((channels, pixel_step, columns), (images, result))
    name = tile.kernel("correlate", by_four, images.dtype)
    grid = (*tile.blocks(rows, columns), math.prod(remainders))
    launch(name, grid, Operands((images, weight), (result,)), numbers)


def _suits_winograd(problem: Problem, images: Tensor, weight: Tensor) -> bool:
    """Return whether winograd.cu can compute a convolution or an input gradient; its offsets are 32-bit, in bytes."""
    samples, channels, height, width = images.shape
    elements = max(
        samples * height * width * images.stride(3), *(weight.size(axis) * weight.stride(axis) for axis in (0, 1))
    )
    return (
        (problem.kernel, problem.stride, problem.dilation) == ((3, 3), (1, 1), (1, 1))
        and channels % WINOGRAD_CHANNELS == 0
        and elements * images.element_size() < 1 << 31
    )
