"""Tables of frames and their items, which processes gather and join, and the keys of frames."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from hashlib import blake2b
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class FrameRecords:
    """F frames and all their items, as CPU tensors. Derived dataclasses add fields."""

    BY_FRAME: ClassVar[frozenset[str]] = frozenset({"keys", "counts"})
    """Fields with one entry per frame; all others have one entry per item."""

    keys: Tensor  # `(F,)` int64, `frame_key` of the image id
    counts: Tensor  # `(F,)` int32, number of items of the frame; items are sorted by frame

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(field.name for field in fields(cls))

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Concatenate one or more tables."""
        return cls(**{name: torch.cat([getattr(part, name) for part in parts]) for name in cls.names()})

    def in_order(self, order: Tensor) -> Self:
        """Return the table with its frames permuted by `order`, `(F,)` int64 positions in this table."""
        ends = self.counts.cumsum(0)
        counts = self.counts[order]
        # For each item: position of the first item of its frame, and number of items of its frame before it.
        begin = (ends - self.counts)[order].repeat_interleave(counts)
        before = torch.arange(int(counts.sum())) - (counts.cumsum(0) - counts).repeat_interleave(counts)
        return self.chosen(order, begin + before)

    def without_repeats(self) -> Self:
        """Return each frame once, at its first position: distributed samplers repeat frames to pad the last batch."""
        _, first = np.unique(self.keys.numpy(), return_index=True)
        if len(first) == len(self.keys):
            return self
        frames = torch.zeros(len(self.keys), dtype=torch.bool)
        frames[first] = True
        return self.chosen(frames, frames.repeat_interleave(self.counts))

    def chosen(self, frames: Tensor, items: Tensor) -> Self:
        """Index the fields by frame with `frames`, all other fields with `items`."""
        return type(self)(
            **{name: getattr(self, name)[frames if name in self.BY_FRAME else items] for name in self.names()}
        )


def frame_key(image_id: str) -> int:
    """Return 63 bits of a hash of an image id, which may be any text."""
    return int.from_bytes(blake2b(image_id.encode(), digest_size=8).digest(), "big") >> 1


def frame_keys(image_ids: Sequence[str]) -> Tensor:
    """Return the `frame_key` of each image id, `(F,)` int64."""
    return torch.tensor([frame_key(image_id) for image_id in image_ids], dtype=torch.int64)
