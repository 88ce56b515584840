"""Tables of frames, each with a number of items (its detections, say), that several processes can gather."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class FrameRecords:
    """F frames and all their items, as plain CPU tensors. Derived dataclasses add fields.

    Attributes:
        keys: `(F,)` int64, names the frame; see `frame_key`.
        counts: `(F,)` int32, how many of the items belong to the frame; the items go by frame.
    """

    BY_FRAME: ClassVar[frozenset[str]] = frozenset({"keys", "counts"})
    """Fields that hold one entry per frame; the others hold one per item."""

    keys: Tensor
    counts: Tensor

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Of the fields."""
        return tuple(field.name for field in fields(cls))

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """All frames of one or more parts, in their order."""
        return cls(**{name: torch.cat([getattr(part, name) for part in parts]) for name in cls.names()})

    def in_order(self, order: Tensor) -> Self:
        """The frames rearranged: `order` is `(F,)` int64, the present place of each."""
        ends = self.counts.cumsum(0)
        counts = self.counts[order]
        # Of each item: where those of its frame began, and how many of them come before it.
        begin = (ends - self.counts)[order].repeat_interleave(counts)
        before = torch.arange(int(counts.sum())) - (counts.cumsum(0) - counts).repeat_interleave(counts)
        return self._chosen(order, begin + before)

    def without_repeats(self) -> Self:
        """Each frame once, where it came first: samplers of several processes repeat frames to share them evenly."""
        _, first = np.unique(self.keys.numpy(), return_index=True)
        if len(first) == len(self.keys):
            return self
        frames = torch.zeros(len(self.keys), dtype=torch.bool)
        frames[first] = True
        return self._chosen(frames, frames.repeat_interleave(self.counts))

    def _chosen(self, frames: Tensor, items: Tensor) -> Self:
        return type(self)(
            **{name: getattr(self, name)[frames if name in self.BY_FRAME else items] for name in self.names()}
        )
