"""Input, output and weight transforms of `winograd`, on scratch memory that all tiles reuse.

Along one axis, F(4, 3) maps six pixels and three taps to four outputs through six transformed values, the values of
polynomials at the interpolation points 0, A, -A, 1/A, -1/A and infinity. The points determine the accuracy in float32:
with the usual 0, 1, -1, 2, -2 the largest error of an output was 8e-6 of the largest output, with A = 2/3 it was 3e-6,
with oneDNN's convolution 2e-6 (see Barabasz et al., Error Analysis and Improving the Accuracy of Winograd Convolution
for Deep Neural Networks, ACM TOMS 2020, arXiv 1803.10986). Scales of the transformed values can be moved between the
transforms; the scales used here make most factors equal to 1.
"""

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import product
from math import prod

import torch
from torch import Tensor

from yolo_lightning.conv.algorithms.problem import Problem
from yolo_lightning.conv.algorithms.shared import Scratch, overlap

OUTPUTS = 4
"""Outputs of a patch along one axis."""
PATCH = OUTPUTS + 2
"""Pixels of a patch, and its transformed values, along one axis."""
PATCH_VALUES = PATCH * PATCH
"""Transformed values of a patch per channel."""

_A = 2 / 3
_B = 1 / _A

_Step = Callable[[], Tensor]
_Spare = Callable[..., Tensor]
"""Function that returns scratch memory of a shape."""


def _evaluation() -> list[list[float]]:
    """Return the weight transform along one axis, `(6, 3)`."""
    rows = [[1.0, 0.0, 0.0]]
    # The value of the kernel polynomial at each point, divided by the product of the distances to the other points,
    # times a scale that `_output_steps` reverses.
    for point, scale in ((_A, _A), (-_A, -_A), (_B, _B**2), (-_B, _B**2)):
        weight = scale / (2 * point**2 * (point**2 - point**-2))
        rows.append([weight, weight * point, weight * point**2])
    return [*rows, [0.0, 0.0, 1.0]]


KERNEL_TRANSFORM = [
    [by_row * by_column for by_row in row for by_column in column] for row, column in product(_evaluation(), repeat=2)
]
"""Weight transform for both axes, `(36, 9)`."""


class Workspace:
    """Transforms of tiles of one shape, as prepared steps on scratch memory.

    `shape` is the number of samples, rows and columns of patches in a tile, `width` the number of columns of an image.
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
        self._patches = patches.view(PATCH_VALUES, -1, channels)
        spare = partial(scratch, "spare")
        self._input_steps = [
            *_input_steps(self._band.unfold(1, PATCH, OUTPUTS).unbind(-1), half.unbind(), spare),
            *_input_steps(half.unfold(3, PATCH, OUTPUTS).unbind(-1), patches.unbind(1), spare),
        ]

    def clear_borders(self) -> None:
        """Zero the columns outside the image; other workspaces may have written to the shared memory."""
        for border in self._borders:
            if border.numel():
                border.zero_()

    def transform_input(self, images: Tensor, first_row: int) -> Tensor:
        """Return the transformed input `(36, patches, C)`; the next call overwrites the tensor.

        `images (count, height, width, C)` are the samples of the tile; its first output row is a multiple of 4.
        """
        height = self._band.size(1)
        rows, source_rows = overlap(first_row - self._top, 1, height, images.size(1))
        if rows.start > 0:
            self._band[:, : rows.start].zero_()
        if rows.stop < height:
            self._band[:, rows.stop :].zero_()
        self._band[:, rows, self._columns].copy_(images[:, source_rows, self._source_columns])
        _run(self._input_steps)
        return self._patches

    @cached_property
    def products(self) -> Tensor:
        """Buffer for the products, `(36, patches, O)`; `transform_output` reads and overwrites it."""
        return self._scratch("products", PATCH_VALUES, prod(self._shape), self._outputs)

    @cached_property
    def _output_transform(self) -> tuple[list[_Step], tuple[Tensor, ...]]:
        """Steps of `transform_output` along rows, and their results."""
        with torch.inference_mode(False):  # a view created in inference mode cannot be written in training
            half = self._scratch("collected", OUTPUTS, PATCH, *self._shape, self._outputs)
            products = self.products.view(PATCH, PATCH, *self._shape, self._outputs)
            return _output_steps(products.unbind(), half.unbind(), partial(self._scratch, "spare")), half.unbind(1)

    def transform_output(self, target: Tensor) -> None:
        """Write the outputs of the products to `target (count, <= 4 * rows, <= 4 * columns, O)`."""
        count, rows, columns = self._shape
        whole = target.shape[1:3] == (OUTPUTS * rows, OUTPUTS * columns)
        pixels = target if whole else target.new_empty(count, OUTPUTS * rows, OUTPUTS * columns, self._outputs)
        squares = pixels.view(count, rows, OUTPUTS, columns, OUTPUTS, self._outputs).movedim(2, 0)
        along_rows, half = self._output_transform
        _run(along_rows)
        _run(_output_steps(half, squares.unbind(4), partial(self._scratch, "spare")))
        if not whole:
            target.copy_(pixels[:, : target.size(1), : target.size(2)])

    @cached_property
    def _output_gradient_transform(self) -> tuple[tuple[Tensor, ...], list[_Step], Tensor]:
        """Results of `transform_output_gradient` along rows, the steps along columns, and their result."""
        count, rows, columns = self._shape
        with torch.inference_mode(False):
            half = self._scratch("scattered", PATCH, count, rows, columns, OUTPUTS, self._outputs)
            result = self._scratch("spread", PATCH, PATCH, *self._shape, self._outputs)
            steps = _output_gradient_steps(half.unbind(4), result.unbind(1), partial(self._scratch, "spare"))
            return half.flatten(3, 4).unbind(), steps, result.view(PATCH_VALUES, -1, self._outputs)

    def transform_output_gradient(self, grads: Tensor) -> Tensor:
        """Return the adjoint of `transform_output`, `(36, patches, O)`; `grads` has the shape of its target."""
        count, rows, columns = self._shape
        if grads.shape[1:3] != (OUTPUTS * rows, OUTPUTS * columns):
            padded = grads.new_zeros(count, OUTPUTS * rows, OUTPUTS * columns, self._outputs)
            padded[:, : grads.size(1), : grads.size(2)] = grads
            grads = padded
        half, along_columns, result = self._output_gradient_transform
        spare = partial(self._scratch, "spare")
        _run(_output_gradient_steps(grads.unfold(1, OUTPUTS, OUTPUTS).unbind(-1), half, spare))
        _run(along_columns)
        return result


def _run(steps: Sequence[_Step]) -> None:
    for step in steps:
        step()


def _add(first: Tensor, factor: float, second: Tensor, into: Tensor) -> _Step:
    """Return a step that computes `into = first + factor * second`."""
    return partial(torch.add, first, second, alpha=factor, out=into)


def _input_steps(pixels: Sequence[Tensor], into: Sequence[Tensor], spare_of: _Spare) -> list[_Step]:
    """Return the steps from six adjacent pixels to six transformed values."""
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


def _output_steps(numbers: Sequence[Tensor], into: Sequence[Tensor], spare_of: _Spare) -> list[_Step]:
    """Return the steps from six products, which are overwritten, to four outputs."""
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


def _output_gradient_steps(grads: Sequence[Tensor], into: Sequence[Tensor], spare_of: _Spare) -> list[_Step]:
    """Return the adjoint of `_output_steps`: the steps from four output gradients to the gradients of six products."""
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
