"""The transforms of `_winograd` between pixels and numbers, on scratch memory that every tile uses again."""

from collections.abc import Callable, Sequence
from functools import cached_property
from math import prod

import torch
from torch import Tensor

from yolo_lightning.conv._arguments import Problem
from yolo_lightning.conv._tiles import overlap

NUMBERS = 16
"""Transformed numbers of a patch, per channel."""

_Step = tuple[Callable[..., Tensor], Tensor, Tensor | float, Tensor]
"""An operator, its operands and where the result goes."""


class Workspace:
    """Scratch memory for tiles of one shape, and the steps of the transforms on it.

    Args:
        images: `(N, height, width, C)` of the dtype and on the device to work with.
        shape: Samples, rows and columns of patches.
        problem: The convolution.
    """

    def __init__(self, images: Tensor, shape: tuple[int, int, int], problem: Problem) -> None:
        count, rows, columns = self._shape = shape
        channels, self._outputs = images.size(3), problem.output_size[1]
        self._like = images
        top, _, left, _ = problem.padding
        self._top = top
        self._columns, self._source_columns = overlap(-left, 1, 2 * columns + 2, images.size(2))
        # Columns outside the image are never written: they stay zero.
        self._band = images.new_zeros(count, 2 * rows + 2, 2 * columns + 2, channels)
        half = images.new_empty(4, count, rows, 2 * columns + 2, channels)
        patches = images.new_empty(4, 4, *shape, channels)
        self._patches = patches.view(NUMBERS, -1, channels)
        self._transform_steps = _transform_steps(
            [self._band[:, start : start + 2 * rows : 2] for start in range(4)], half
        ) + _transform_steps(
            [half[:, :, :, start : start + 2 * columns : 2] for start in range(4)], patches.transpose(0, 1)
        )

    def transform(self, images: Tensor, first_row: int) -> Tensor:
        """The numbers `(16, patches, C)` of the patches from output row `first_row` on; the next call overwrites them.

        Args:
            images: `(count, height, width, C)`, the samples of the tile.
            first_row: Multiple of 2.
        """
        height = self._band.size(1)
        rows, source_rows = overlap(first_row - self._top, 1, height, images.size(1))
        if rows.start > 0:
            self._band[:, : rows.start].zero_()
        if rows.stop < height:
            self._band[:, rows.stop :].zero_()
        self._band[:, rows, self._columns].copy_(images[:, source_rows, self._source_columns])
        _run(self._transform_steps)
        return self._patches

    @cached_property
    def products(self) -> Tensor:
        """`(16, patches, O)`, to be written before `collect`."""
        return self._like.new_empty(NUMBERS, prod(self._shape), self._outputs)

    @cached_property
    def _collected(self) -> tuple[list[_Step], list[Tensor]]:
        """The steps of `collect` along rows, and what they leave for those along columns."""
        half = self._like.new_empty(2, 4, *self._shape, self._outputs)
        numbers = self.products.view(4, 4, *self._shape, self._outputs)
        return _collect_steps(list(numbers), half), list(half.transpose(0, 1))

    def collect(self, target: Tensor) -> None:
        """Turn the products into output pixels: `target (count, up to 2 * rows, up to 2 * columns, O)`."""
        count, rows, columns = self._shape
        whole = target.shape[1:3] == (2 * rows, 2 * columns)
        pixels = target if whole else target.new_empty(count, 2 * rows, 2 * columns, self._outputs)
        quads = pixels.view(count, rows, 2, columns, 2, self._outputs).permute(4, 2, 0, 1, 3, 5)
        along_rows, half = self._collected
        _run(along_rows)
        _run(_collect_steps(half, quads))
        if not whole:
            target.copy_(pixels[:, : target.size(1), : target.size(2)])

    @cached_property
    def _spread(self) -> tuple[Tensor, list[_Step], Tensor]:
        """Where `spread` along rows writes, its steps along columns, and their result."""
        count, rows, columns = self._shape
        half = self._like.new_empty(4, count, rows, 2 * columns, self._outputs)
        spread = self._like.new_empty(4, 4, *self._shape, self._outputs)
        steps = _spread_steps(half[:, :, :, 0::2], half[:, :, :, 1::2], spread.transpose(0, 1))
        return half, steps, spread.view(NUMBERS, -1, self._outputs)

    def spread(self, grads: Tensor) -> Tensor:
        """The adjoint of `collect`: `(16, patches, O)` from output gradients shaped as its target."""
        count, rows, columns = self._shape
        if grads.shape[1:3] != (2 * rows, 2 * columns):
            padded = grads.new_zeros(count, 2 * rows, 2 * columns, self._outputs)
            padded[:, : grads.size(1), : grads.size(2)] = grads
            grads = padded
        half, along_columns, spread = self._spread
        _run(_spread_steps(grads[:, 0::2], grads[:, 1::2], half))
        _run(along_columns)
        return spread


def _run(steps: Sequence[_Step]) -> None:
    for operator, first, second, result in steps:
        operator(first, second, out=result)


def _transform_steps(pixels: Sequence[Tensor], into: Tensor) -> list[_Step]:
    """The four numbers of four neighbouring pixels."""
    first, second, third, fourth = pixels
    return [
        (torch.sub, first, third, into[0]),
        (torch.add, second, third, into[1]),
        (torch.sub, third, second, into[2]),
        (torch.sub, second, fourth, into[3]),
    ]


def _collect_steps(numbers: Sequence[Tensor], into: Tensor) -> list[_Step]:
    """The two outputs of four products."""
    first, second, third, fourth = numbers
    upper, lower = into
    return [
        (torch.add, second, third, upper),
        (torch.add, upper, first, upper),
        (torch.sub, second, third, lower),
        (torch.sub, lower, fourth, lower),
    ]


def _spread_steps(first: Tensor, second: Tensor, into: Tensor) -> list[_Step]:
    """The adjoint of `_collect_steps`: what two output gradients give to each of four products."""
    return [
        (torch.mul, first, 1.0, into[0]),
        (torch.add, first, second, into[1]),
        (torch.sub, first, second, into[2]),
        (torch.mul, second, -1.0, into[3]),
    ]
