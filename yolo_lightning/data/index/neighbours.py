"""Neighbouring frames within a clip, which become the channels of one image (`data.input.neighbours`).

A clip is the sequence of the frames in its folder by the number in the file name: those of the annotation file, and
those that only the storage contains. Offsets count frames of this sequence. Before the first and after the last frame
of a clip, the edge frame is repeated.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from yolo_lightning.data.formats.annotations import IMAGE_NUMBER
from yolo_lightning.data.index.index_folder import decoded, encode
from yolo_lightning.data.index.split_index import SplitIndex
from yolo_lightning.data.storage.storage import Storage


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
class UnlistedFrames:
    """Frames in the clips of a split that are not in its annotation file, ordered by clip and number."""

    names: npt.NDArray[np.bytes_]  # `(E,)` bytes, UTF-8, as in annotation files
    clips: npt.NDArray[np.int32]  # `(E,)` int32, number of the clip
    before: npt.NDArray[np.int32]  # `(E,)` int32, number of annotated frames of the clip with a smaller number

    @classmethod
    def find(cls, index: SplitIndex, storage: Storage) -> Self:
        """Search the folders of the clips of `index`.

        Files whose names differ from those of the annotated frames in more than the number are not frames, and neither
        are files with the number of an annotated frame.
        """
        clips = {index.clip_name(number): number for number in np.unique(index.clips()).tolist()}
        listed = index.file_names()
        known = set(listed)
        found = [name for name in storage.names(clips) if name not in known]
        if not found:
            return cls.of([])
        affected = {name.rpartition("/")[0] for name in found}
        patterns: set[str] = set()
        numbers: dict[str, list[int]] = defaultdict(list)
        for name in listed:
            folder = name.rpartition("/")[0]
            if folder in affected:
                pattern, number = numbered(name)
                patterns.add(pattern)
                numbers[folder].append(number)
        for own in numbers.values():
            own.sort()
        taken = {(folder, number) for folder, own in numbers.items() for number in own}
        rows = []
        for name in found:
            folder, (pattern, number) = name.rpartition("/")[0], numbered(name)
            if pattern in patterns and (folder, number) not in taken:
                taken.add((folder, number))  # image_7.jpg and image_0007.jpg are one frame
                rows.append((clips[folder], number, name, bisect_left(numbers[folder], number)))
        return cls.of(sorted(rows))

    @classmethod
    def of(cls, rows: Sequence[tuple[int, int, str, int]]) -> Self:
        """Return the frames of sorted rows of clip, number, name, and number of annotated frames before."""
        return cls(
            np.array([encode(name) for _, _, name, _ in rows], dtype=np.bytes_),
            np.array([clip for clip, _, _, _ in rows], dtype=np.int32),
            np.array([before for _, _, _, before in rows], dtype=np.int32),
        )

    def __len__(self) -> int:
        return len(self.names)

    def file_names(self) -> list[str]:
        return [decoded(name) for name in self.names]


@dataclass(frozen=True)
class Neighbours:
    """Neighbours of the frames of a split at `offsets`, by their places: positions in the split, then unlisted frames.

    Each process computes the table itself, from the mapped arrays of the index.
    """

    index: SplitIndex
    offsets: tuple[int, ...]
    unlisted: UnlistedFrames

    @classmethod
    def find(cls, index: SplitIndex, storage: Storage, offsets: tuple[int, ...]) -> Self:
        return cls(index, offsets, UnlistedFrames.find(index, storage))

    def __getstate__(self) -> dict[str, Any]:
        return {"index": self.index, "offsets": self.offsets, "unlisted": self.unlisted}

    def places(self, position: int) -> list[int]:
        """Return the places of the neighbours of frame `position`, one per offset."""
        found: list[int] = self._table[position].tolist()
        return found

    def file_name(self, place: int) -> str:
        """Return the file of a place, relative to the dataset root."""
        if place < len(self.index):
            return self.index.file_name(place)
        return decoded(self.unlisted.names[place - len(self.index)])

    def describe(self) -> str:
        more = f", {len(self.unlisted):,} further frames in its clips" if len(self.unlisted) else ""
        return f"channels are the frames at {list(self.offsets)}{more}"

    @cached_property
    def _table(self) -> npt.NDArray[np.int32]:
        """`(N, C)` int32, places of the neighbours of each frame of the split."""
        count = len(self.index)
        clips = np.concatenate((self.index.clips(), self.unlisted.clips))
        # An unlisted frame is directly after the `before` annotated frames with smaller numbers.
        ranks = np.concatenate((2 * self.index.positions_in_clip() + 1, 2 * self.unlisted.before))
        order = np.lexsort((ranks, clips)).astype(np.int32)  # stable: unlisted frames of equal rank keep their order
        places = np.empty(len(order), dtype=np.int32)
        places[order] = np.arange(len(order), dtype=np.int32)
        lengths = np.bincount(clips)
        ends = np.cumsum(lengths)
        own = clips[:count]
        first, last = (ends - lengths)[own], ends[own] - 1
        wanted = places[:count, None] + np.array(self.offsets)
        table: npt.NDArray[np.int32] = order[np.clip(wanted, first[:, None], last[:, None])]
        return table
