"""Input, output and weight transforms of `winograd`, on scratch memory that all tiles reuse.

Along one axis, F(4, 3) maps six pixels and three taps to four outputs through six transformed values, the values of
polynomials at the interpolation points 0, A, -A, 1/A, -1/A and infinity. The points determine the accuracy in float32:
with the usual 0, 1, -1, 2, -2 the largest error of an output was 8e-6 of the largest output, with A = 2/3 it was 3e-6,
with oneDNN's convolution 2e-6 (see Barabasz et al., Error Analysis and Improving the Accuracy of Winograd Convolution
for Deep Neural Networks, ACM TOMS 2020, arXiv 1803.10986). Scales of the transformed values can be moved between the
transforms; the scales used here make most factors equal to 1.
"""

from collections.abc import Sequence
from itertools import product
from math import prod

import torch
from torch import Tensor

from yolo_lightning.conv.algorithms.shared import overlap

OUTPUTS = 4
"""Outputs of a patch along one axis."""
PATCH = OUTPUTS + 2
"""Pixels of a patch, and its transformed values, along one axis."""
PATCH_VALUES = PATCH * PATCH
"""Transformed values of a patch per channel."""

_A = 2 / 3
_B = 1 / _A


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


class Scratch:
    """Named buffers that all tiles of a call reuse; their content is undefined."""

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self._buffers: dict[str, Tensor] = {}

    def __call__(self, name: str, *shape: int) -> Tensor:
        size = prod(shape)
        if name not in self._buffers or self._buffers[name].numel() < size:
            self._buffers[name] = self._like.new_empty(size)
        return self._buffers[name][:size].view(shape)


def transform_input(
    images: Tensor, scratch: Scratch, shape: tuple[int, int, int], first_row: int, padding: tuple[int, int]
) -> Tensor:
    """Return the transformed input `(36, patches, C)` of a tile; the next call overwrites the tensor.

    Args:
        images: `(count, height, width, C)`, the samples of the tile.
        scratch: Buffers.
        shape: Number of samples, rows and columns of patches in the tile.
        first_row: First output row of the tile.
        padding: Zeros above and to the left of an image.
    """
    count, rows, columns = shape
    channels = images.size(3)
    height, width = OUTPUTS * rows + 2, OUTPUTS * columns + 2
    band = scratch("band", count, height, width, channels)
    inside, source_rows = overlap(first_row - padding[0], 1, height, images.size(1))
    between, source_columns = overlap(-padding[1], 1, width, images.size(2))
    for border in (band[:, : inside.start], band[:, inside.stop :]):
        border.zero_()
    for border in (band[:, :, : between.start], band[:, :, between.stop :]):
        border.zero_()
    band[:, inside, between].copy_(images[:, source_rows, source_columns])
    half = scratch("half", PATCH, count, rows, width, channels)
    patches = scratch("patches", PATCH, PATCH, *shape, channels)
    _input_along_axis(band.unfold(1, PATCH, OUTPUTS).unbind(-1), half.unbind(), scratch)
    _input_along_axis(half.unfold(3, PATCH, OUTPUTS).unbind(-1), patches.unbind(1), scratch)
    return patches.view(PATCH_VALUES, -1, channels)


def transform_output(products: Tensor, scratch: Scratch, shape: tuple[int, int, int], target: Tensor) -> None:
    """Write the outputs of the products `(36, patches, O)`, which are overwritten.

    `target` is `(count, <= 4 * rows, <= 4 * columns, O)` for a tile with the number of samples, rows and columns of
    patches in `shape`.
    """
    count, rows, columns = shape
    outputs = products.size(2)
    whole = target.shape[1:3] == (OUTPUTS * rows, OUTPUTS * columns)
    pixels = target if whole else target.new_empty(count, OUTPUTS * rows, OUTPUTS * columns, outputs)
    squares = pixels.view(count, rows, OUTPUTS, columns, OUTPUTS, outputs).movedim(2, 0)
    half = scratch("collected", OUTPUTS, PATCH, *shape, outputs)
    _output_along_axis(products.view(PATCH, PATCH, *shape, outputs).unbind(), half.unbind(), scratch)
    _output_along_axis(half.unbind(1), squares.unbind(4), scratch)
    if not whole:
        target.copy_(pixels[:, : target.size(1), : target.size(2)])


