"""The ids of frames as a table that processes can gather like any other."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from yolo_lightning.evaluation.frame_records import FrameRecords
from yolo_lightning.evaluation.matching import frame_key


@dataclass(frozen=True, slots=True)
class FrameNames(FrameRecords):
    """Ids of F frames.

    Attributes:
        characters: `(N,)` uint8, the ids in UTF-8, one after the other; `counts` holds their lengths.
    """

    characters: Tensor

    @classmethod
    def of(cls, image_ids: Sequence[str]) -> Self:
        """The table of some ids."""
        encoded = [image_id.encode() for image_id in image_ids]
        return cls(
            keys=torch.tensor([frame_key(image_id) for image_id in image_ids], dtype=torch.int64),
            counts=torch.tensor([len(one) for one in encoded], dtype=torch.int32),
            characters=torch.from_numpy(np.frombuffer(b"".join(encoded), np.uint8).copy()),
        )

    def image_ids(self) -> tuple[str, ...]:
        """The ids."""
        text = self.characters.numpy().tobytes()
        ends = self.counts.cumsum(0).tolist()
        return tuple(text[end - count : end].decode() for end, count in zip(ends, self.counts.tolist(), strict=True))
