"""Folders of `.npy` arrays that are whole or not there, never change, and stay while somebody uses them.

A folder is written aside, flushed and renamed. Who reads it holds a shared `flock` on its manifest, so that whoever
clears away old folders, of this run or another, sees that it is in use. The kernel releases the lock of a dead process.
"""

import fcntl
import glob
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from yolo_lightning.utils.files import flush

MANIFEST = "manifest.json"


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a folder, empty where there is none that can be read."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


def is_current(folder: Path, source: Mapping[str, Any]) -> bool:
    """Whether `folder` was made from exactly this source and its files still have the sizes they were written with."""
    manifest = read_manifest(folder)
    if manifest.get("source") != source:
        return False
    try:
        return all((folder / name).stat().st_size == size for name, size in manifest["file_bytes"].items())
    except (OSError, KeyError):
        return False


def write_folder(folder: Path, arrays: Mapping[str, npt.NDArray[Any]], manifest: Mapping[str, Any]) -> None:
    """Write arrays and manifest into a temporary folder, then rename it to `folder`.

    A damaged `folder` is moved out of the way. The caller holds the lock on its name.

    Args:
        folder: Where the arrays are to lie.
        arrays: By the stem of their file.
        manifest: What to know about them; `file_bytes` is added.
    """
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        file_bytes = {}
        for name, array in arrays.items():
            np.save(temporary / f"{name}.npy", array)
            file_bytes[f"{name}.npy"] = (temporary / f"{name}.npy").stat().st_size
        (temporary / MANIFEST).write_text(json.dumps({**manifest, "file_bytes": file_bytes}, indent=2) + "\n")
        temporary.chmod(0o755)  # mkdtemp makes it private; another user may share the index
        for file in (*temporary.iterdir(), temporary):
            flush(file)
        if folder.exists():
            remove(folder)
        os.replace(temporary, folder)
        flush(folder.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def hold(folder: Path) -> int:
    """Take a shared lock on a folder; returns the open descriptor whose closing releases it.

    Raises:
        FileNotFoundError: If the folder is not there (any more).
    """
    descriptor = os.open(folder / MANIFEST, os.O_RDONLY)
    with suppress(OSError):  # a file system without locks, where nothing is ever cleared away either
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def remove_unused(folders: Iterator[Path]) -> None:
    """Delete those folders that nobody holds."""
    for folder in folders:
        try:
            descriptor = os.open(folder / MANIFEST, os.O_RDWR)  # NFS locks exclusively only what may be written
        except OSError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove(folder)
        except OSError:  # held, or not ours to delete
            continue
        finally:
            os.close(descriptor)


def remove(folder: Path) -> None:
    """Take a folder out of sight at once, then delete it."""
    doomed = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        os.replace(folder, doomed)
    finally:
        shutil.rmtree(doomed, ignore_errors=True)


def remove_leftovers(parent: Path, name: str) -> None:
    """Delete what killed writers of folders called `name...` left behind; the caller holds the lock on the name."""
    for path in parent.glob(f".{glob.escape(name)}*"):
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def exclusive_lock(path: Path) -> Iterator[None]:
    """Hold an advisory lock on `path`; waits for whoever holds it. Released by the kernel if the process dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