def transform_output_gradient(grads: Tensor, scratch: Scratch, shape: tuple[int, int, int]) -> Tensor:
    """Return the adjoint of `transform_output`, `(36, patches, O)`; `grads` has the shape of its target."""
    count, rows, columns = shape
    outputs = grads.size(3)
    if grads.shape[1:3] != (OUTPUTS * rows, OUTPUTS * columns):
        padded = grads.new_zeros(count, OUTPUTS * rows, OUTPUTS * columns, outputs)
        padded[:, : grads.size(1), : grads.size(2)] = grads
        grads = padded
    half = scratch("scattered", PATCH, count, rows, columns, OUTPUTS, outputs)
    result = scratch("spread", PATCH, PATCH, *shape, outputs)
    _output_gradient_along_axis(grads.unfold(1, OUTPUTS, OUTPUTS).unbind(-1), half.flatten(3, 4).unbind(), scratch)
    _output_gradient_along_axis(half.unbind(4), result.unbind(1), scratch)
    return result.view(PATCH_VALUES, -1, outputs)


def _add(first: Tensor, factor: float, second: Tensor, into: Tensor) -> None:
    """Compute `into = first + factor * second`."""
    torch.add(first, second, alpha=factor, out=into)


def _input_along_axis(pixels: Sequence[Tensor], into: Sequence[Tensor], scratch: Scratch) -> None:
    """Compute six transformed values of six adjacent pixels."""
    spare = scratch("spare", *pixels[0].shape)
    for outer, middle, target in ((0, 2, 0), (1, 3, 5)):
        _add(pixels[outer], 1, pixels[outer + 4], into[target])
        _add(into[target], -(_A**2 + _B**2), pixels[middle], into[target])
    for point, other, target in ((_A, _B, 1), (_B, _A, 3)):
        _add(pixels[4], -(other**2), pixels[2], spare)
        _add(pixels[3], -(other**2), pixels[1], into[target + 1])
        _add(spare, point, into[target + 1], into[target])
        _add(spare, -point, into[target + 1], into[target + 1])


def _output_along_axis(numbers: Sequence[Tensor], into: Sequence[Tensor], scratch: Scratch) -> None:
    """Compute four outputs of six products, which are overwritten."""
    at_zero, first, second, third, fourth, at_infinity = numbers
    spare = scratch("spare", *at_zero.shape)
    _add(first, -1, second, spare)
    _add(first, 1, second, first)
    _add(third, 1, fourth, second)
    _add(third, -1, fourth, third)
    _add(at_zero, _B, spare, into[0])
    _add(into[0], _A**2, second, into[0])
    _add(first, _A, third, into[1])
    _add(second, _A, spare, into[2])
    _add(at_infinity, _A**2, first, into[3])
    _add(into[3], _B, third, into[3])


def _output_gradient_along_axis(grads: Sequence[Tensor], into: Sequence[Tensor], scratch: Scratch) -> None:
    """Compute the adjoint of `_output_along_axis`: the gradients of six products from those of four outputs."""
    first, second, third, fourth = grads
    spare = scratch("spare", *first.shape)
    into[0].copy_(first)
    _add(first, _A**2, third, spare)
    _add(second, _A**2, fourth, into[2])
    _add(into[2], _B, spare, into[1])
    _add(into[2], -_B, spare, into[2])
    _add(third, _A**2, first, spare)
    _add(fourth, _A**2, second, into[4])
    _add(spare, _B, into[4], into[3])
    _add(spare, -_B, into[4], into[4])
    into[5].copy_(fourth)
