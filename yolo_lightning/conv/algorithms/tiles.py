"""Tiles of a convolution, which bound the scratch memory."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product


@dataclass(frozen=True)
class Tile:
    """A range of rows of a range of samples."""

    samples: slice
    rows: slice

    def pixels(self, width: int) -> slice:
        """Return the rows as a slice of the pixels of an image of this width."""
        return slice(self.rows.start * width, self.rows.stop * width)


def tiles(samples: int, rows: int, rows_per_tile: int) -> Iterator[Tile]:
    """Yield ranges of rows of one sample or, if whole samples fit into a tile, ranges of samples."""
    if rows_per_tile < rows:
        for sample, first in product(range(samples), range(0, rows, rows_per_tile)):
            yield Tile(slice(sample, sample + 1), slice(first, min(first + rows_per_tile, rows)))
        return
    step = rows_per_tile // rows
    for sample in range(0, samples, step):
        yield Tile(slice(sample, min(sample + step, samples)), slice(0, rows))


def overlap(first: int, step: int, count: int, size: int) -> tuple[slice, slice]:
    """Return which of the `count` positions `first, first + step, ...` are in `range(size)`.

    Returns:
        The slice of their indices in `range(count)`, and the slice of the positions.
    """
    low = min(count, max(0, -(first // step)))
    high = max(low, min(count, -((first - size) // step)))
    if low == high:
        return slice(low, low), slice(0, 0)
    return slice(low, high), slice(first + low * step, first + (high - 1) * step + 1, step)
