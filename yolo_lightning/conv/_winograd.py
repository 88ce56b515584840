"""Winograd's minimal filtering F(2x2, 3x3) for channels_last tensors: 16 multiplications instead of 36 for 4 outputs.

Lavin, Gray: Fast Algorithms for Convolutional Neural Networks (CVPR 2016, arXiv 1509.09308), section 4.1; the gradient
for the weight is the adjoint of the forward pass. Stride 1, no dilation, one group, float32 and float64: the transforms
only add, subtract and halve, so float32 stays as accurate as with plain products, but half types would not.

Every 4x4 patch of the padded input, two pixels from the next, becomes 16 numbers per channel. Number by number, the
patches of some rows are multiplied with the transformed weight, and each 16 products give 2x2 outputs. The numbers of a
few rows at a time stay in the cache of a CPU between the transforms and the products.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from yolo_lightning.conv._arguments import Problem
from yolo_lightning.conv._shared import items_per_tile
from yolo_lightning.conv._tiles import Tile, overlap, tiles

NUMBERS = 16
"""Transformed numbers of a patch, per channel."""


def accepts(problem: Problem) -> bool:
    """Whether the problem has the one form that this algorithm is made for."""
    return problem.kernel == (3, 3) and problem.stride == problem.dilation == (1, 1) and problem.groups == 1


def forward(input: Tensor, weight: Tensor, problem: Problem) -> Tensor:
    """The output, `problem.output_size`."""
    samples, outputs, height, width = problem.output_size
    by_tap = weight.permute(2, 3, 1, 0).reshape(9, -1)
    matrices = (_weight_transform(weight) @ by_tap).view(NUMBERS, -1, outputs)
    output = input.new_empty(samples, height, width, outputs)
    scratch = _Scratch(input)
    for tile, patches in _transformed_patches(input, problem, scratch):
        products = scratch.take("products", *patches.shape[:-1], outputs)
        torch.bmm(_by_number(patches), matrices, out=_by_number(products))
        _write_outputs(products, output[_pixel_rows(tile)], scratch)
    return output.permute(0, 3, 1, 2)


def weight_gradient(input: Tensor, grad_output: Tensor, problem: Problem) -> Tensor:
    """The gradient for the weight, `problem.weight_size`."""
    outputs, channels, _, _ = problem.weight_size
    grads = grad_output.permute(0, 2, 3, 1)
    total = input.new_zeros(NUMBERS, channels, outputs)
    scratch = _Scratch(input)
    for tile, patches in _transformed_patches(input, problem, scratch):
        spread = scratch.take("spread", *patches.shape[:-1], outputs)
        _spread_gradients(grads[_pixel_rows(tile)], spread, scratch)
        total.baddbmm_(_by_number(patches).transpose(1, 2), _by_number(spread))
    by_tap = _weight_transform(input).t() @ total.view(NUMBERS, -1)
    return by_tap.view(3, 3, channels, outputs).permute(3, 2, 0, 1).contiguous()


class _Scratch:
    """Memory that every tile uses again, by name."""

    def __init__(self, like: Tensor) -> None:
        self.like = like
        self.buffers: dict[str, Tensor] = {}

    def take(self, name: str, *shape: int) -> Tensor:
        """A dense tensor whose content is what was last written there."""
        elements = math.prod(shape)
        buffer = self.buffers.get(name)
        if buffer is None or buffer.numel() < elements:
            self.buffers[name] = buffer = self.like.new_empty(elements)
        return buffer[:elements].view(shape)


def _weight_transform(like: Tensor) -> Tensor:
    """`(16, 9)`: from the taps of a kernel to the numbers that meet those of a patch, for both axes at once."""
    axis = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0.0, 0.0, 1.0]])
    return torch.kron(axis, axis).to(like)


def _by_number(transformed: Tensor) -> Tensor:
    """`(4, 4, n, rows, columns, C)` as 16 matrices `(16, patches, C)`."""
    return transformed.view(NUMBERS, -1, transformed.size(-1))


def _pixel_rows(tile: Tile) -> tuple[slice, slice]:
    """The output rows that a tile of patch rows gives."""
    return tile.samples, slice(2 * tile.rows.start, 2 * tile.rows.stop)


def _transformed_patches(input: Tensor, problem: Problem, scratch: _Scratch) -> Iterator[tuple[Tile, Tensor]]:
    """Yield tiles of patch rows with their numbers `(4, 4, n, rows, columns, C)`; the next overwrites them."""
    images = input.permute(0, 2, 3, 1)
    top, _, left, _ = problem.padding
    samples, channels, height, width = problem.input_size
    patch_rows, columns = ((size + 1) // 2 for size in problem.output_size[2:])
    inside_columns, source_columns = overlap(-left, 1, 2 * columns + 2, width)
    step = items_per_tile(NUMBERS * columns * channels // 2, samples * patch_rows, input.device)
    for tile in tiles(samples, patch_rows, step):
        part = images[tile.samples]
        count, rows = part.size(0), tile.rows.stop - tile.rows.start
        band = scratch.take("band", count, 2 * rows + 2, 2 * columns + 2, channels)
        inside_rows, source_rows = overlap(2 * tile.rows.start - top, 1, 2 * rows + 2, height)
        band[:, : inside_rows.start].zero_()
        band[:, inside_rows.stop :].zero_()
        band[:, inside_rows, : inside_columns.start].zero_()
        band[:, inside_rows, inside_columns.stop :].zero_()
        band[:, inside_rows, inside_columns].copy_(part[:, source_rows, source_columns])
        half = scratch.take("half", 4, count, rows, 2 * columns + 2, channels)
        patches = scratch.take("patches", 4, 4, count, rows, columns, channels)
        _transform(*(band[:, start : start + 2 * rows : 2] for start in range(4)), into=half)
        _transform(
            *(half[:, :, :, start : start + 2 * columns : 2] for start in range(4)), into=patches.transpose(0, 1)
        )
        yield tile, patches


def _transform(first: Tensor, second: Tensor, third: Tensor, fourth: Tensor, *, into: Tensor) -> None:
    """The four numbers of four neighbouring pixels."""
    torch.sub(first, third, out=into[0])
    torch.add(second, third, out=into[1])
    torch.sub(third, second, out=into[2])
    torch.sub(second, fourth, out=into[3])


def _collect(numbers: Tensor, into: Tensor) -> None:
    """The two outputs of four products."""
    torch.add(numbers[1], numbers[2], out=into[0]).add_(numbers[0])
    torch.sub(numbers[1], numbers[2], out=into[1]).sub_(numbers[3])


def _spread(first: Tensor, second: Tensor, into: Tensor) -> None:
    """The adjoint of `_collect`: what two output gradients give to each of the four products."""
    into[0].copy_(first)
    torch.add(first, second, out=into[1])
    torch.sub(first, second, out=into[2])
    torch.neg(second, out=into[3])


def _write_outputs(products: Tensor, target: Tensor, scratch: _Scratch) -> None:
    """Turn products `(4, 4, n, rows, columns, O)` into output pixels `(n, up to 2 * rows, up to 2 * columns, O)`."""
    _, _, count, rows, columns, outputs = products.shape
    half = scratch.take("half outputs", 2, 4, count, rows, columns, outputs)
    _collect(products, into=half)
    whole = target.shape[1:3] == (2 * rows, 2 * columns)
    pixels = target if whole else scratch.take("outputs", count, 2 * rows, 2 * columns, outputs)
    quads = pixels.view(count, rows, 2, columns, 2, outputs).permute(4, 2, 0, 1, 3, 5)
    _collect(half.transpose(0, 1), into=quads)
    if not whole:
        target.copy_(pixels[:, : target.size(1), : target.size(2)])


def _spread_gradients(grads: Tensor, spread: Tensor, scratch: _Scratch) -> None:
    """Turn output gradients, shaped as the target of `_write_outputs`, into `spread (4, 4, n, rows, columns, O)`."""
    _, _, count, rows, columns, outputs = spread.shape
    if grads.shape[1:3] != (2 * rows, 2 * columns):
        padded = scratch.take("padded", count, 2 * rows, 2 * columns, outputs).zero_()
        padded[:, : grads.size(1), : grads.size(2)] = grads
        grads = padded
    half = scratch.take("half spread", 4, count, rows, 2 * columns, outputs)
    _spread(grads[:, 0::2], grads[:, 1::2], into=half)
    _spread(half[:, :, :, 0::2], half[:, :, :, 1::2], into=spread.transpose(0, 1))
