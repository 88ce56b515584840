"""The copies of `_rows_channels_last`: horizontal taps side by side, in a buffer that every tile uses again."""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor

from yolo_lightning.conv.algorithms.tiles import overlap


class RowLowering:
    """Copies rows of an image, once for each horizontal tap, into a buffer that every call uses again.

    Args:
        images: `(N, height, width, C)`.
        width: Width of the result, pixels.
        first_columns: Column of the image that the first pixel of the result meets, for each tap.
        column_step: Image columns between two pixels of the result.
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
        """`count` rows of the samples, every `row_step`-th, `(samples, count * width, taps * C)`; zero outside."""
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
        """The buffer for some rows, and the same as a matrix for each sample."""
        elements = samples * count * self.width * self.depth
        if self.buffer.numel() < elements:
            # Columns outside the image are never written, wherever a row comes to lie: they stay zero.
            self.buffer = self.images.new_zeros(elements)
            self.views.clear()
        flat = self.buffer[:elements].view(samples, count * self.width, self.depth)
        return flat.view(samples, count, self.width, self.taps, -1), flat


def _copies(
    images: Tensor, width: int, first_columns: Sequence[int], column_step: int
) -> list[tuple[slice, slice, Tensor]]:
    """What goes where: columns and taps of the result, and the pixels `(N, height, columns, taps, C)` that they meet.

    Where the taps of a pixel adjoin in the image, they are copied together: a run of all channels of all taps.
    """
    taps, size = len(first_columns), images.size(2)
    inside = [overlap(first, column_step, width, size) for first in first_columns]
    adjoining = all(second - first == 1 for first, second in pairwise(first_columns))
    low, high = max(columns.start for columns, _ in inside), min(columns.stop for columns, _ in inside)
    if not adjoining or low >= high:
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
