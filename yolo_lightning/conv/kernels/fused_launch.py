"""Launches of the kernels in fused.cu for a convolution: kernel name, tile size, windows and grid.

The device depends on the `Launcher` only; the tests use an emulation on the CPU.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from yolo_lightning.conv.algorithms.algorithm import Operation, operands_of
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
"""Terms of each sum in shared memory at once, except for some tiles; equal to DEPTH in fused.cu."""

PROCESSORS = 18
"""Workgroup processors of an RX 5600 XT, each with 128 multiply-adds and 256 bytes of shared memory in a clock cycle.

The value, and therefore the order of the sums, is equal on every device.
"""
BYTES_PER_CLOCK = 184
"""Bytes that an RX 5600 XT reads or writes in global memory in a clock cycle of its processors."""
# Largest number of blocks of a weight gradient for each processor.
MOST_ROUNDS = 20
# Minimum number of output pixels per block of the weight gradient.
PIXELS_PER_SPLIT = 256
# Largest number of sums that one block adds without groups; more would take longer than two levels.
SPLITS_PER_GROUP = 16


class KernelTile(NamedTuple):
    """Part of a result that one block computes; each thread computes `rows_each` x `columns_each` elements.

    Several threads compute the same elements if there are `groups`, each for other terms of the sums.
    """

    rows: int
    columns: int
    rows_each: int
    columns_each: int = 4
    groups: int = 1
    depth: int = DEPTH  # terms of each sum in shared memory at once
    is_winograd: bool = False  # in winograd.cu

    def kernel(self, product: str, by_four: bool, dtype: torch.dtype = torch.float32) -> str:
        """Return the name of the kernel for `correlate` or `sum_products`; `by_four` selects aligned vector loads."""
        width = ""
        if not self.is_winograd:
            width = "_by_four" if by_four else "_by_one"
        return f"{product}_{self.kind}{width}{ELEMENTS[dtype].suffix}"

    @property
    def kind(self) -> str:
        """Part of the kernel name that tells the tiles of a product apart."""
        return "winograd" if self.is_winograd else f"{self.rows}x{self.columns}"

    def blocks(self, rows: int, columns: int) -> tuple[int, int]:
        """Return the number of tiles along the rows and columns of a result."""
        return -(-rows // self.rows), -(-columns // self.columns)

    def clocks(self, product: str, blocks: int, terms: int) -> float:
        """Return the modelled clock cycles of a launch on the processors of an RX 5600 XT, without traffic.

        A processor executes its blocks together, at the rate of the vector instructions or of the shared memory,
        whichever is slower (numbers of instructions: scripts/kernel_report.py). The beginning and the end of a block
        take as long as one iteration.

        Args:
            product: "correlate" or "sum_products".
            blocks: Blocks of the launch.
            terms: Channels times taps, or pixels; for Winograd's algorithm channels, or patches.
        """
        fetches = self.rows * self.depth // (4 * THREADS)
        factors = self.rows + self.columns
        if self.is_winograd:
            overhead = 115
            factors = 2 * 16 * 32
        elif product == "correlate":
            overhead = 38 + 13 * fetches
        else:
            overhead = 9 + 35 * fetches
        vector = self.depth // self.groups * self.rows_each * self.columns_each + overhead
        shared = self.depth * 4 * (THREADS // self.groups * (self.rows_each + self.columns_each) + factors)
        iteration = max(vector * THREADS / 128, shared / 256)
        return -(-blocks // PROCESSORS) * (-(-terms // self.depth) + 1) * iteration


TILES = (
    KernelTile(128, 64, 8),
    KernelTile(256, 32, 8),
    KernelTile(64, 64, 4),
    KernelTile(128, 32, 4),
    KernelTile(256, 16, 4),
)
WINOGRAD_DEPTH = 8
"""Channels or patches in shared memory at once; equal to DEPTH_EACH in winograd.cu."""
WINOGRAD = KernelTile(128, 32, 8, 8, depth=WINOGRAD_DEPTH, is_winograd=True)
"""32 patches of 2 x 2 results, and 32 columns."""
WINOGRAD_SUMS = KernelTile(288, 32, 8, 8, depth=WINOGRAD_DEPTH, is_winograd=True)
"""Nine taps of 32 channels, and 32 columns."""
CORRELATE_TILES = (*TILES, WINOGRAD)
# Sums over all pixels have small results, down to 9 x 16.
SUM_TILES = (
    KernelTile(128, 64, 8),
    KernelTile(64, 64, 4),
    KernelTile(32, 32, 4, groups=4, depth=32),
    KernelTile(16, 16, 4, groups=16, depth=64),
    WINOGRAD_SUMS,
)


def instances() -> dict[str, str]:
    """Return the C++ line that defines each kernel, by kernel name."""
    lines = {}
    for dtype, element in ELEMENTS.items():
        for product, tiles in (("correlate", CORRELATE_TILES), ("sum_products", SUM_TILES)):
            for tile in tiles:
                for by_four in (True, False):
                    name = tile.kernel(product, by_four, dtype)
                    lines[name] = _definition(tile, product, by_four, name, element.cpp_type)
    return lines


def _definition(tile: KernelTile, product: str, by_four: bool, name: str, cpp_type: str) -> str:
    """Return the C++ line that defines the kernel `name`."""
    if tile.is_winograd:
        return f"{product}_winograd".upper() + f"({name}, {cpp_type})"
    arguments = [name, cpp_type, tile.rows, tile.columns, tile.rows_each]
    if product == "sum_products":
        arguments += [tile.groups, tile.depth]
    arguments.append(str(by_four).lower())
    return f"{product.upper()}({', '.join(map(str, arguments))})"


def forward(
    launch: Launcher, input: Tensor, weight: Tensor, problem: Problem, tiles: Sequence[KernelTile] = CORRELATE_TILES
) -> Tensor:
    output = empty_images(input, problem.output_size)
    _correlate(launch, input, weight, output, problem, tiles, is_gradient=False)
    return output


def input_gradient(
    launch: Launcher,
    grad_output: Tensor,
    weight: Tensor,
    problem: Problem,
    tiles: Sequence[KernelTile] = CORRELATE_TILES,
) -> Tensor:
    """Return the input gradient, `problem.input_size`, channels_last.

    The input positions of one remainder modulo the stride are read by evenly spaced taps; their gradient is a
    convolution of the output gradient with stride 1. One launch computes all remainders.
    """
    grad_input = empty_images(grad_output, problem.input_size)
    _correlate(launch, grad_output, weight, grad_input, problem, tiles, is_gradient=True)
    return grad_input


def weight_gradient(
    launch: Launcher,
    input: Tensor,
    grad_output: Tensor,
    problem: Problem,
    tiles: Sequence[KernelTile] = SUM_TILES,
) -> Tensor:
    """Return the weight gradient, `problem.weight_size`, channels_last, which is the layout of the parameter.

    Blocks sum ranges of output pixels (splits) in parallel, in float32. The last block of a group of splits adds the
    sums of the group, and the last of these blocks the sums of the groups, in a fixed order, so that the result is
    deterministic.
    """
    image = evenly_spaced(input)
    grads = evenly_spaced(grad_output)
    samples, outputs, height, width = problem.output_size
    channels = problem.input_size[1]
    pixels = samples * height * width
    rows = math.prod(problem.weight_size[1:])
    result = empty_images(input, problem.weight_size)
    patches = samples * -(-height // 2) * -(-width // 2)
    tile, terms, per_split = _split(_allowed(tiles, problem), rows, outputs, pixels, patches, PIXELS_PER_SPLIT)
    blocks = tile.blocks(rows, outputs)
    splits = -(-terms // per_split)
    per_group = splits
    if splits > SPLITS_PER_GROUP:
        per_group = math.isqrt(splits - 1) + 1
    elements = splits * math.prod(blocks) * tile.rows * tile.columns if splits > 1 else 0
    partials = input.new_empty(elements, dtype=torch.float32)
    counts = counters(input, 2 * math.prod(blocks) * splits)
    # fmt: off
    numbers = (
        *problem.input_size[2:], channels, image.stride(3), height, width,
        problem.stride[0], -problem.padding[0], problem.dilation[0],
        problem.stride[1], -problem.padding[2], problem.dilation[1],
        *problem.kernel, terms, per_split, per_group, outputs, grads.stride(3),
    )
    # fmt: on
    by_four = reads_by_four((channels, image.stride(3), outputs, grads.stride(3)), (image, grads, result))
    name = tile.kernel("sum_products", by_four, input.dtype)
    launch(name, (*blocks, splits), Operands((image, grads), (result,), partials, counts), numbers)
    return result


@lru_cache(maxsize=1024)
def _split(
    tiles: tuple[KernelTile, ...], rows: int, columns: int, pixels: int, patches: int, least_pixels: int
) -> tuple[KernelTile, int, int]:
    """Return the fastest tile for a weight gradient, the number of its terms, and the terms of a split."""
    costs = {}
    for tile in tiles:
        terms = pixels
        least_terms = least_pixels
        if tile.is_winograd:
            terms = patches
            least_terms = least_pixels // 4
        blocks = math.prod(tile.blocks(rows, columns))
        for most_splits in {rounds * PROCESSORS // blocks for rounds in range(1, MOST_ROUNDS + 1)}:
            per_split = -(-terms // (max(1, min(most_splits, terms // least_terms)) * tile.depth)) * tile.depth
            splits = -(-terms // per_split)
            partials = 2 * 4 * splits * blocks * tile.rows * tile.columns if splits > 1 else 0
            clocks = tile.clocks("sum_products", blocks * splits, per_split)
            costs[tile, terms, per_split] = (clocks, partials / BYTES_PER_CLOCK)
    return min(costs, key=lambda choice: (max(costs[choice]), sum(costs[choice])))


PRODUCTS: dict[Operation, Callable[..., Tensor]] = {
    Operation.FORWARD: forward,
    Operation.INPUT_GRADIENT: input_gradient,
    Operation.WEIGHT_GRADIENT: weight_gradient,
}


def tiles_for(operation: Operation, problem: Problem, dtype: torch.dtype) -> list[KernelTile]:
    """Return the tiles that the function `operation` of this module selects for a problem, without computing it."""
    record = LaunchRecorder()
    sizes = operands_of(operation, problem.input_size, problem.output_size, problem.weight_size)
    meta = (torch.empty(size, dtype=dtype, device="meta", memory_format=torch.channels_last) for size in sizes)
    PRODUCTS[operation](record, *meta, problem)
    return [tile_of(launch.name) for launch in record.launches]


def tile_of(kernel: str) -> KernelTile:
    """Return the tile of a kernel of `instances`."""
    tiles = CORRELATE_TILES if kernel.startswith("correlate") else SUM_TILES
    return next(tile for tile in tiles if tile.kind in kernel.split("_"))


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
    channels = images.size(1)
    pixel_step = images.stride(3)
    # The offsets in winograd.cu are 32-bit, in bytes.
    elements = max(samples * math.prod(images.shape[2:]) * pixel_step, weight.size(0) * weight.stride(0))
    is_small = max(elements, weight.size(1) * weight.stride(1)) * images.element_size() < 1 << 31
    allowed = _allowed(tiles, problem, is_small and channels % WINOGRAD_DEPTH == 0)
    tile = _fastest(allowed, rows, columns, math.prod(remainders), channels, math.prod(problem.kernel))
    if tile.is_winograd:
        rows = samples * -(-height // 2) * -(-width // 2) * 4
    output_step, input_step, *tap_steps = weight.stride()
    channel_steps = (input_step, output_step) if is_gradient else (output_step, input_step)
    # fmt: off
    numbers = (
        samples, *images.shape[2:], channels, pixel_step, height, width, columns,
        problem.stride[0], problem.padding[0], problem.dilation[0], problem.kernel[0],
        problem.stride[1], problem.padding[2], problem.dilation[1], problem.kernel[1],
        *channel_steps, *tap_steps, is_gradient,
    )
    # fmt: on
    by_four = reads_by_four((channels, pixel_step, columns), (images, result))
    name = tile.kernel("correlate", by_four, images.dtype)
    grid = (*tile.blocks(rows, columns), math.prod(remainders))
    launch(name, grid, Operands((images, weight), (result,)), numbers)


@lru_cache(maxsize=1024)
def _fastest(
    tiles: tuple[KernelTile, ...], rows: int, columns: int, remainders: int, channels: int, taps: int
) -> KernelTile:
    """Return the fastest tile for a convolution or an input gradient."""

    def clocks(tile: KernelTile) -> float:
        terms = channels
        if not tile.is_winograd:
            terms = channels * taps // remainders
        return tile.clocks("correlate", math.prod(tile.blocks(rows, columns)) * remainders, terms)

    return min(tiles, key=clocks)


def _allowed(tiles: Sequence[KernelTile], problem: Problem, winograd: bool = True) -> tuple[KernelTile, ...]:
    """Return the tiles that can compute a problem, those of Winograd's algorithm if `winograd`."""
    winograd = winograd and (problem.kernel, problem.stride, problem.dilation) == ((3, 3), (1, 1), (1, 1))
    return tuple(tile for tile in tiles if winograd or not tile.is_winograd)
