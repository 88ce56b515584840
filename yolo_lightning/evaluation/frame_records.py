"""Tables of frames and their items, which processes gather and join."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Self

import numpy as np

from yolo_lightning.data.array_types import AnyArray, BoolArray, Int64Array, IntegerArray

BY_FRAME = frozenset({"annotated", "counts", "months"})
"""Fields with one entry per frame; all others have one entry per item."""


@dataclass(frozen=True, slots=True)
class FrameRecords:
    """F frames and all their items. Derived dataclasses add fields, which may be None."""

    counts: IntegerArray  # `(F,)` number of items of the frame; items are sorted by frame

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(field.name for field in fields(cls))

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Concatenate one or more tables."""
        return cls(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in cls.names()})

    @property
    def owners(self) -> Int64Array:
        """Frame number of each item."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    def in_order(self, order: Int64Array) -> Self:
        """Return the frames at the positions `order`, `(N,)` int64, in this order."""
        ends = self.counts.cumsum()
        counts = self.counts[order]
        # For each item: position of the first item of its frame, and number of items of its frame before it.
        begin = np.repeat((ends - self.counts)[order], counts)
        before = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
        return self.indexed(order, begin + before)

    def chosen(self, frames: BoolArray, items: BoolArray) -> Self:
        """Return some frames with some of their items; both are masks, `(F,)` and one entry per item."""
        kept = frames[self.owners] & items
        counts = np.bincount(self.owners[kept], minlength=len(frames)).astype(np.int32)
        return replace(self.indexed(frames, kept), counts=counts[frames])

    def indexed(self, frames: AnyArray | slice, items: AnyArray | slice) -> Self:
        """Index the fields by frame with `frames`, all other fields with `items`."""
        columns = {}
        for name in self.names():
            column = getattr(self, name)
            if column is not None:
                columns[name] = column[frames if name in BY_FRAME else items]
        return replace(self, **columns)
