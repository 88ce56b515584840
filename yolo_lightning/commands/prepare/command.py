"""`prepare`: decode the frames that annotation files name into a packed store."""

import shutil
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Literal

import rich

from yolo_lightning.commands.command_line import wide_console
from yolo_lightning.commands.console import counter, gigabytes, name_some
from yolo_lightning.commands.contact_sheet import draw_rows
from yolo_lightning.commands.doctor.command import show_findings
from yolo_lightning.commands.doctor.machine_findings import Severity, worst
from yolo_lightning.commands.prepare.dataset_check import check_dataset
from yolo_lightning.commands.prepare.summary import tables
from yolo_lightning.data.datamodule import DetectionDataModule
from yolo_lightning.data.formats.choose_format import format_class, open_format
from yolo_lightning.data.formats.dataset_format import DatasetFormat, DatasetSettings, JsonFormat
from yolo_lightning.data.formats.frame_checks import check_depth, describe_values
from yolo_lightning.data.formats.ltdv2 import OFFICIAL_FILES, LTDv2Format
from yolo_lightning.data.formats.yolo import YoloFormat
from yolo_lightning.data.index.split_index import SplitIndex
from yolo_lightning.data.storage.choose_storage import open_original
from yolo_lightning.data.storage.image_header import FrameLimits
from yolo_lightning.data.storage.packing import (
    ShardFrames,
    complete_shards,
    damaged_frames,
    describe,
    in_processes,
    remove_shard,
    write_index,
    write_shard,
)
from yolo_lightning.data.storage.storage import STORE, EncodedStorage, StorageSettings
from yolo_lightning.utils.exit_codes import INTERRUPTED, ExitCode
from yolo_lightning.utils.files import DISK_FULL, sole_writer
from yolo_lightning.utils.host import available_cores
from yolo_lightning.utils.paths import user_path

LOCK = "prepare.lock"
SPARE_BYTES = 64 << 20  # Space that remains free for the index and for other writers on the same disk
MOST_SHARDS = 500  # Every reader keeps every shard open, and 1024 open files are a usual limit


def prepare(
    root: str | None = None,
    annotations: list[str] | None = None,
    store: str | None = None,
    storage: Literal["auto", "folder", "zip"] = "auto",
    index_root: str | None = None,
    workers: int | None = None,
    shard_frames: int = 4096,
    bits: Literal[8, 16] = 8,
    verify: bool = False,
    summary: bool = False,
    check: bool = False,
    picture: str = "dataset_check.png",
    format: str = LTDv2Format.accepted,
) -> None:
    """Decode the frames that annotation files name into a packed store, which is ten times faster to read.

    After a kill, an interrupt or a full disk, the same command resumes. Frames that cannot be decoded are listed and
    left out. With `summary`, nothing is packed: the boxes of a dataset of any format are counted.

    Args:
        root: Dataset folder with the annotation files and `frames/` or `frames.zip`; null only for a `data.yaml`.
        annotations: Annotation files whose frames are packed, relative to `root`; null selects the existing files of
            Train.json, Valid.json and TestNoLabels.json.
        store: Folder to write; null is `packed` in `root`.
        storage: Storage to read, the extracted folder or frames.zip; auto selects the folder if it exists.
        index_root: Folder of the packed annotation index; null is `yolo_lightning` in the user's cache folder.
        workers: Number of decoding processes; null is the number of cores.
        shard_frames: Frames per shard file; a kill discards at most one unfinished shard per worker.
        bits: Bits per pixel of the frames, 16 for gray PNG and TIFF files of uint16; percentiles of the pixel values of
            some frames are printed. Training with `data.input.pixel_range.mode` requires a store of 16-bit frames.
        verify: Verify the checksums of existing shards, and pack damaged shards again.
        summary: Only print the frames and boxes per month and class of each split.
        check: Only check a dataset of any format: unreadable frames, equal frames and near-duplicates in two splits,
            boxes, classes, empty frames, months and hours. Exit code 1 if a finding is bad.
        picture: PNG file for the suspicious frames of `check`.
        format: Format of the dataset for `summary` and `check`: `ltdv2`, `coco`, or the path of a `data.yaml` of
            Ultralytics. Only `ltdv2` can be packed.

    Raises:
        ValueError: If an option or the data cannot be used, the disk is too small, or another process is packing.
    """
    workers = available_cores() if workers is None else workers
    for option, value in (("workers", workers), ("shard_frames", shard_frames)):
        if value < 1:
            raise ValueError(f"{option} must be >= 1, got {value}")
    source = StorageSettings(kind=storage, index_root=index_root)
    if root is None and format_class(format) is not YoloFormat:
        raise ValueError(f"--root must be the dataset folder with --format {format}, got null")
    folder = None if root is None else user_path(root)
    dataset = open_format(DatasetSettings(folder, format, storage=StorageSettings(index_root=index_root)))
    limits = FrameLimits(bits=bits)
    if check:
        _check(DetectionDataModule(root, format, storage=source), user_path(picture))
        return
    if summary:
        indexes = _existing_indexes(dataset, annotations)
        for name, index in indexes.items():
            rich.print(f"{name}, {len(index):,} frames", *tables(index))
        if bits == 16 and "packed" in dataset.storages:
            names = [name for index in indexes.values() for name in index.file_names()]
            print(describe_values(names, open_original(dataset.root, source, limits)))
        return
    if not isinstance(dataset, JsonFormat) or "packed" not in dataset.storages:
        raise ValueError(f"format must be ltdv2, got {format}: other datasets are read without packing, see summary")
    folder = dataset.root
    indexes = _existing_indexes(dataset, annotations)
    original = open_original(folder, source, limits)
    frame_bytes: dict[str, int] = {}
    for index in indexes.values():
        for position, name in enumerate(index.file_names()):
            height, width = index.shape(position)
            frame_bytes[name] = height * width * bits // 8
    frame_bytes = dict(sorted(frame_bytes.items()))
    check_depth(list(frame_bytes), original)
    if bits == 16:
        print(describe_values(list(frame_bytes), original), flush=True)
    target = user_path(store) if store else folder / STORE
    try:
        target.mkdir(parents=True, exist_ok=True)
        with sole_writer(target / LOCK):
            _pack_store(target, original, frame_bytes, workers, shard_frames, verify=verify)
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


