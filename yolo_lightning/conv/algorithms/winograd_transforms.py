"""The transforms of `_winograd` between pixels and numbers, on scratch memory that every tile uses again.

Along one axis, six pixels and three taps give four outputs by way of six numbers: the values of polynomials at the
points 0, A, -A, 1/A, -1/A and infinity. In float32 the choice of the points decides: with the usual 0, 1, -1, 2 and -2
an output was off by up to 8e-6 of the largest one, with A = 2/3 by up to 3e-6, by oneDNN's convolution up to 2e-6 (see
Barabasz et al., Error Analysis and Improving the Accuracy of Winograd Convolution for Deep Neural
Networks, ACM TOMS 2020, arXiv 1803.10986). A number may be scaled before the products where that is undone behind
them; the scales here are those that let most factors become 1.
"""

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import product
from math import prod

import torch
from torch import Tensor

from yolo_lightning.conv.algorithms.problem import Problem
from yolo_lightning.conv.algorithms.scratch import Scratch
from yolo_lightning.conv.algorithms.tiles import overlap

OUTPUTS = 4
"""Outputs of a patch along one axis."""
PATCH = OUTPUTS + 2
"""Pixels of a patch along one axis, and the numbers that it becomes."""
NUMBERS = PATCH * PATCH
"""Transformed numbers of a patch, per channel."""

_A = 2 / 3
_B = 1 / _A

_Step = Callable[[], Tensor]
_Spare = Callable[..., Tensor]
"""Gives scratch memory of a shape."""


def _evaluation() -> list[list[float]]:
    """From the three taps of a kernel along one axis to the six numbers that meet those of the pixels."""
    rows = [[1.0, 0.0, 0.0]]
    # The value of the kernel's polynomial at each point, divided by the product of its distances to the other points,
    # times the scale that `_collect_steps` undoes.
    for point, scale in ((_A, _A), (-_A, -_A), (_B, _B**2), (-_B, _B**2)):
        weight = scale / (2 * point**2 * (point**2 - point**-2))
        rows.append([weight, weight * point, weight * point**2])
    return [*rows, [0.0, 0.0, 1.0]]


KERNEL_TRANSFORM = [
    [by_row * by_column for by_row in row for by_column in column] for row, column in product(_evaluation(), repeat=2)
]
"""`(36, 9)`: from the taps of a kernel to the numbers that meet those of a patch, for both axes at once."""


