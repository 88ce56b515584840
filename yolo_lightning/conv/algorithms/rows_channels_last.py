"""Row lowering for channels_last tensors: horizontal taps are copied, vertical taps are views (see `rows`).

The lowered rows of an image tile are a matrix `(pixels, horizontal taps * C)`. A vertical tap is an offset of whole
rows into this matrix, so all taps read one small buffer, which stays in the cache of a CPU. The input is not padded:
the buffer is zero outside the image.

Stride `s` divides the input into `s * s` images, one per remainder of row and column modulo `s`. Each of these images
is read by some of the taps only, and its gradient is a convolution of the output gradient with stride 1, which needs no
scatter operation. The lowered output gradient is also used for the weight gradient.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

import torch
from torch import Tensor

from yolo_lightning.conv.algorithms.problem import Problem
from yolo_lightning.conv.algorithms.shared import Tile, items_per_tile, overlap, tiles


@dataclass(frozen=True)
class _Tap:
    """A kernel tap along one axis: its index, and the offset of its pixels from those of the result."""

    index: int
    shift: int


@dataclass(frozen=True)
class Remainder:
    """Input positions with one remainder modulo the stride, along one axis."""

    taps: tuple[_Tap, ...]  # taps that read these positions: position `q`, counted in strides, for output `q - shift`
    first: int  # first position inside the input, counted in strides
    pixels: slice  # the positions as input pixels
    count: int  # number of positions


def forward(input: Tensor, weight: Tensor, problem: Problem) -> Tensor:
    samples, outputs, height, width = problem.output_size
    matrices = weight.permute(2, 3, 1, 0).reshape(problem.kernel[0], -1, outputs)
    output = input.new_empty(samples, height * width, outputs)
    for tile, products in _lowered_input(input, problem):
        target = output[tile.samples, tile.pixels(width)]
        for number, (tap, lowered) in enumerate(products):
            _multiply_(target, lowered, matrices[tap], accumulate=number > 0)
    return output.view(samples, height, width, outputs).permute(0, 3, 1, 2)


def weight_gradient(input: Tensor, grad_output: Tensor, problem: Problem) -> Tensor:
    samples, outputs, height, width = problem.output_size
    grads = grad_output.permute(0, 2, 3, 1).reshape(samples, height * width, outputs)
    total = input.new_zeros(problem.kernel[0], problem.kernel[1] * problem.input_size[1], outputs)
    for tile, products in _lowered_input(input, problem):
        part = grads[tile.samples, tile.pixels(width)]
        for tap, lowered in products:
            _add_products_(total[tap], lowered, part)
    grad_weight = total.view(*problem.kernel, -1, outputs).permute(3, 2, 0, 1)
    return grad_weight.contiguous(memory_format=torch.channels_last)


def input_gradient(grad_output: Tensor, weight: Tensor, problem: Problem) -> Tensor:
    return _gradients(None, grad_output, weight, problem)[0]


def gradients(input: Tensor, grad_output: Tensor, weight: Tensor, problem: Problem) -> tuple[Tensor, Tensor]:
    """Return the input gradient and the weight gradient, which share the lowered output gradient."""
    return _gradients(input, grad_output, weight, problem)


def _lowered_input(input: Tensor, problem: Problem) -> Iterator[tuple[Tile, Iterator[tuple[int, Tensor]]]]:
    """Yield tiles of the output, each with pairs of a vertical tap and the lowered input that the tap reads.

    Each matrix is valid until the next one is requested.
    """
    by_remainder: dict[int, list[_Tap]] = {}
    for index in range(problem.kernel[0]):
        shift, remainder = divmod(index * problem.dilation[0], problem.stride[0])
        by_remainder.setdefault(remainder, []).append(_Tap(index, shift))
    samples, _, height, width = problem.output_size
    top, _, left, _ = problem.padding
    lowering = RowLowering(
        input.permute(0, 2, 3, 1),
        width,
        [index * problem.dilation[1] - left for index in range(problem.kernel[1])],
        problem.stride[1],
    )

    def products(tile: Tile) -> Iterator[tuple[int, Tensor]]:
        count = tile.rows.stop - tile.rows.start
        for remainder, taps in by_remainder.items():
            nearest, farthest = taps[0].shift, taps[-1].shift
            first_row = (tile.rows.start + nearest) * problem.stride[0] + remainder - top
            lowered = lowering.rows(tile.samples, first_row, problem.stride[0], count + farthest - nearest)
            for tap in taps:
                first = (tap.shift - nearest) * width
                yield tap.index, lowered[:, first : first + count * width]

    for tile in tiles(samples, height, items_per_tile(width * lowering.depth, samples * height, input.device)):
        yield tile, products(tile)


def _gradients(input: Tensor | None, grad_output: Tensor, weight: Tensor, problem: Problem) -> tuple[Tensor, Tensor]:
    """Return the input gradient and the weight gradient; the latter is zero if `input` is None."""
    samples, channels, height, width = problem.input_size
    taps = weight.permute(2, 3, 0, 1)
    grad_input = grad_output.new_empty(samples, height, width, channels)
    grad_weight = taps.new_zeros(taps.shape)
    for columns, rows in product(remainders_of(1, problem), remainders_of(0, problem)):
        target = grad_input[:, rows.pixels, columns.pixels]
        if not (columns.taps and rows.taps):
            target.zero_()
            continue
        seen = None if input is None else input.permute(0, 2, 3, 1)[:, rows.pixels, columns.pixels]
        _remainder_gradients(grad_output, taps, (rows, columns), target, seen, grad_weight)
    grad_weight = grad_weight.permute(2, 3, 0, 1).contiguous(memory_format=torch.channels_last)
    return grad_input.permute(0, 3, 1, 2), grad_weight


def _remainder_gradients(
    grad_output: Tensor,
    taps: Tensor,
    remainders: tuple[Remainder, Remainder],
    target: Tensor,
    seen: Tensor | None,
    grad_weight: Tensor,
) -> None:
    """Write the gradients of the input positions of one remainder and of the taps that read them.

    `taps` and `grad_weight` are `(kernel height, kernel width, O, C)`. `target (N, rows, columns, C)`, of any strides,
    receives the input gradient. `seen` is the input at these positions, or None to skip the weight gradient.
    """
    rows, columns = remainders
    # Sorted by their columns in the output gradient.
    left_to_right = columns.taps[::-1]
    column_taps = [tap.index for tap in left_to_right]
    # Stacked views: an index list would be copied to an accelerator, which waits for the stream.
    matrices = [torch.cat([taps[tap.index, column] for column in column_taps]) for tap in rows.taps]
    totals = [torch.zeros_like(matrix) for matrix in matrices]
    nearest, farthest = rows.taps[0].shift, rows.taps[-1].shift
    first_columns = [columns.first - tap.shift for tap in left_to_right]
    lowering = RowLowering(grad_output.permute(0, 2, 3, 1), columns.count, first_columns, column_step=1)
    step = items_per_tile(columns.count * lowering.depth, target.size(0) * rows.count, target.device)
    for tile in tiles(target.size(0), rows.count, step):
        place = target[tile.samples, tile.rows]
        count, pixels = place.size(1), place.size(1) * columns.count
        lowered = lowering.rows(tile.samples, rows.first + tile.rows.start - farthest, 1, count + farthest - nearest)
        result = place.flatten(1, 2) if place.is_contiguous() else place.new_empty(place.size(0), pixels, place.size(3))
        values = None if seen is None else seen[tile.samples, tile.rows].flatten(1, 2)
        for number, tap in enumerate(rows.taps):
            first = (farthest - tap.shift) * columns.count
            view = lowered[:, first : first + pixels]
            _multiply_(result, view, matrices[number], accumulate=number > 0)
            if values is not None:
                _add_products_(totals[number], view, values)
        if not place.is_contiguous():
            place.copy_(result.view(place.shape))
    if seen is not None:
        for tap, total in zip(rows.taps, totals, strict=True):
            for column, part in zip(column_taps, total.view(-1, *taps.shape[2:]).unbind(), strict=True):
                grad_weight[tap.index, column] = part


def remainders_of(axis: int, problem: Problem) -> list[Remainder]:
    """Return the remainders that occur inside the input along an axis."""
    stride, before, size = problem.stride[axis], problem.padding[2 * axis], problem.input_size[2 + axis]
    found = []
    for remainder in range(stride):
        start = (remainder - before) % stride
        reached = [(index, index * problem.dilation[axis] - remainder) for index in range(problem.kernel[axis])]
        taps = tuple(_Tap(index, reach // stride) for index, reach in reached if reach % stride == 0)
        count = len(range(start, size, stride))
        if count:
            found.append(Remainder(taps, (start + before - remainder) // stride, slice(start, None, stride), count))
    return found


def _multiply_(target: Tensor, lowered: Tensor, matrix: Tensor, *, accumulate: bool) -> None:
    """Set or add `lowered (n, pixels, K) @ matrix (K, O)` in `target (n, pixels, O)`."""
    if target.size(0) == 1:
        target[0].addmm_(lowered[0], matrix, beta=int(accumulate))
    else:
        target.baddbmm_(lowered, matrix.expand(target.size(0), -1, -1), beta=int(accumulate))


def _add_products_(total: Tensor, lowered: Tensor, values: Tensor) -> None:
    """Add `lowered (n, pixels, K)` transposed times `values (n, pixels, O)`, summed over n, to `total (K, O)`."""
    if values.size(0) == 1:
        total.addmm_(lowered[0].t(), values[0])
    else:
        total += torch.bmm(lowered.transpose(1, 2), values).sum(0)


class RowLowering:
    """Copies rows of images, once per horizontal tap, into a buffer that every call overwrites.

    `images` is `(N, height, width, C)`, `width` that of the result. `first_columns` are the image columns of the first
    pixel of the result, for each tap; `column_step` is the distance between two pixels of the result in image columns.
    """

    def __init__(self, images: Tensor, width: int, first_columns: Sequence[int], column_step: int) -> None:
        self.images = images
        self.width = width
        self.taps = len(first_columns)
        self.depth = self.taps * images.size(3)
        self.copies = _copies(images, width, first_columns, column_step)
        self.buffer = images.new_empty(0)
        self.views: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def rows(self, samples: slice, first_row: int, row_step: int, count: int) -> Tensor:
        """Return `count` rows, every `row_step`-th, `(samples, count * width, taps * C)`; zero outside the image."""
        shape = samples.stop - samples.start, count
        if shape not in self.views:
            self.views[shape] = self._view(*shape)
        lowered, flat = self.views[shape]
        inside, source_rows = overlap(first_row, row_step, count, self.images.size(1))
        if inside.start > 0:
            lowered[:, : inside.start].zero_()
        if inside.stop < count:
            lowered[:, inside.stop :].zero_()
        for columns, taps, source in self.copies:
            lowered[:, inside, columns, taps].copy_(source[samples, source_rows])
        return flat

    def _view(self, samples: int, count: int) -> tuple[Tensor, Tensor]:
        """Return the buffer as `(samples, count, width, taps, C)` and as one matrix per sample."""
        elements = samples * count * self.width * self.depth
        if self.buffer.numel() < elements:
            # Columns outside the image are never written and stay zero.
            self.buffer = self.images.new_zeros(elements)
            self.views.clear()
        flat = self.buffer[:elements].view(samples, count * self.width, self.depth)
        return flat.view(samples, count, self.width, self.taps, -1), flat


def _copies(
    images: Tensor, width: int, first_columns: Sequence[int], column_step: int
) -> list[tuple[slice, slice, Tensor]]:
    """Return the copies: columns and taps of the result, and their source pixels `(N, height, columns, taps, C)`.

    If the taps of a pixel are adjacent in the image, all channels of all taps are copied as one contiguous run.
    """
    taps, size = len(first_columns), images.size(2)
    inside = [overlap(first, column_step, width, size) for first in first_columns]
    adjacent = all(second - first == 1 for first, second in pairwise(first_columns))
    low, high = max(columns.start for columns, _ in inside), min(columns.stop for columns, _ in inside)
    if not adjacent or low >= high:
        return [
            (columns, slice(tap, tap + 1), images[:, :, source].unsqueeze(3))
            for tap, (columns, source) in enumerate(inside)
        ]
    first = first_columns[0] + low * column_step
    runs = images[:, :, first : first + (high - low - 1) * column_step + taps].unfold(2, taps, column_step)
    found = [(slice(low, high), slice(0, taps), runs.transpose(3, 4))]
    for columns in (*range(low), *range(high, width)):
        reached, source = overlap(first_columns[0] + columns * column_step, 1, taps, size)
        if reached.start < reached.stop:
            found.append((slice(columns, columns + 1), reached, images[:, :, source].unsqueeze(2)))
    return found
