"""Which of the places where frames can lie is read."""

from pathlib import Path
from typing import Literal

import numpy as np

from yolo_lightning.data.storage.frames import BitDepthError, FolderFrames, FrameError, FrameSource
from yolo_lightning.data.storage.packed_frames import MANIFEST, PackedFrames
from yolo_lightning.data.storage.zip_frames import ZipFrames

FrameStorage = Literal["auto", "folder", "zip", "packed", "litdata"]
ARCHIVE = "frames.zip"
FOLDER = "frames"
STORE = "packed"
COMPARED_FRAMES = 8
"""Decoded to see whether a packed store holds the frames of this dataset; some milliseconds."""


def open_frames(
    root: Path, storage: FrameStorage = "auto", *, index_root: Path, store: str | Path | None = None
) -> FrameSource:
    """The frames of the dataset under `root`.

    Args:
        root: Dataset folder.
        storage: Where they lie; "auto" takes the packed store, else the folder `frames`, else `frames.zip`.
        index_root: Where the packed table of contents of an archive is kept.
        store: The packed store, None takes `<root>/packed`; or folder or address of the litdata store.

    Raises:
        ValueError: If there are none, or they cannot be used.
    """
    if storage == "litdata":
        return open_litdata(store, index_root)
    store = root / STORE if store is None else Path(store).expanduser()
    if storage == "auto":
        storage = find_storage(root, store)
    if storage == "folder":
        return FolderFrames(root)
    if storage == "zip":
        return ZipFrames(root / ARCHIVE, index_root)
    if storage == "packed":
        packed = PackedFrames(store)
        original = find_original(root, index_root)
        if original is not None:
            compare(packed, original)
        return packed
    raise ValueError(f"data.storage is {storage!r}, allowed are auto, folder, zip, packed and litdata")


def open_litdata(store: str | Path | None, index_root: Path) -> FrameSource:
    """Frames in a bucket.

    Raises:
        ValueError: If litdata is not installed or there is no such store.
    """
    if store is None:
        raise ValueError("data.storage is litdata: name its folder or address with data.store")
    try:
        from yolo_lightning.data.storage.litdata_frames import LitdataFrames
    except ImportError as error:
        raise ValueError(f"data.storage is litdata, which is not installed ({error}): pip install litdata") from error
    return LitdataFrames(str(store), index_root / "litdata")


def find_storage(root: Path, store: Path) -> FrameStorage:
    """The fastest storage that is there.

    Raises:
        ValueError: If there is none.
    """
    if not root.is_dir():
        raise ValueError(f"dataset root {root} does not exist or is not a folder")
    if (store / MANIFEST).is_file():
        return "packed"
    if (root / FOLDER).is_dir():
        return "folder"
    if (root / ARCHIVE).is_file():
        return "zip"
    raise ValueError(
        f"dataset root {root} has no frames: looked for a packed store ({store / MANIFEST}), a folder "
        f"({root / FOLDER}) and an archive ({root / ARCHIVE})"
    )


def find_original(root: Path, index_root: Path) -> FrameSource | None:
    """What a packed store was made from, if it is still there and can be used."""
    try:
        return FolderFrames(root) if (root / FOLDER).is_dir() else ZipFrames(root / ARCHIVE, index_root)
    except ValueError:
        return None


def compare(packed: PackedFrames, original: FrameSource) -> None:
    """Refuse a store that was packed from other frames with the same names.

    Only frames that both hold are compared; the original may have been deleted to save space.

    Raises:
        ValueError: If one differs.
    """
    for name in packed.sample(COMPARED_FRAMES):
        try:
            same = np.array_equal(packed.read(name), original.read(name))
        except BitDepthError as error:
            raise ValueError(
                f"{packed} was packed from images that are not 8-bit images: {error}; then delete the store and run "
                "prepare"
            ) from error
        except FrameError:
            continue
        if not same:
            raise ValueError(
                f"{name} in {packed} is not the frame in {original}: the store was made from other frames; "
                "delete it and run prepare, or name another with data.store"
            )