class Workspace:
    """The steps of the transforms on tiles of one shape, and the scratch memory that they work on.

    Args:
        scratch: Gives the memory.
        shape: Samples, rows and columns of patches.
        width: Columns of the images.
        channels: Of the images.
        problem: The convolution.
    """

    def __init__(
        self, scratch: Scratch, shape: tuple[int, int, int], width: int, channels: int, problem: Problem
    ) -> None:
        count, rows, columns = self._shape = shape
        self._scratch, self._outputs = scratch, problem.output_size[1]
        top, _, left, _ = problem.padding
        self._top = top
        band_height, band_width = OUTPUTS * rows + 2, OUTPUTS * columns + 2
        self._columns, self._source_columns = overlap(-left, 1, band_width, width)
        self._band = scratch("band", count, band_height, band_width, channels)
        self._borders = [self._band[:, :, : self._columns.start], self._band[:, :, self._columns.stop :]]
        half = scratch("half", PATCH, count, rows, band_width, channels)
        patches = scratch("patches", PATCH, PATCH, *shape, channels)
        self._patches = patches.view(NUMBERS, -1, channels)
        self._transposed = self._patches.transpose(1, 2)
        spare = partial(scratch, "spare")
        self._transform_steps = [
            *_transform_steps(self._band.unfold(1, PATCH, OUTPUTS).unbind(-1), half.unbind(), spare),
            *_transform_steps(half.unfold(3, PATCH, OUTPUTS).unbind(-1), patches.unbind(1), spare),
        ]

    def clear_borders(self) -> None:
        """Zero the columns outside the image, which no transform writes; others have used the memory meanwhile."""
        for border in self._borders:
            if border.numel():
                border.zero_()

    def transform(self, images: Tensor, first_row: int) -> Tensor:
        """The numbers `(36, patches, C)` of the patches from output row `first_row` on; the next call overwrites them.

        Args:
            images: `(count, height, width, C)`, the samples of the tile.
            first_row: Multiple of 4.
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
        """`(36, patches, O)`, to be written before `collect`, which overwrites them."""
        return self._scratch("products", NUMBERS, prod(self._shape), self._outputs)

    @cached_property
    def _collected(self) -> tuple[list[_Step], tuple[Tensor, ...]]:
        """The steps of `collect` along rows, and what they leave for those along columns."""
        with torch.inference_mode(False):  # a view made in it could not be written to in training
            return self._prepare_collected()

    def _prepare_collected(self) -> tuple[list[_Step], tuple[Tensor, ...]]:
        half = self._scratch("collected", OUTPUTS, PATCH, *self._shape, self._outputs)
        numbers = self.products.view(PATCH, PATCH, *self._shape, self._outputs)
        return _collect_steps(numbers.unbind(), half.unbind(), partial(self._scratch, "spare")), half.unbind(1)

    def collect(self, target: Tensor) -> None:
        """Turn the products into output pixels: `target (count, up to 4 * rows, up to 4 * columns, O)`."""
        count, rows, columns = self._shape
        whole = target.shape[1:3] == (OUTPUTS * rows, OUTPUTS * columns)
        pixels = target if whole else target.new_empty(count, OUTPUTS * rows, OUTPUTS * columns, self._outputs)
        squares = pixels.view(count, rows, OUTPUTS, columns, OUTPUTS, self._outputs).movedim(2, 0)
        along_rows, half = self._collected
        _run(along_rows)
        _run(_collect_steps(half, squares.unbind(4), partial(self._scratch, "spare")))
        if not whole:
            target.copy_(pixels[:, : target.size(1), : target.size(2)])

    @cached_property
    def _spread(self) -> tuple[tuple[Tensor, ...], list[_Step], Tensor]:
        """Where `spread` along rows writes, its steps along columns, and their result."""
        with torch.inference_mode(False):
            return self._prepare_spread()

    def _prepare_spread(self) -> tuple[tuple[Tensor, ...], list[_Step], Tensor]:
        count, rows, columns = self._shape
        half = self._scratch("scattered", PATCH, count, rows, columns, OUTPUTS, self._outputs)
        spread = self._scratch("spread", PATCH, PATCH, *self._shape, self._outputs)
        steps = _spread_steps(half.unbind(4), spread.unbind(1), partial(self._scratch, "spare"))
        return half.flatten(3, 4).unbind(), steps, spread.view(NUMBERS, -1, self._outputs)

    def spread(self, grads: Tensor) -> Tensor:
        """The adjoint of `collect`: `(36, patches, O)` from output gradients shaped as its target."""
        count, rows, columns = self._shape
        if grads.shape[1:3] != (OUTPUTS * rows, OUTPUTS * columns):
            padded = grads.new_zeros(count, OUTPUTS * rows, OUTPUTS * columns, self._outputs)
            padded[:, : grads.size(1), : grads.size(2)] = grads
            grads = padded
        half, along_columns, spread = self._spread
        _run(_spread_steps(grads.unfold(1, OUTPUTS, OUTPUTS).unbind(-1), half, partial(self._scratch, "spare")))
        _run(along_columns)
        return spread


def _run(steps: Sequence[_Step]) -> None:
    for step in steps:
        step()


def _add(first: Tensor, factor: float, second: Tensor, into: Tensor) -> _Step:
    """`into` becomes `first + factor * second`."""
    return partial(torch.add, first, second, alpha=factor, out=into)


def _transform_steps(pixels: Sequence[Tensor], into: Sequence[Tensor], spare_of: _Spare) -> list[_Step]:
    """The six numbers of six neighbouring pixels."""
    spare = spare_of(*pixels[0].shape)
    steps = []
    for outer, middle, target in ((0, 2, 0), (1, 3, 5)):
        steps += [
            _add(pixels[outer], 1, pixels[outer + 4], into[target]),
            _add(into[target], -(_A**2 + _B**2), pixels[middle], into[target]),
        ]
    for point, other, target in ((_A, _B, 1), (_B, _A, 3)):
        steps += [
            _add(pixels[4], -(other**2), pixels[2], spare),
            _add(pixels[3], -(other**2), pixels[1], into[target + 1]),
            _add(spare, point, into[target + 1], into[target]),
            _add(spare, -point, into[target + 1], into[target + 1]),
        ]
    return steps


def _collect_steps(numbers: Sequence[Tensor], into: Sequence[Tensor], spare_of: _Spare) -> list[_Step]:
    """The four outputs of six products, which are overwritten."""
    at_zero, first, second, third, fourth, at_infinity = numbers
    spare = spare_of(*at_zero.shape)
    return [
        _add(first, -1, second, spare),
        _add(first, 1, second, first),
        _add(third, 1, fourth, second),
        _add(third, -1, fourth, third),
        _add(at_zero, _B, spare, into[0]),
        _add(into[0], _A**2, second, into[0]),
        _add(first, _A, third, into[1]),
        _add(second, _A, spare, into[2]),
        _add(at_infinity, _A**2, first, into[3]),
        _add(into[3], _B, third, into[3]),
    ]


def _spread_steps(grads: Sequence[Tensor], into: Sequence[Tensor], spare_of: _Spare) -> list[_Step]:
    """The adjoint of `_collect_steps`: what four output gradients give to each of six products."""
    first, second, third, fourth = grads
    spare = spare_of(*first.shape)
    return [
        partial(into[0].copy_, first),
        _add(first, _A**2, third, spare),
        _add(second, _A**2, fourth, into[2]),
        _add(into[2], _B, spare, into[1]),
        _add(into[2], -_B, spare, into[2]),
        _add(third, _A**2, first, spare),
        _add(fourth, _A**2, second, into[4]),
        _add(spare, _B, into[4], into[3]),
        _add(spare, -_B, into[4], into[4]),
        partial(into[5].copy_, fourth),
    ]
