"""`prepare`: decode the frames that annotation files name into a packed store."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import rich

from yolo_lightning.commands.prepare.pack_store import explain, pack_store
from yolo_lightning.commands.prepare.summary import monthly_counts, table
from yolo_lightning.commands.prepare.summary_plot import save_picture
from yolo_lightning.data.formats.frame_checks import check_depth
from yolo_lightning.data.index.annotation_index import SplitIndex, default_index_root, open_index
from yolo_lightning.data.storage.choose_storage import ARCHIVE, FOLDER, STORE
from yolo_lightning.data.storage.frames import FolderFrames
from yolo_lightning.data.storage.zip_frames import ZipFrames
from yolo_lightning.utils.exit_codes import INTERRUPTED
from yolo_lightning.utils.files import remove_leftovers, sole_writer
from yolo_lightning.utils.host import available_cores

OFFICIAL_FILES = ("Train.json", "Valid.json", "TestNoLabels.json")
LOCK = "prepare.lock"


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

    A run that was killed, interrupted or stopped by a full disk is continued by the same command. Frames that cannot be
    decoded are listed and left out.

    Args:
        root: Dataset folder that holds the annotation files and `frames/` or `frames.zip`.
        annotations: Annotation files whose frames are packed, relative to `root`; null takes those of Train.json,
            Valid.json and TestNoLabels.json that are there.
        store: Folder to write; null takes `packed` in `root`.
        bucket: Instead of a packed store write the frames as they are, in litdata chunks, to this empty folder or
            address (s3://...); needs the extra litdata.
        storage: What to read: the extracted folder or frames.zip; auto takes the folder where it is there.
        index_root: Folder of the packed annotation index; null takes `yolo_lightning` in the user's cache folder.
        workers: Processes that decode; null takes one per core.
        shard_frames: Frames per shard file; a run that is killed loses at most one unfinished shard per worker.
        verify: Compare what is packed already with its checksums and pack damaged shards again.
        summary: Also print frames and boxes per month and save them as a picture in the store.

    Raises:
        ValueError: If an option or the data cannot be used, the disk is too small, or another process is packing.
    """
    workers = available_cores() if workers is None else workers
    for option, value in (("workers", workers), ("shard_frames", shard_frames)):
        if value < 1:
            raise ValueError(f"{option} is {value}, allowed are 1 and more")
    folder = Path(root).expanduser()
    if bucket and (store or verify):
        raise ValueError(f"bucket is {bucket!r}: store and verify belong to packed stores")
    index_folder = Path(index_root).expanduser() if index_root else default_index_root()
    indexes = open_indexes(folder, annotations, index_folder)
    source = open_original(folder, storage, index_folder)
    sizes = frame_bytes(indexes.values())
    check_depth(list(sizes), source)
    if bucket:
        write_bucket(bucket, source, sizes, workers)
        return
    target = Path(store).expanduser() if store else folder / STORE
    try:
        target.mkdir(parents=True, exist_ok=True)
        with sole_writer(target / LOCK):
            remove_leftovers(target)
            pack_store(target, source, sizes, workers, shard_frames, verify=verify)
        if summary:
            summarise(indexes, target)
    except OSError as error:
        raise ValueError(explain(error, target)) from error
    except KeyboardInterrupt:
        print(f"interrupted: finished shards in {target} are kept, the same command continues", flush=True)
        raise SystemExit(INTERRUPTED) from None


def open_indexes(root: Path, annotations: Sequence[str] | None, index_root: Path) -> dict[str, SplitIndex]:
    """The index of each annotation file, by its name.

    Raises:
        ValueError: If there is none, or one cannot be used.
    """
    if annotations is None:
        annotations = [name for name in OFFICIAL_FILES if (root / name).is_file()]
    if not annotations:
        raise ValueError(
            f"dataset root {root} holds none of {', '.join(OFFICIAL_FILES)}: name others with annotations; COCO and "
            "YOLO datasets (data.format) are not packed, they are read as they are"
        )
    return {name: open_index(root / name, index_root) for name in annotations}


def open_original(root: Path, storage: str, index_root: Path) -> FolderFrames | ZipFrames:
    """The folder or the archive that is read.

    Raises:
        ValueError: If there is neither, or it cannot be used.
    """
    if storage == "auto":
        storage = "zip" if (root / ARCHIVE).is_file() and not (root / FOLDER).is_dir() else "folder"
    if storage not in ("folder", "zip"):
        raise ValueError(f"storage is {storage!r}, allowed are auto, folder and zip")
    return ZipFrames(root / ARCHIVE, index_root) if storage == "zip" else FolderFrames(root)


def frame_bytes(indexes: Iterable[SplitIndex]) -> dict[str, int]:
    """Size of each named frame when it is packed, by name, in the order of the names."""
    sizes: dict[str, int] = {}
    for index in indexes:
        for position, name in enumerate(index.file_names()):
            height, width = index.shape(position)
            sizes[name] = height * width
    return dict(sorted(sizes.items()))


def write_bucket(bucket: str, source: FolderFrames | ZipFrames, sizes: dict[str, int], workers: int) -> None:
    """Write the named frames that the source holds as litdata chunks.

    Raises:
        ValueError: If litdata is not installed, or no frame is there, or `bucket` cannot be written.
    """
    try:
        from yolo_lightning.data.storage.litdata_frames import write_litdata
    except ImportError as error:
        raise ValueError(f"bucket needs litdata, which is not installed ({error}): pip install litdata") from error
    missing = set(source.missing(sizes))
    if len(missing) == len(sizes):
        raise ValueError(f"none of the {len(sizes):,} frames that the annotation files name is in {source}")
    try:
        write_litdata(source, [name for name in sizes if name not in missing], bucket, workers)
    except (OSError, RuntimeError) as error:
        raise ValueError(f"cannot write {bucket}: {error}") from error
    print(f"{bucket} holds {len(sizes) - len(missing):,} frames, {len(missing):,} are missing", flush=True)


def summarise(indexes: dict[str, SplitIndex], folder: Path) -> None:
    """Print frames and boxes per month of each annotation file and draw them into `folder`.

    Raises:
        OSError: If the picture cannot be written.
    """
    for name, index in indexes.items():
        counts = monthly_counts(index)
        picture = folder / f"{Path(name).stem}.png"
        save_picture(counts, picture)
        rich.print(f"{name}, {len(index):,} frames by month, drawn in {picture}", table(counts))
