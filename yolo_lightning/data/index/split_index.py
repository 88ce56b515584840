"""Annotations of a split as memory-mapped arrays, so that a loader worker receives a path instead of a list."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np

from yolo_lightning.data.array_types import AnyArray, BoolArray, Float32Array, Int32Array, Int64Array, IntegerArray
from yolo_lightning.data.formats.annotations import Annotations, SplitFacts, encoded, location_free
from yolo_lightning.data.index import index_folder
from yolo_lightning.data.index.index_folder import Arrays, State
from yolo_lightning.utils.paths import real_path
from yolo_lightning.utils.regular_files import file_stamp

FORMAT = 12
NAMES = ("image_ids", "file_names")
IDENTIFYING = (*NAMES, "shapes", "box_offsets", "boxes", "labels")
"""Arrays that enter the fingerprint; absolute names enter it without the location of the dataset."""
ARRAYS = (*IDENTIFYING, "text_ids", "months", "clips", "clip_names", "positions_in_clip")


@dataclass(frozen=True)
class SplitIndex:
    """One split, or whole clips of it, read from a folder of `.npy` files that are mapped on first use.

    Pickles as its two attributes; a spawned worker maps the same pages again. Methods that return arrays of all frames
    of a file return the mapped pages, read-only; arrays of a part are copies. Pass the index to a worker instead of
    these arrays. Frames of a part are numbered from 0 in file order; clips keep their numbers, and `facts` describe the
    file.
    """

    folder: Path
    clips_in_use: bytes | None = None  # one bit per clip of the file (`numpy.packbits`); None uses all its frames

    def of_clips(self, clips: IntegerArray) -> Self:
        """Return the part of the file that consists of the clips with these numbers."""
        in_use = np.zeros(len(self._arrays["clip_names"]), dtype=np.bool_)
        in_use[clips] = True
        return type(self)(self.folder, np.packbits(in_use).tobytes())

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "clips_in_use": self.clips_in_use}

    def __len__(self) -> int:
        return len(self._arrays["image_ids"] if self._positions is None else self._positions)

    @cached_property
    def _arrays(self) -> Arrays:
        return index_folder.mapped(self.folder, ARRAYS)

    @cached_property
    def _positions(self) -> Int32Array | None:
        """Positions of the frames in the file, None for a whole file."""
        if self.clips_in_use is None:
            return None
        bits = np.unpackbits(np.frombuffer(self.clips_in_use, dtype=np.uint8))
        return np.flatnonzero(bits[self._arrays["clips"]]).astype(np.int32)

    @cached_property
    def _manifest(self) -> dict[str, Any]:
        return index_folder.read_manifest(self.folder)

    def _all(self, name: str) -> AnyArray:
        if self._positions is None:
            return self._arrays[name]
        return self._arrays[name][self._positions]

    def _position(self, index: int) -> int:
        """Return the position of frame `index` in the file."""
        return index if self._positions is None else int(self._positions[index])

    def _value(self, name: str, index: int) -> Any:
        return self._arrays[name][self._position(index)]

    def _boxes_of(self, index: int) -> slice:
        position = self._position(index)
        start, stop = self._arrays["box_offsets"][position : position + 2].tolist()
        return slice(start, stop)

    @property
    def fingerprint(self) -> str:
        """Hash of the content; splits with equal frames and boxes in equal order have equal fingerprints."""
        whole = str(self._manifest["fingerprint"])
        if self.clips_in_use is None:
            return whole
        return sha256(whole.encode() + self.clips_in_use).hexdigest()[:32]

    @cached_property
    def facts(self) -> SplitFacts:
        """Classes, numbers of boxes and remarks of the whole file."""
        return msgspec.convert(self._manifest["facts"], SplitFacts)

    def image_id(self, index: int) -> str:
        return bytes(self._value("image_ids", index)).decode()

    def image_ids(self) -> list[str]:
        return [identifier.decode() for identifier in self._all("image_ids").tolist()]

    def text_ids(self) -> BoolArray:
        """Return `(N,)` bool: whether the id is a string in the annotation file, not a number."""
        return self._all("text_ids")

    def file_name(self, index: int) -> str:
        """Return the file of frame `index`, relative to the dataset root."""
        return bytes(self._value("file_names", index)).decode()

    def file_names(self) -> list[str]:
        """Return the files of all frames, relative to the dataset root."""
        return [name.decode() for name in self._all("file_names").tolist()]

    def shape(self, index: int) -> tuple[int, int]:
        """Return `(height, width)` of frame `index` in pixels, from the annotation file."""
        height, width = self._value("shapes", index)
        return int(height), int(width)

    def distinct_shapes(self) -> list[tuple[int, int]]:
        """Return each `(height, width)` of the frames once, in pixels, from the annotation file."""
        return [(height, width) for height, width in np.unique(self._all("shapes"), axis=0).tolist()]

    def pixels(self) -> int:
        """Return the number of pixels of all frames, from the annotation file."""
        return int(self._all("shapes").prod(axis=1, dtype=np.int64).sum())

    def boxes(self, index: int) -> Float32Array:
        """Return a `(N, 4)` float32 copy, xyxy, pixels of the frame."""
        return np.array(self._arrays["boxes"][self._boxes_of(index)])

    def labels(self, index: int) -> Int64Array:
        """Return a `(N,)` int64 copy, class index from 0."""
        return self._arrays["labels"][self._boxes_of(index)].astype(np.int64)

    def box_offsets(self) -> Int64Array:
        """Return `(N + 1,)` int64; frame `i` has boxes and labels `box_offsets[i]:box_offsets[i + 1]`."""
        offsets = self._arrays["box_offsets"]
        if self._positions is None:
            return offsets
        return np.concatenate(([0], np.cumsum(np.diff(offsets)[self._positions])))

    def all_labels(self) -> IntegerArray:
        """Return `(M,)` int8 or int16, class index from 0 of all boxes, grouped by frame."""
        labels = self._arrays["labels"]
        if self._positions is None:
            return labels
        in_use = np.zeros(len(self._arrays["image_ids"]), dtype=np.bool_)
        in_use[self._positions] = True
        return labels[np.repeat(in_use, np.diff(self._arrays["box_offsets"]))]

    def month(self, index: int) -> int:
        """Return YYYYMM of frame `index`, 0 if unknown."""
        return int(self._value("months", index))

    def months(self) -> Int32Array:
        """Return `(N,)` int32, YYYYMM of each frame, 0 if unknown."""
        return self._all("months")

    def clips(self) -> Int32Array:
        """Return `(N,)` int32, clip number of each frame (one per folder), from 0 in order of first appearance."""
        return self._all("clips")

    def clip_name(self, number: int) -> str:
        """Return the folder of clip `number`, relative to the dataset root."""
        return bytes(self._arrays["clip_names"][number]).decode()

    def positions_in_clip(self) -> Int32Array:
        """Return `(N,)` int32, rank of each frame in its clip, from 0, ordered by the image number in its name."""
        return self._all("positions_in_clip")


def open_index(annotation_file: Path, index_root: Path, read: Callable[[Path], Annotations]) -> SplitIndex:
    """Open the index of a JSON file under `index_root`; build the index if it is missing or out of date.

    A change of the stamp of the file makes the index out of date.
    """
    source = {
        "path": str(real_path(annotation_file)),
        "reader": read.__name__,
        "stamp": list(file_stamp(annotation_file)),
    }
    return open_packed(annotation_file.stem, source, lambda: read(annotation_file), index_root)


def open_packed(stem: str, source: State, read: Callable[[], Annotations], index_root: Path) -> SplitIndex:
    """Open the index of annotations under `index_root`; arguments as in `index_folder.open_folder`."""
    folder = index_folder.open_folder(index_root, stem, {"format": FORMAT, **source}, lambda: packed(read()))
    return SplitIndex(folder)


def packed(annotations: Annotations) -> tuple[Arrays, dict[str, Any]]:
    """Return the arrays of an index, and the hash of its content and its facts for the manifest."""
    arrays = {name: getattr(annotations, name) for name in ARRAYS}
    fingerprint = sha256()
    for name in IDENTIFYING:
        array = arrays[name]
        if name in NAMES:
            array = encoded(location_free([value.decode() for value in array.tolist()]))
        fingerprint.update(array.tobytes())
    return arrays, {"fingerprint": fingerprint.hexdigest()[:32], "facts": msgspec.to_builtins(annotations.facts)}
