"""Folders of `.npy` arrays that are complete or absent and never change, and a search by name.

A folder is written to a temporary folder, flushed and renamed.
"""

import fcntl
import json
import shutil
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from yolo_lightning.data.array_types import AnyArray, BytesArray
from yolo_lightning.errors import UserError
from yolo_lightning.utils.files import flush, replacing
from yolo_lightning.utils.json_record import read_json
from yolo_lightning.utils.paths import shortened, unicode_forms

MANIFEST = "manifest.json"
LONGEST_STEM = 100  # bytes; file systems accept names of 255, also of temporary folders
Arrays = dict[str, AnyArray]
State = dict[str, Any]
"""Plain JSON that must be unchanged for a folder to be current; `path` identifies the source of the arrays."""


def open_folder(index_root: Path, stem: str, source: State, build: Callable[[], tuple[Arrays, dict[str, Any]]]) -> Path:
    """Return the folder under `index_root` with the arrays of a source; build the folder if its state has none yet.

    The name of the folder contains `stem`, a hash of the source's path and a hash of its state. A changed source
    therefore gets a new folder, and a run keeps the folder that it opened. Of several processes, one builds under a
    lock.

    Args:
        index_root: Parent of the folder.
        stem: Beginning of the name.
        source: Present state of the source.
        build: Returns the arrays by file stem, and further entries of the manifest.
    """
    name = f"{shortened(stem, LONGEST_STEM)}-{_short_hash(source['path'])}"
    folder = index_root / f"{name}-{_short_hash(repr(sorted(source.items())))}"
    if not is_current(folder, source):
        try:
            with sole_builder(index_root, name):
                if not is_current(folder, source):
                    arrays, facts = build()
                    write_folder(folder, arrays, {"source": source, **facts})
        except OSError as error:
            raise UserError(
                f"cannot write the index of {source['path']} under data.storage.index_root {index_root}: {error}. "
                "Set data.storage.index_root to a writable folder with free space"
            ) from error
    return folder


def _short_hash(text: str) -> str:
    return sha256(encode(text)).hexdigest()[:16]


def mapped(folder: Path, names: Iterable[str]) -> Arrays:
    """Return arrays of a folder by name, mapped from their files, read-only."""
    return {name: np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r")) for name in names}


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a folder, empty if it is missing or unreadable."""
    try:
        manifest = read_json(folder / MANIFEST)
    except (OSError, ValueError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


def is_current(folder: Path, source: Mapping[str, Any]) -> bool:
    """Return whether `folder` was made from exactly this source and its files have the sizes they were written with."""
    manifest = read_manifest(folder)
    if manifest.get("source") != source:
        return False
    try:
        return all((folder / name).stat().st_size == size for name, size in manifest["file_bytes"].items())
    except (OSError, KeyError, AttributeError, TypeError):
        return False


def write_folder(folder: Path, arrays: Mapping[str, AnyArray], manifest: Mapping[str, Any]) -> None:
    """Write arrays by file stem and a JSON manifest into a temporary folder, then rename it to `folder`.

    A damaged `folder` is replaced. The caller holds the lock on the folder's name. `file_bytes` is added.
    """
    with replacing(folder) as temporary:
        temporary.mkdir()
        file_bytes = {}
        for name, array in arrays.items():
            np.save(temporary / f"{name}.npy", array)
            file_bytes[f"{name}.npy"] = (temporary / f"{name}.npy").stat().st_size
        (temporary / MANIFEST).write_text(json.dumps({**manifest, "file_bytes": file_bytes}, indent=2) + "\n")
        for file in temporary.iterdir():
            flush(file)
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def sole_builder(parent: Path, name: str) -> Iterator[None]:
    """Wait for and hold the lock on folders `name...`; the kernel releases it with the process."""
    parent.mkdir(parents=True, exist_ok=True)
    with (parent / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class NameTable:
    """Position of each name in an array of sorted, unique UTF-8 bytes, which may be mapped from a file.

    A name is found in each of its `unicode_forms`.
    """

    def __init__(self, names: BytesArray) -> None:
        self.names = np.asarray(names)

    def __len__(self) -> int:
        return len(self.names)

    def find(self, name: str) -> int | None:
        names: Sequence[Any] = self.names  # type: ignore[assignment]
        for key in map(encode, unicode_forms(name)):
            position = bisect_left(names, key)
            if position < len(names) and bytes(names[position]) == key:
                return position
        return None

    def absent(self, names: Iterable[str]) -> list[str]:
        """Return the elements of `names` that are not in the array, in their order."""
        return [name for name in names if self.find(name) is None]


def encode(name: str) -> bytes:
    """Encode as UTF-8; text that is not valid UTF-8 matches no file name instead of raising an error."""
    return name.encode("utf-8", errors="surrogatepass")
