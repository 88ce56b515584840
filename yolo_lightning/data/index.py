"""An annotation file packed once into memory-mapped arrays, so that a loader worker receives a path, never a list."""

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from yolo_lightning.data.ltdv2 import BoxCounts, read_annotations
from yolo_lightning.files import flush

FORMAT = 1
ARRAYS = ("image_ids", "file_names", "shapes", "box_offsets", "boxes", "labels")
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class SplitIndex:
    """One split, read from a folder of `.npy` files that are mapped when first used.

    Pickles as its path: what was mapped stays behind, a spawned worker maps the same pages again.

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
        return {name: np.load(self.folder / f"{name}.npy", mmap_mode="r") for name in ARRAYS}

    @cached_property
    def _manifest(self) -> dict[str, Any]:
        manifest: dict[str, Any] = json.loads((self.folder / MANIFEST).read_text())
        return manifest

    @property
    def fingerprint(self) -> str:
        """Hash of the packed content; two splits with the same frames and boxes in the same order share it."""
        return str(self._manifest["fingerprint"])

    @property
    def counts(self) -> BoxCounts:
        """Boxes kept, clipped and dropped when the split was packed."""
        return BoxCounts(**self._manifest["counts"])

    def image_id(self, index: int) -> str:
        """Id of frame `index` as text."""
        return bytes(self._arrays["image_ids"][index]).decode()

    def image_ids(self) -> list[str]:
        """Ids of all frames, in order."""
        return [bytes(identifier).decode() for identifier in self._arrays["image_ids"]]

    def file_name(self, index: int) -> str:
        """File of frame `index`, relative to the dataset root."""
        return bytes(self._arrays["file_names"][index]).decode()

    def file_names(self) -> list[str]:
        """Files of all frames, in order."""
        return [bytes(name).decode() for name in self._arrays["file_names"]]

    def shape(self, index: int) -> tuple[int, int]:
        """`(height, width)` of frame `index` in pixels, as the annotation file says."""
        height, width = self._arrays["shapes"][index]
        return int(height), int(width)

    def boxes(self, index: int) -> npt.NDArray[np.float32]:
        """`(N, 4)` float32 copy, xyxy, pixels of the frame."""
        return np.array(self._arrays["boxes"][self._slice(index)])

    def labels(self, index: int) -> npt.NDArray[np.int64]:
        """`(N,)` int64 copy, class index from 0."""
        return self._arrays["labels"][self._slice(index)].astype(np.int64)

    def _slice(self, index: int) -> slice:
        start, stop = self._arrays["box_offsets"][index : index + 2]
        return slice(int(start), int(stop))


def open_index(annotation_file: Path, index_root: Path) -> SplitIndex:
    """The packed index of `annotation_file` under `index_root`, built first where it is missing or out of date.

    Several processes may ask at once: one builds under a lock, beside the final folder, and renames.

    Raises:
        ValueError: If the annotation file is not LTDv2's or `index_root` cannot be written.
    """
    if not annotation_file.is_file():
        raise ValueError(f"annotation file {annotation_file} does not exist")
    source = describe_source(annotation_file)
    key = sha256(source["path"].encode()).hexdigest()[:16]
    folder = index_root / f"{annotation_file.stem}-{key}"
    if not is_current(folder, source):
        try:
            index_root.mkdir(parents=True, exist_ok=True)
            with exclusive_lock(index_root / f"{folder.name}.lock"):
                if not is_current(folder, source):
                    build_index(annotation_file, folder, source)
        except OSError as error:
            raise ValueError(f"cannot write the dataset index under {index_root}: {error}") from error
    return SplitIndex(folder)


def describe_source(annotation_file: Path) -> dict[str, Any]:
    """What must be unchanged for an index to be current."""
    status = annotation_file.stat()
    return {
        "format": FORMAT,
        "path": str(annotation_file.resolve()),
        "bytes": status.st_size,
        "modified_ns": status.st_mtime_ns,
    }


def is_current(folder: Path, source: dict[str, Any]) -> bool:
    """Whether `folder` holds the index of exactly this source."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError):
        return False
    return isinstance(manifest, dict) and manifest.get("source") == source


def build_index(annotation_file: Path, folder: Path, source: dict[str, Any]) -> None:
    """Write the arrays and the manifest into a temporary folder, then rename it to `folder`."""
    annotations = read_annotations(annotation_file)
    temporary = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        fingerprint = sha256()
        for name in ARRAYS:
            array = getattr(annotations, name)
            np.save(temporary / f"{name}.npy", array)
            fingerprint.update(array.tobytes())
        manifest = {
            "source": source,
            "fingerprint": fingerprint.hexdigest()[:32],
            "counts": asdict(annotations.counts),
        }
        (temporary / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
        for file in temporary.iterdir():
            flush(file)
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def exclusive_lock(path: Path) -> Iterator[None]:
    """Hold an advisory lock on `path`; waits for whoever holds it. Released by the kernel if the process dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
