"""Neighbouring frames within a clip, which become the channels of one image (`data.input.neighbours`).

A clip is the sequence of the frames of the annotation file in one folder, by the number in the file name. Offsets count
frames of this sequence. Before the first and after the last frame of a clip, the edge frame is repeated.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from yolo_lightning.data.formats.annotations import IMAGE_NUMBER
from yolo_lightning.data.index.split_index import SplitIndex


def clamped(place: int, count: int, offsets: Iterable[int]) -> list[int]:
    """Return the places of the neighbours of frame `place` in a clip of `count` frames, with repeated edges."""
    return [min(max(place + offset, 0), count - 1) for offset in offsets]


def numbered(name: str) -> tuple[str, int]:
    """Return a file name without the last number of its stem, and this number; -1 if there is none."""
    folder, slash, file = name.rpartition("/")
    stem, dot, suffix = file.rpartition(".")
    found = IMAGE_NUMBER.search(stem)
    if found is None:
        return name, -1
    return f"{folder}{slash}{stem[: found.start(1)]}#{stem[found.end(1) :]}{dot}{suffix}", int(found[1])


@dataclass(frozen=True)
class Neighbours:
    """Positions of the neighbours of the frames of a split at `offsets`.

    Each process computes the table itself, from the mapped arrays of the index.
    """

    index: SplitIndex
    offsets: tuple[int, ...]

    def __getstate__(self) -> dict[str, Any]:
        return {"index": self.index, "offsets": self.offsets}

    def positions(self, position: int) -> list[int]:
        """Return the positions of the neighbours of frame `position`, one per offset."""
        found: list[int] = self._table[position].tolist()
        return found

    @cached_property
    def _table(self) -> npt.NDArray[np.int64]:
        """`(N, C)` int64, positions of the neighbours of each frame of the split."""
        clips, ranks = self.index.clips(), self.index.positions_in_clip()
        order = np.lexsort((ranks, clips))
        lengths = np.bincount(clips)
        ends = np.cumsum(lengths)[clips]
        first = ends - lengths[clips]
        wanted = (first + ranks)[:, None] + np.array(self.offsets)
        table: npt.NDArray[np.int64] = order[np.clip(wanted, first[:, None], ends[:, None] - 1)]
        return table
