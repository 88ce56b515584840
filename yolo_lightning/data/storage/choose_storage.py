"""Selection of the storage of LTDv2's frames."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from yolo_lightning.data.storage.folder_frames import FOLDER, FolderFrames, check_root
from yolo_lightning.data.storage.frames import BitDepthError, FrameError
from yolo_lightning.data.storage.image_header import FrameLimits
from yolo_lightning.data.storage.packed_frames import MANIFEST, PackedFrames
from yolo_lightning.data.storage.storage import EncodedStorage, Storage
from yolo_lightning.data.storage.storage_settings import StorageSettings
from yolo_lightning.data.storage.zip_frames import ARCHIVE, ZipFrames
from yolo_lightning.errors import UserError
from yolo_lightning.utils.suggestions import missing

ENCODED: tuple[type[EncodedStorage], ...] = (FolderFrames, ZipFrames)
ENCODED_KINDS = [storage.kind for storage in ENCODED]
STORAGES: tuple[type[Storage], ...] = (PackedFrames, *ENCODED)
"""All storages, the fastest first. A new storage is a class in this list and a name in `StorageKind`."""

DOWNLOAD = (
    "LTDv2 (about 49 GB, CC BY-NC 4.0) is downloaded with: pip install huggingface_hub; "
    "hf download vapaau/LTDv2 --repo-type dataset --local-dir LTDv2; data.root is then LTDv2/data"
)
"""Commands for a user whose files are missing; the program downloads nothing."""

COMPARED_FRAMES = 8
"""Number of frames that are decoded to check that a packed store belongs to the dataset; takes some milliseconds."""


def open_frames(
    root: Path,
    settings: StorageSettings,
    limits: FrameLimits = FrameLimits(),  # noqa: B008 - frozen
) -> Storage:
    """Open the storage of the frames of a dataset; kind `auto` selects the first of `STORAGES` that exists."""
    if settings.kind == "auto":
        check_root(root, DOWNLOAD)
    for storage in STORAGES:
        if settings.kind == storage.kind or (settings.kind == "auto" and storage.exists(root, settings)):
            opened = storage.open(root, settings, limits)
            if isinstance(opened, PackedFrames):
                _compare_with_original(opened, root, settings, limits)
            return opened
    raise UserError(
        f"dataset root {root} has no frames: found neither a packed store ({settings.store_in(root) / MANIFEST}), nor "
        f"an archive ({root / ARCHIVE}), and the folder {root / FOLDER} {missing(root / FOLDER)} {DOWNLOAD}"
    )


def open_original(
    root: Path,
    settings: StorageSettings,
    limits: FrameLimits = FrameLimits(),  # noqa: B008 - frozen
) -> EncodedStorage:
    """Open the image files; kind `auto` selects the folder if it exists, else the archive."""
    for storage in ENCODED:
        if settings.kind == storage.kind or (settings.kind not in ENCODED_KINDS and storage.exists(root, settings)):
            return storage.open(root, settings, limits)
    return FolderFrames.open(root, settings, limits)


def _compare_with_original(packed: PackedFrames, root: Path, settings: StorageSettings, limits: FrameLimits) -> None:
    """Refuse a store that was packed from other frames with the same names.

    A few frames are compared with the folder or archive, as far as they still exist: the originals may have been
    deleted to save space.
    """
    try:
        original = open_original(root, replace(settings, kind="auto"), FrameLimits(bits=limits.bits))
    except UserError:
        return
    for name in packed.sample(COMPARED_FRAMES):
        try:
            same = np.array_equal(packed.read(name), original.read(name))
        except BitDepthError as error:
            raise UserError(
                f"{packed} was packed from images that are not {limits.bits}-bit images: {error}; then delete the "
                "store and run prepare"
            ) from error
        except FrameError:
            continue
        if not same:
            raise UserError(
                f"{name} in {packed} differs from the frame in {original}: the store was packed from other frames; "
                "delete it and run prepare, or set data.storage.store to another store"
            )
