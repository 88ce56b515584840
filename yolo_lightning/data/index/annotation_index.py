"""Annotations packed once into memory-mapped arrays, so that a loader worker receives a path, never a list."""

import glob
import os
import weakref
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from yolo_lightning.data.formats.annotations import Annotations, BoxCounts
from yolo_lightning.data.formats.ltdv2 import read_annotations
from yolo_lightning.data.formats.recording import WEATHER
from yolo_lightning.data.index import index_folder
from yolo_lightning.utils.files import cache_folder

FORMAT = 4
IDENTIFYING = ("image_ids", "file_names", "shapes", "box_offsets", "boxes", "labels")
"""Arrays that the fingerprint is taken of."""
ARRAYS = (*IDENTIFYING, "text_ids", "months", "clips", "clip_names", "positions_in_clip", "weather")

State = dict[str, Any]
"""What must be unchanged for an index to be current; `path` says of what it is an index. Plain JSON."""


@dataclass(frozen=True)
class SplitIndex:
    """One split, read from a folder of `.npy` files that are mapped when first used.

    Pickles as its path: what was mapped stays behind, a spawned worker maps the same pages again. The methods that
    return arrays of all frames return the mapped pages themselves, read-only; keep the index instead of the arrays in
    what a worker receives. While the arrays are mapped, no other run clears the folder away.

    Attributes:
        folder: Where the arrays lie.
    """

    folder: Path

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder}

    def __len__(self) -> int:
        return len(self._arrays["image_ids"])

    @cached_property
    def _arrays(self) -> dict[str, npt.NDArray[Any]]:
        weakref.finalize(self, os.close, index_folder.hold(self.folder))
        return {name: np.asarray(np.load(self.folder / f"{name}.npy", mmap_mode="r")) for name in ARRAYS}

    @cached_property
    def _manifest(self) -> dict[str, Any]:
        return index_folder.read_manifest(self.folder)

    @property
    def fingerprint(self) -> str:
        """Hash of the packed content; two splits with the same frames and boxes in the same order share it."""
        return str(self._manifest["fingerprint"])

    @property
    def counts(self) -> BoxCounts:
        """Boxes kept, clipped and dropped when the split was packed."""
        return BoxCounts(**self._manifest["counts"])

    @property
    def class_names(self) -> tuple[str, ...]:
        """Index 0 first."""
        return tuple(self._manifest["class_names"])

    @property
    def category_ids(self) -> tuple[int, ...]:
        """Number of each class in the annotation files, index 0 first."""
        return tuple(self._manifest["category_ids"])

    @property
    def has_clips(self) -> bool:
        """Whether clips are recordings; if not, each image stands as a clip of its own."""
        return bool(self._manifest["has_clips"])

    @property
    def notes(self) -> tuple[str, ...]:
        """What else the user should know of the split, one line each."""
        return tuple(self._manifest["notes"])

    def image_id(self, index: int) -> str:
        """Id of frame `index` as text."""
        return bytes(self._arrays["image_ids"][index]).decode()

    def image_ids(self) -> list[str]:
        """Ids of all frames, in order."""
        return [identifier.decode() for identifier in self._arrays["image_ids"].tolist()]

    def text_ids(self) -> npt.NDArray[np.bool_]:
        """`(N,)` bool, whether each frame's id is text in the annotation file; else it is a number there."""
        return self._arrays["text_ids"]

    def file_name(self, index: int) -> str:
        """File of frame `index`, relative to the dataset root."""
        return bytes(self._arrays["file_names"][index]).decode()

    def file_names(self) -> list[str]:
        """Files of all frames, in order."""
        return [name.decode() for name in self._arrays["file_names"].tolist()]

    def shape(self, index: int) -> tuple[int, int]:
        """`(height, width)` of frame `index` in pixels, as the annotation file says."""
        height, width = self._arrays["shapes"][index]
        return int(height), int(width)

    def pixels(self) -> int:
        """Of all frames together, as the annotation file says."""
        return int(self._arrays["shapes"].prod(axis=1, dtype=np.int64).sum())

    def boxes(self, index: int) -> npt.NDArray[np.float32]:
        """`(N, 4)` float32 copy, xyxy, pixels of the frame."""
        return np.array(self._arrays["boxes"][self._slice(index)])

    def labels(self, index: int) -> npt.NDArray[np.int64]:
        """`(N,)` int64 copy, class index from 0."""
        return self._arrays["labels"][self._slice(index)].astype(np.int64)

    def box_offsets(self) -> npt.NDArray[np.int64]:
        """`(N + 1,)` int64; frame `i` owns boxes and labels `box_offsets[i]:box_offsets[i + 1]`."""
        return self._arrays["box_offsets"]

    def all_labels(self) -> npt.NDArray[np.integer[Any]]:
        """`(M,)` int8 or int16, class index from 0 of all boxes, grouped by frame."""
        return self._arrays["labels"]

    def month(self, index: int) -> int:
        """YYYYMM of frame `index`, 0 where it is unknown."""
        return int(self._arrays["months"][index])

    def months(self) -> npt.NDArray[np.int32]:
        """`(N,)` int32, YYYYMM of each frame, 0 where it is unknown."""
        return self._arrays["months"]

    def clips(self) -> npt.NDArray[np.int32]:
        """`(N,)` int32, number of each frame's clip (the folder of its file), from 0 in order of first appearance."""
        return self._arrays["clips"]

    def clip_name(self, number: int) -> str:
        """Folder of clip `number`, relative to the dataset root."""
        return bytes(self._arrays["clip_names"][number]).decode()

    def positions_in_clip(self) -> npt.NDArray[np.int32]:
        """`(N,)` int32, rank of each frame in its clip, from 0, by the image number in its name."""
        return self._arrays["positions_in_clip"]

    def weather(self) -> dict[str, npt.NDArray[np.float32]]:
        """By LTDv2's name of the measurement (see `recording.WEATHER`), `(N,)` float32; NaN where it is unknown."""
        return dict(zip(WEATHER, self._arrays["weather"], strict=True))

    def _slice(self, index: int) -> slice:
        start, stop = self._arrays["box_offsets"][index : index + 2]
        return slice(int(start), int(stop))


