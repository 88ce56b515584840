"""Row lowering of channels_last images: copies of the rows, one per horizontal tap, in a reused buffer."""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor

from yolo_lightning.conv.algorithms.shared import overlap


class RowLowering:
    """Copies rows of images, once per horizontal tap, into a buffer that every call overwrites.

    Args:
        images: `(N, height, width, C)`.
        width: Width of the result, pixels.
        first_columns: Image column of the first pixel of the result, for each tap.
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
