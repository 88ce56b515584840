"""Tables of frames and their items, which processes gather and join."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Self

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class FrameRecords:
    """F frames and all their items, as CPU tensors. Derived dataclasses add fields."""

    BY_FRAME: ClassVar[frozenset[str]] = frozenset({"counts"})
    """Fields with one entry per frame; all others have one entry per item."""

    counts: Tensor  # `(F,)` int32, number of items of the frame; items are sorted by frame

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(field.name for field in fields(cls))

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Concatenate one or more tables."""
        return cls(**{name: torch.cat([getattr(part, name) for part in parts]) for name in cls.names()})

    def in_order(self, order: Tensor) -> Self:
        """Return the frames at the positions `order`, `(N,)` int64, in this order."""
        ends = self.counts.cumsum(0)
        counts = self.counts[order]
        # For each item: position of the first item of its frame, and number of items of its frame before it.
        begin = (ends - self.counts)[order].repeat_interleave(counts)
        before = torch.arange(int(counts.sum())) - (counts.cumsum(0) - counts).repeat_interleave(counts)
        return self._indexed(order, begin + before)

    def chosen(self, frames: Tensor, items: Tensor) -> Self:
        """Return some frames with some of their items; both are masks, `(F,)` and one entry per item."""
        owners = torch.arange(len(self.counts)).repeat_interleave(self.counts.long())
        kept = frames[owners] & items
        counts = torch.bincount(owners[kept], minlength=len(frames)).to(self.counts.dtype)
        return replace(self._indexed(frames, kept), counts=counts[frames])

    def _indexed(self, frames: Tensor, items: Tensor) -> Self:
        """Index the fields by frame with `frames`, all other fields with `items`."""
        return type(self)(
            **{name: getattr(self, name)[frames if name in self.BY_FRAME else items] for name in self.names()}
        )
