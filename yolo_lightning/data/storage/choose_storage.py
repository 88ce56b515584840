"""Selection of the storage of LTDv2's frames."""

from pathlib import Path
from typing import Literal, get_args

import numpy as np

from yolo_lightning.data.storage.frames import BitDepthError, FolderFrames, FrameError, Storage
from yolo_lightning.data.storage.image_header import FrameLimits
from yolo_lightning.data.storage.packed_frames import MANIFEST, PackedFrames
from yolo_lightning.data.storage.zip_frames import ZipFrames

StorageKind = Literal["auto", "folder", "zip", "packed", "litdata"]
ARCHIVE = "frames.zip"
FOLDER = "frames"
STORE = "packed"
COMPARED_FRAMES = 8
"""Number of frames that are decoded to check that a packed store belongs to the dataset; takes some milliseconds."""


def open_frames(
    root: Path,
    storage: StorageKind = "auto",
    *,
    index_root: Path,
    store: str | Path | None = None,
    limits: FrameLimits = FrameLimits(),  # noqa: B008 - frozen
) -> Storage:
    """Open the storage of the frames of a dataset.

    "auto" selects the packed store, else the folder `frames`, else `frames.zip`, whose directory is packed under
    `index_root`. `store` is the packed store, None for `<root>/packed`, or the folder or URL of the litdata store.
    """
    if storage not in get_args(StorageKind):
        raise ValueError(f"data.storage must be one of {', '.join(get_args(StorageKind))}, got {storage!r}")
    if storage == "litdata":
        if store is None:
            raise ValueError("data.store must be the folder or URL of the litdata store if data.storage is litdata")
        try:
            from yolo_lightning.data.storage.litdata_frames import LitdataFrames
        except ImportError as error:
            raise ValueError(f"data.storage litdata requires litdata ({error}): pip install litdata") from error
        return LitdataFrames(str(store), index_root / "litdata", limits)
    store = root / STORE if store is None else Path(store).expanduser()
    if storage == "auto":
        storage = find_storage(root, store)
    if storage != "packed":
        return open_original(root, storage, index_root, limits)
    packed = PackedFrames(store)
    if packed.bits != limits.bits:
        remedy = "set data.pixel_range.mode" if packed.bits == 16 else "delete it and run prepare --bits 16"
        raise ValueError(f"{packed} must have frames of {limits.bits} bits as in data.pixel_range.mode: {remedy}")
    compare_with_original(packed, root, index_root, limits.bits)
    return packed


def open_original(
    root: Path,
    storage: str,
    index_root: Path,
    limits: FrameLimits = FrameLimits(),  # noqa: B008 - frozen
) -> FolderFrames | ZipFrames:
    """Open the encoded frames; "auto" selects the folder if it exists, else the archive."""
    if storage == "auto":
        storage = "zip" if (root / ARCHIVE).is_file() and not (root / FOLDER).is_dir() else "folder"
    if storage not in ("folder", "zip"):
        raise ValueError(f"storage must be one of auto, folder, zip, got {storage!r}")
    return ZipFrames(root / ARCHIVE, index_root, limits) if storage == "zip" else FolderFrames(root, limits)


def find_storage(root: Path, store: Path) -> StorageKind:
    """Return the fastest existing storage; raise `ValueError` if there is none."""
    if not root.is_dir():
        raise ValueError(f"dataset root {root} does not exist or is not a folder")
    if (store / MANIFEST).is_file():
        return "packed"
    if (root / FOLDER).is_dir():
        return "folder"
    if (root / ARCHIVE).is_file():
        return "zip"
    raise ValueError(
        f"dataset root {root} has no frames: found neither a packed store ({store / MANIFEST}), nor a folder "
        f"({root / FOLDER}), nor an archive ({root / ARCHIVE})"
    )


def compare_with_original(packed: PackedFrames, root: Path, index_root: Path, bits: Literal[8, 16]) -> None:
    """Refuse a store that was packed from other frames with the same names.

    A few frames are compared with the folder or archive, as far as they still exist: the originals may have been
    deleted to save space.
    """
    try:
        original = open_original(root, "auto", index_root, FrameLimits(bits=bits))
    except ValueError:
        return
    for name in packed.sample(COMPARED_FRAMES):
        try:
            same = np.array_equal(packed.read(name), original.read(name))
        except BitDepthError as error:
            raise ValueError(
                f"{packed} was packed from images that are not {bits}-bit images: {error}; then delete the store "
                "and run prepare"
            ) from error
        except FrameError:
            continue
        if not same:
            raise ValueError(
                f"{name} in {packed} differs from the frame in {original}: the store was packed from other frames; "
                "delete it and run prepare, or set data.store to another store"
            )
