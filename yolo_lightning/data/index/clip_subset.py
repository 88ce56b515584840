"""Some clips of a split, seen as a split of their own."""

from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from yolo_lightning.data.index.annotation_index import SplitIndex


@dataclass(frozen=True)
class ClipSubset(SplitIndex):
    """The frames of some clips of a split, numbered from 0 in the order of the file.

    Clips keep their numbers, so that `clip_name` holds; `counts` are those of the whole file. Arrays of all frames are
    copies. Pickles as its path and one bit for each clip.

    Attributes:
        chosen: One bit for each clip of the file, 1 if it belongs to the subset, as `numpy.packbits` packs them.
    """

    chosen: bytes

    @classmethod
    def of(cls, index: SplitIndex, clips: npt.NDArray[np.bool_]) -> Self:
        """The clips of `index` where `clips`, `(number of clips,)` bool, is true."""
        assert not isinstance(index, ClipSubset), "a subset is taken of a whole file"
        return cls(index.folder, np.packbits(clips).tobytes())

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "chosen": self.chosen}

    def __len__(self) -> int:
        return len(self._positions)

    @cached_property
    def _positions(self) -> npt.NDArray[np.int32]:
        bits = np.unpackbits(np.frombuffer(self.chosen, dtype=np.uint8))
        return np.flatnonzero(bits[super().clips()]).astype(np.int32)

    @property
    def fingerprint(self) -> str:
        """As of the whole file, and of the choice of clips."""
        return sha256(super().fingerprint.encode() + self.chosen).hexdigest()[:32]

    def image_id(self, index: int) -> str:
        """See `SplitIndex`."""
        return super().image_id(self._positions[index])

    def image_ids(self) -> list[str]:
        """See `SplitIndex`."""
        everything = super().image_ids()
        return [everything[position] for position in self._positions.tolist()]

    def text_ids(self) -> npt.NDArray[np.bool_]:
        """See `SplitIndex`."""
        return super().text_ids()[self._positions]

    def file_name(self, index: int) -> str:
        """See `SplitIndex`."""
        return super().file_name(self._positions[index])

    def file_names(self) -> list[str]:
        """See `SplitIndex`."""
        everything = super().file_names()
        return [everything[position] for position in self._positions.tolist()]

    def shape(self, index: int) -> tuple[int, int]:
        """See `SplitIndex`."""
        return super().shape(self._positions[index])

    def pixels(self) -> int:
        """See `SplitIndex`."""
        return sum(int(np.prod(self.shape(index))) for index in range(len(self)))

    def boxes(self, index: int) -> npt.NDArray[np.float32]:
        """See `SplitIndex`."""
        return super().boxes(self._positions[index])

    def labels(self, index: int) -> npt.NDArray[np.int64]:
        """See `SplitIndex`."""
        return super().labels(self._positions[index])

    def box_offsets(self) -> npt.NDArray[np.int64]:
        """See `SplitIndex`."""
        return np.concatenate(([0], np.cumsum(np.diff(super().box_offsets())[self._positions])))

    def all_labels(self) -> npt.NDArray[np.integer[Any]]:
        """See `SplitIndex`."""
        offsets = super().box_offsets()
        frame_is_chosen = np.zeros(len(offsets) - 1, dtype=np.bool_)
        frame_is_chosen[self._positions] = True
        return super().all_labels()[np.repeat(frame_is_chosen, np.diff(offsets))]

    def month(self, index: int) -> int:
        """See `SplitIndex`."""
        return super().month(self._positions[index])

    def months(self) -> npt.NDArray[np.int32]:
        """See `SplitIndex`."""
        return super().months()[self._positions]

    def clips(self) -> npt.NDArray[np.int32]:
        """See `SplitIndex`; not all numbers occur."""
        return super().clips()[self._positions]

    def positions_in_clip(self) -> npt.NDArray[np.int32]:
        """See `SplitIndex`."""
        return super().positions_in_clip()[self._positions]

    def weather(self) -> dict[str, npt.NDArray[np.float32]]:
        """See `SplitIndex`."""
        return {name: values[self._positions] for name, values in super().weather().items()}