def _check(data: DetectionDataModule, picture: Path) -> None:
    """Print the findings of `check_dataset`; exit with code 1 if one is bad."""
    if picture.suffix.lower() != ".png":
        raise ValueError(f"picture must be a file name with the suffix .png, got {picture}")
    findings, rows = check_dataset(data)
    show_findings(wide_console(), findings)
    if rows:
        draw_rows(rows, data.class_names, picture)
        print(f"suspicious frames: {picture}")
    if worst(findings) is Severity.BAD:
        raise SystemExit(ExitCode.FAILED)


def _existing_indexes(dataset: DatasetFormat, annotations: list[str] | None) -> dict[str, SplitIndex]:
    """Return the indexes of the annotation files, or of the existing parts of a dataset, by name."""
    if annotations is not None and isinstance(dataset, JsonFormat):
        indexes = {name: dataset.open_file(name) for name in annotations}
    else:
        indexes = dataset.existing_parts()
    if not indexes:
        raise ValueError(
            f"dataset root {dataset.root} contains none of {', '.join(OFFICIAL_FILES)}: set annotations to other files "
            "(COCO and YOLO datasets cannot be packed; set format to coco or to the path of a data.yaml for summary)"
        )
    return indexes


def _pack_store(
    store: Path,
    original: EncodedStorage,
    frame_bytes: dict[str, int],
    workers: int,
    shard_frames: int,
    *,
    verify: bool,
) -> None:
    """Pack the frames that are not in the store, and write its index.

    `frame_bytes` is the size of each decoded frame by name, sorted by name. With `verify`, the checksums of existing
    shards are verified first.
    """
    source = describe(original)
    shards = _existing_shards(store, source, workers, verify=verify)
    packed = {name for frames in shards for name in frames.names}
    to_pack = [name for name in frame_bytes if name not in packed]
    missing = set(original.missing(to_pack))
    if len(missing) == len(frame_bytes):
        raise ValueError(f"none of the {len(frame_bytes):,} frames of the annotation files are in {original}")
    to_pack = [name for name in to_pack if name not in missing]
    if len(shards) + -(-len(to_pack) // shard_frames) > MOST_SHARDS:
        least = -(-len(to_pack) // max(1, MOST_SHARDS - len(shards)))
        raise ValueError(
            f"shard_frames must be >= {least} so that {len(to_pack):,} frames need at most {MOST_SHARDS} shards, got "
            f"{shard_frames}"
        )
    needed_bytes = sum(frame_bytes[name] for name in to_pack)
    free_bytes = shutil.disk_usage(store).free
    if needed_bytes and free_bytes < needed_bytes + SPARE_BYTES:
        raise ValueError(
            f"packing into {store} needs {gigabytes(needed_bytes + SPARE_BYTES)}, {gigabytes(free_bytes)} are free: "
            "free some space, or set store to a folder on another disk"
        )
    print(f"packing {len(to_pack):,} frames of {original} into {store}, which has {len(packed):,} already", flush=True)

    damaged: dict[str, str] = {}
    tasks = [to_pack[start : start + shard_frames] for start in range(0, len(to_pack), shard_frames)]
    write = partial(write_shard, store, original, source)
    written = in_processes(write, tasks, min(workers, max(1, len(tasks))))
    with counter("packed", len(to_pack)) as advance, closing(written):
        for task, (shard, reasons) in written:
            damaged |= reasons
            shards += [shard] if shard else []
            advance(len(task))
    if not shards:
        raise ValueError(f"none of the {len(to_pack):,} frames of {original} can be used: {name_some(damaged)}")
    manifest = write_index(store, shards, damaged, source)
    size_bytes = sum(shard.bytes for shard in manifest.shards)
    print(f"{store}: {sum(shard.frames for shard in manifest.shards):,} frames, {gigabytes(size_bytes)}", flush=True)
    if damaged:
        print(f"left out {len(damaged):,} damaged frames: {name_some(damaged)}", flush=True)
    if missing:
        print(f"left out {len(missing):,} missing frames: {name_some(sorted(missing))}", flush=True)


def _existing_shards(store: Path, source: dict[str, str], workers: int, *, verify: bool) -> list[ShardFrames]:
    """Return the complete shards of earlier runs, and delete the others."""
    shards, broken = complete_shards(store)
    other = next((frames.source for frames in shards if frames.source != source), None)
    if other is not None:
        found, expected = (", ".join(f"{key} {value}" for key, value in one.items()) for one in (other, source))
        raise ValueError(
            f"{store} was packed from {found}, not from {expected}: delete it, or set store to another folder"
        )
    for file in broken:
        print(f"{store / file} is incomplete: its frames are packed again", flush=True)
        remove_shard(store, file)
    if not verify:
        return shards
    intact: list[ShardFrames] = []
    checked = in_processes(partial(damaged_frames, store), shards, workers)
    with counter("verified", sum(frames.shard.frames for frames in shards)) as advance, closing(checked):
        for frames, names in checked:
            advance(frames.shard.frames)
            if names:
                print(f"{store / frames.shard.file} is damaged ({name_some(names)}): packed again", flush=True)
                remove_shard(store, frames.shard.file)
            else:
                intact.append(frames)
    return intact
