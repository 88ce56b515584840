"""`prepare`: decode the frames that annotation files name into a packed store."""

from pathlib import Path
from typing import Literal

import rich

from yolo_lightning.commands.prepare.pack_store import pack_store
from yolo_lightning.commands.prepare.summary import monthly_counts, save_picture, table
from yolo_lightning.data.formats.frame_checks import check_depth
from yolo_lightning.data.index.annotation_index import default_index_root, open_index
from yolo_lightning.data.storage.choose_storage import STORE, open_original
from yolo_lightning.data.storage.frames import FolderFrames
from yolo_lightning.data.storage.zip_frames import ZipFrames
from yolo_lightning.utils.files import DISK_FULL, remove_leftovers, sole_writer
from yolo_lightning.utils.host import available_cores

OFFICIAL_FILES = ("Train.json", "Valid.json", "TestNoLabels.json")
LOCK = "prepare.lock"
INTERRUPTED = 130
"""Exit code after Ctrl-C, as in shells."""


def prepare(
    root: str,
    annotations: list[str] | None = None,
    store: str | None = None,
    bucket: str | None = None,
    storage: Literal["auto", "folder", "zip"] = "auto",
    index_root: str | None = None,
    workers: int | None = None,
    shard_frames: int = 4096,
    verify: bool = False,
    summary: bool = False,
) -> None:
    """Decode the frames that annotation files name into a packed store, which is ten times faster to read.

    After a kill, an interrupt or a full disk, the same command resumes. Frames that cannot be decoded are listed and
    left out.

    Args:
        root: Dataset folder with the annotation files and `frames/` or `frames.zip`.
        annotations: Annotation files whose frames are packed, relative to `root`; null selects the existing files of
            Train.json, Valid.json and TestNoLabels.json.
        store: Folder to write; null is `packed` in `root`.
        bucket: Empty folder or URL (s3://...) to which the encoded frames are written as litdata chunks, instead of a
            packed store; requires litdata.
        storage: Storage to read, the extracted folder or frames.zip; auto selects the folder if it exists.
        index_root: Folder of the packed annotation index; null is `yolo_lightning` in the user's cache folder.
        workers: Number of decoding processes; null is the number of cores.
        shard_frames: Frames per shard file; a kill discards at most one unfinished shard per worker.
        verify: Verify the checksums of existing shards, and pack damaged shards again.
        summary: Print frames and boxes per month, and save them as a picture in the store.

    Raises:
        ValueError: If an option or the data cannot be used, the disk is too small, or another process is packing.
    """
    workers = available_cores() if workers is None else workers
    for option, value in (("workers", workers), ("shard_frames", shard_frames)):
        if value < 1:
            raise ValueError(f"{option} must be >= 1, got {value}")
    folder = Path(root).expanduser()
    if bucket and (store or verify):
        raise ValueError("store and verify must not be set with bucket")
    index_folder = Path(index_root).expanduser() if index_root else default_index_root()
    if annotations is None:
        annotations = [name for name in OFFICIAL_FILES if (folder / name).is_file()]
    if not annotations:
        raise ValueError(
            f"dataset root {folder} contains none of {', '.join(OFFICIAL_FILES)}: set annotations to other files (COCO "
            "and YOLO datasets cannot be packed; they are read without preparation)"
        )
    indexes = {name: open_index(folder / name, index_folder) for name in annotations}
    original = open_original(folder, storage, index_folder)
    frame_bytes: dict[str, int] = {}
    for index in indexes.values():
        for position, name in enumerate(index.file_names()):
            height, width = index.shape(position)
            frame_bytes[name] = height * width
    frame_bytes = dict(sorted(frame_bytes.items()))
    check_depth(list(frame_bytes), original)
    if bucket:
        write_bucket(bucket, original, list(frame_bytes), workers)
        return
    target = Path(store).expanduser() if store else folder / STORE
    try:
        target.mkdir(parents=True, exist_ok=True)
        with sole_writer(target / LOCK):
            remove_leftovers(target)
            pack_store(target, original, frame_bytes, workers, shard_frames, verify=verify)
        if summary:
            for name, index in indexes.items():
                counts = monthly_counts(index)
                picture = target / f"{Path(name).stem}.png"
                save_picture(counts, picture)
                rich.print(f"{name}, {len(index):,} frames by month, picture: {picture}", table(counts))
    except OSError as error:
        if error.errno in DISK_FULL:
            raise ValueError(
                f"no space for {target} ({error.strerror}): finished shards are kept; free some space and run prepare "
                "again"
            ) from error
        raise ValueError(f"cannot write {target}: {error}; set store to a writable folder") from error
    except KeyboardInterrupt:
        print(f"interrupted: finished shards in {target} are kept; run the same command to resume", flush=True)
        raise SystemExit(INTERRUPTED) from None


def write_bucket(bucket: str, original: FolderFrames | ZipFrames, names: list[str], workers: int) -> None:
    """Write the existing frames as litdata chunks."""
    try:
        from yolo_lightning.data.storage.litdata_frames import write_litdata
    except ImportError as error:
        raise ValueError(f"bucket requires litdata ({error}): pip install litdata") from error
    missing = set(original.missing(names))
    if len(missing) == len(names):
        raise ValueError(f"none of the {len(names):,} frames of the annotation files are in {original}")
    try:
        write_litdata(original, [name for name in names if name not in missing], bucket, workers)
    except (OSError, RuntimeError) as error:
        raise ValueError(f"cannot write {bucket}: {error}") from error
    print(f"{bucket}: {len(names) - len(missing):,} frames, {len(missing):,} missing", flush=True)
