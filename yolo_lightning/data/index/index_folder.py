"""Folders of `.npy` arrays that are complete or absent, never change, and are not deleted while in use; name search.

A folder is written to a temporary folder, flushed and renamed. A reader holds a shared `flock` on the manifest, by
which any process that deletes old folders recognizes a folder in use. The kernel releases the lock of a dead process.
"""

import fcntl
import glob
import json
import os
import shutil
import tempfile
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from yolo_lightning.utils.files import flush
from yolo_lightning.utils.json_record import read_json

MANIFEST = "manifest.json"
NamesArray = npt.NDArray[np.bytes_]


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


def write_folder(folder: Path, arrays: Mapping[str, npt.NDArray[Any]], manifest: Mapping[str, Any]) -> None:
    """Write arrays by file stem and a JSON manifest into a temporary folder, then rename it to `folder`.

    A damaged `folder` is replaced. The caller holds the lock on the folder's name. `file_bytes` is added.
    """
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        file_bytes = {}
        for name, array in arrays.items():
            np.save(temporary / f"{name}.npy", array)
            file_bytes[f"{name}.npy"] = (temporary / f"{name}.npy").stat().st_size
        (temporary / MANIFEST).write_text(json.dumps({**manifest, "file_bytes": file_bytes}, indent=2) + "\n")
        temporary.chmod(0o755)  # mkdtemp makes a private folder; another user may share the index
        for file in (*temporary.iterdir(), temporary):
            flush(file)
        if folder.exists():
            remove(folder)
        os.replace(temporary, folder)
        flush(folder.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def hold(folder: Path) -> int:
    """Take a shared lock on a folder; return the open descriptor, which releases the lock when it is closed."""
    descriptor = os.open(folder / MANIFEST, os.O_RDONLY)
    with suppress(OSError):  # file system without locks; `remove_unused` deletes nothing there
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def remove_unused(folders: Iterable[Path]) -> None:
    """Delete the folders on which no process holds a lock."""
    for folder in folders:
        try:
            descriptor = os.open(folder / MANIFEST, os.O_RDWR)  # NFS requires write access for an exclusive lock
        except OSError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove(folder)
        except OSError:  # in use, or permission denied
            continue
        finally:
            os.close(descriptor)


def remove(folder: Path) -> None:
    """Rename a folder to a hidden name, so that it disappears at once, then delete it."""
    doomed = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        os.replace(folder, doomed)
    finally:
        shutil.rmtree(doomed, ignore_errors=True)


def remove_leftovers(parent: Path, name: str) -> None:
    """Delete temporary folders of killed writers of folders `name...`; the caller holds the lock on the name."""
    for path in parent.glob(f".{glob.escape(name)}*"):
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def sole_builder(parent: Path, name: str) -> Iterator[None]:
    """Wait for and hold the lock on folders `name...`, without leftovers; the kernel releases it with the process."""
    parent.mkdir(parents=True, exist_ok=True)
    with (parent / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        remove_leftovers(parent, name)
        yield


class NameTable:
    """Position of each name in an array of sorted, unique UTF-8 bytes, which may be mapped from a file."""

    def __init__(self, names: NamesArray) -> None:
        self.names = np.asarray(names)

    def __len__(self) -> int:
        return len(self.names)

    def find(self, name: str) -> int | None:
        key = encode(name)
        names: Sequence[Any] = self.names  # type: ignore[assignment]
        position = bisect_left(names, key)
        return position if position < len(names) and bytes(names[position]) == key else None

    def inside(self, folders: Iterable[str]) -> list[str]:
        """Return the names of the files directly in `folders`, in the order of the folders, then sorted."""
        found: list[str] = []
        for folder in folders:
            prefix, after = (f"{folder}/", f"{folder}0") if folder else ("", "\U0010ffff")  # "0" follows "/"
            bounds = np.array([encode(prefix), encode(after)], dtype=self.names.dtype)  # truncates long names
            start, stop = np.searchsorted(self.names, bounds)
            names = [decoded(name) for name in self.names[start:stop]]
            found += [name for name in names if name.startswith(prefix) and "/" not in name[len(prefix) :]]
        return found

    def absent(self, names: Iterable[str]) -> list[str]:
        """Return the elements of `names` that are not in the array, in their order."""
        wanted = list(names)
        if not wanted or not len(self):
            return wanted
        keys = [encode(name) for name in wanted]
        array = np.array(keys, dtype=self.names.dtype)  # truncates longer names, which the lengths reveal
        positions = np.searchsorted(self.names, array).clip(max=len(self) - 1)
        lengths = np.array([len(key) for key in keys])
        present = (self.names[positions] == array) & (np.char.str_len(array) == lengths)
        return [wanted[position] for position in np.flatnonzero(~present)]


def encode(name: str) -> bytes:
    """Encode as UTF-8; text that is not valid UTF-8 matches no file name instead of raising an error."""
    return name.encode("utf-8", errors="surrogatepass")


def decoded(name: np.bytes_) -> str:
    """Return the text of an element of a `NamesArray`, the inverse of `encode`."""
    return bytes(name).decode("utf-8", errors="surrogatepass")