def default_index_root() -> Path:
    """Where packed indexes are kept unless the user says otherwise."""
    return cache_folder() / "index"


def open_index(
    annotation_file: Path, index_root: Path, read: Callable[[Path], Annotations] = read_annotations
) -> SplitIndex:
    """The packed index of a JSON file under `index_root`, built first where it is missing or out of date.

    Args:
        annotation_file: The file; its size and time of change say whether it is the one that was packed.
        index_root: See `open_packed`.
        read: What reads it.

    Raises:
        ValueError: If the annotation file cannot be used or `index_root` cannot be written.
    """
    if not annotation_file.is_file():
        raise ValueError(f"annotation file {annotation_file} does not exist")

    def describe() -> State:
        return describe_source(annotation_file, read.__name__)

    return open_packed(annotation_file.stem, describe, lambda: read(annotation_file), index_root)


def open_packed(
    stem: str, describe: Callable[[], State], read: Callable[[], Annotations], index_root: Path
) -> SplitIndex:
    """A packed index under `index_root`, built first where it is missing or out of date.

    The folder's name holds a hash of what the index is of and one of its state: another state gets another folder, and
    a run keeps the one it opened. Several processes may ask at once: one builds under a lock, beside the final folder,
    renames, and clears away folders of earlier states that no process holds.

    Args:
        stem: Beginning of the folder's name.
        describe: Looks at the state of the annotations.
        read: Reads them.
        index_root: Where packed indexes are kept.

    Raises:
        ValueError: If the annotations cannot be used or `index_root` cannot be written.
    """
    while True:
        source = {"format": FORMAT, **describe()}
        name = f"{stem}-{short_hash(source['path'])}"
        folder = index_root / f"{name}-{short_hash(repr(sorted(source.items())))}"
        if not index_folder.is_current(folder, source):
            try:
                index_root.mkdir(parents=True, exist_ok=True)
                with index_folder.exclusive_lock(index_root / f"{name}.lock"):
                    index_folder.remove_leftovers(index_root, name)
                    if not index_folder.is_current(folder, source):
                        build_index(read(), folder, source)
                    earlier = index_root.glob(f"{glob.escape(name)}*/")
                    index_folder.remove_unused(path for path in earlier if path != folder)
            except OSError as error:
                raise ValueError(f"cannot write the dataset index under {index_root}: {error}") from error
        index = SplitIndex(folder)
        try:
            len(index)  # maps and holds it
        except FileNotFoundError:  # another run saw a later state and cleared this one away a moment ago
            continue
        return index


def short_hash(text: str) -> str:
    """Sixteen hexadecimal digits."""
    return sha256(text.encode()).hexdigest()[:16]


def describe_source(annotation_file: Path, reader: str) -> State:
    """State of a JSON file."""
    status = annotation_file.stat()
    return {
        "path": str(annotation_file.resolve()),
        "reader": reader,
        "bytes": status.st_size,
        "modified_ns": status.st_mtime_ns,
    }


def build_index(annotations: Annotations, folder: Path, source: State) -> None:
    """Write the arrays of `annotations`, with the hash of their content, into `folder`."""
    arrays = {name: getattr(annotations, name) for name in ARRAYS}
    fingerprint = sha256()
    for name in IDENTIFYING:
        fingerprint.update(arrays[name].tobytes())
    manifest = {
        "source": source,
        "fingerprint": fingerprint.hexdigest()[:32],
        "counts": asdict(annotations.counts),
        "class_names": annotations.class_names,
        "category_ids": annotations.category_ids,
        "has_clips": annotations.has_clips,
        "notes": annotations.notes,
    }
    index_folder.write_folder(folder, arrays, manifest)
