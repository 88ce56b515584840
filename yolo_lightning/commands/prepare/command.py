"""`prepare`: decode the frames that annotation files name into a packed store; sections of the command."""

import shutil
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from yolo_lightning.commands.command_line import wide_console
from yolo_lightning.commands.console import check_writable, counter, gigabytes
from yolo_lightning.commands.doctor.command import show_findings
from yolo_lightning.commands.doctor.machine_findings import Severity, worst
from yolo_lightning.commands.prepare.convert import convert
from yolo_lightning.data.formats.choose_format import format_class, open_format
from yolo_lightning.data.formats.dataset_format import DatasetSettings
from yolo_lightning.data.formats.frame_checks import check_depth, describe_values
from yolo_lightning.data.formats.ltdv2 import OFFICIAL_FILES, LTDv2Format
from yolo_lightning.data.formats.yolo import YoloFormat
from yolo_lightning.data.layouts.choose_layout import check_layout, refuse_other_layout
from yolo_lightning.data.storage.choose_storage import DOWNLOAD, ENCODED, open_original
from yolo_lightning.data.storage.image_header import FrameLimits
from yolo_lightning.data.storage.packing import (
    ShardFrames,
    complete_shards,
    damaged_frames,
    describe,
    has_equal_frames,
    in_threads,
    remove_shard,
    write_index,
    write_shard,
)
from yolo_lightning.data.storage.storage import EncodedStorage
from yolo_lightning.data.storage.storage_settings import STORE, StorageSettings
from yolo_lightning.errors import UserError
from yolo_lightning.utils.choices import check_range
from yolo_lightning.utils.exit_codes import INTERRUPTED, ExitCode
from yolo_lightning.utils.files import DISK_FULL, sole_writer
from yolo_lightning.utils.host import available_cores
from yolo_lightning.utils.message_filters import hide_harmless_messages
from yolo_lightning.utils.paths import real_path, user_path
from yolo_lightning.utils.plain_text import name_some

LOCK = "prepare.lock"
SPARE_BYTES = 64 << 20  # Space that remains free for the index and for other writers on the same disk
SHARD_FRAMES = 4096  # A kill discards at most one unfinished shard per worker
MOST_SHARDS = 500  # Every reader keeps every shard open, and 1024 open files are a usual limit


def pack_frames(
    root: str | None = None,
    annotations: list[str] | None = None,
    store: str | None = None,
    storage: Literal["auto", "folder", "zip"] = "auto",
    index_root: str | None = None,
    workers: int | None = None,
    bits: Literal[8, 16] = 8,
    verify: bool = False,
    check: bool = False,
    picture: str | None = None,
    format: str = LTDv2Format.accepted,
) -> None:
    """Decode the frames that annotation files name into a packed store, which is ten times faster to read.

    After a kill, an interrupt or a full disk, the same command resumes. Frames that cannot be decoded are listed and
    left out. `prepare convert FOLDER OUT` converts a dataset of another layout: see `prepare convert --help`.

    Args:
        root: Dataset folder with the annotation files and `frames/` or `frames.zip`; null only for a `data.yaml`.
        annotations: Annotation files whose frames are packed, relative to `root`; null selects the existing files of
            Train.json, Valid.json and TestNoLabels.json.
        store: Folder to write; null is `packed` in `root`.
        storage: Storage to read, the extracted folder or frames.zip; auto selects the folder if it exists. `check`
            reads the packed store if there is neither.
        index_root: Folder of the packed annotation index; null is `yolo_lightning` in the user's cache folder.
        workers: Number of decoding threads; null is the number of cores.
        bits: Bits per pixel of the frames, 16 for gray PNG and TIFF files of uint16; percentiles of the pixel values of
            some frames are printed. Training with `data.input.pixel_range.mode` requires a store of 16-bit frames. With
            `check`, each frame is mapped by its own percentiles.
        verify: Verify the checksums of existing shards, and pack damaged shards again.
        check: Only check a dataset of any format: unreadable frames, equal frames and near-duplicates in two splits,
            boxes, classes, empty frames, months and hours. Exit code 1 if a finding is bad.
        picture: PNG file for the suspicious frames of `check`; null: a file beside the index of the dataset.
        format: Format of the dataset for `check`: `ltdv2`, `coco`, or the path of a `data.yaml` of
            Ultralytics. Only `ltdv2` can be packed.

    Raises:
        UserError: If an option or the data cannot be used, the disk is too small, or another process is packing.
    """
    if workers is None:
        workers = available_cores()
    check_range("workers", workers, ">= 1")
    source = StorageSettings(kind=storage, index_root=index_root)
    if root is None and format_class(format) is not YoloFormat:
        raise UserError(f"--root must be the dataset folder with --format {format}, got null")
    if check:
        _check(root, format, replace(source, store=store), bits, picture)
        return
    if format != LTDv2Format.accepted:
        raise UserError(f"format must be ltdv2, got {format}: other datasets are read without packing, see --check")
    folder = user_path(str(root))
    names = annotations
    if names is None:
        names = [name for name in OFFICIAL_FILES if (folder / name).is_file()]
    if not names:
        refuse_other_layout("--root", folder)
        raise UserError(
            f"dataset root {folder} contains none of {', '.join(OFFICIAL_FILES)}: set annotations to other files "
            f"(COCO and YOLO datasets cannot be packed; set format to coco or to the path of a data.yaml for --check)."
            f" {DOWNLOAD}"
        )
    frame_bytes = _frame_bytes(folder, names, index_root, bits)
    original = open_original(folder, source, FrameLimits(bits=bits))
    check_depth(list(frame_bytes), original)
    if bits == 16:
        print(describe_values(list(frame_bytes), original), flush=True)
    target = user_path(store) if store else folder / STORE
    try:
        target.mkdir(parents=True, exist_ok=True)
        with sole_writer(target / LOCK):
            _pack_store(target, original, frame_bytes, workers, verify=verify)
    except OSError as error:
        if error.errno in DISK_FULL:
            raise UserError(
                f"no space for {target} ({error.strerror}): finished shards are kept; free some space and run prepare "
                "again"
            ) from error
        raise UserError(f"cannot write {target}: {error}; set store to a writable folder") from error
    except KeyboardInterrupt:
        print(f"interrupted: finished shards in {target} are kept; run the same command to resume", flush=True)
        raise SystemExit(INTERRUPTED) from None


prepare = {"": pack_frames, "convert": convert}
"""Functions of the command by section; the section without a name has the options of `prepare` itself."""


def _frame_bytes(folder: Path, annotations: Sequence[str], index_root: str | None, bits: int) -> dict[str, int]:
    """Return the size of each decoded frame of annotation files by name, sorted by name."""
    settings = DatasetSettings(folder, LTDv2Format.accepted, storage=StorageSettings(index_root=index_root))
    dataset = LTDv2Format(settings)
    sizes: dict[str, int] = {}
    for index in [dataset.open_file(name) for name in annotations]:
        for position, name in enumerate(index.file_names()):
            height, width = index.shape(position)
            sizes[name] = height * width * bits // 8
    return dict(sorted(sizes.items()))


def _check(root: str | None, format: str, source: StorageSettings, bits: int, picture: str | None) -> None:
    """Print the findings of `check_dataset`; exit with code 1 if one is bad."""
    if root is not None and source.kind == "auto":
        # A packed store contains pixels only, in which damaged JPEG data cannot be recognized.
        originals = [storage.kind for storage in ENCODED if storage.exists(user_path(root), source)]
        source = replace(source, kind=originals[0] if originals else "auto")
    settings = DatasetSettings(None if root is None else user_path(root), format, storage=source)
    check_layout(settings)
    dataset = open_format(settings)
    dataset.check_files("train")
    file = source.index_folder / f"{real_path(dataset.root).name}-check.png"
    if picture is not None:
        file = user_path(picture)
    check_writable(file, ".png")
    from yolo_lightning.commands.contact_sheet import draw_rows  # imports torch
    from yolo_lightning.commands.prepare.dataset_check import check_dataset
    from yolo_lightning.data.datamodule import DetectionDataModule
    from yolo_lightning.data.input_settings import InputSettings
    from yolo_lightning.data.transforms.pixel_range import PixelRange

    hide_harmless_messages()
    # Percentiles of each frame, because the range of the camera is unknown.
    pixel_range = PixelRange("frame") if bits == 16 else PixelRange()
    data = DetectionDataModule(root, format, storage=source, input=InputSettings(pixel_range=pixel_range))
    findings, rows = check_dataset(data)
    show_findings(wide_console(), findings)
    if rows:
        draw_rows(rows, data.class_names, file)
        print(f"suspicious frames: {file}")
    if worst(findings) is Severity.BAD:
        raise SystemExit(ExitCode.FAILED)


def _pack_store(
    store: Path,
    original: EncodedStorage,
    frame_bytes: dict[str, int],
    workers: int,
    *,
    verify: bool,
) -> None:
    """Pack the frames that are not in the store, and write its index.

    `frame_bytes` is the size of each decoded frame by name, sorted by name. With `verify`, the checksums of existing
    shards are verified first.
    """
    shards = _existing_shards(store, original, workers, verify=verify)
    source = shards[0].source if shards else describe(original)
    packed = {name for frames in shards for name in frames.names}
    unpacked = [name for name in frame_bytes if name not in packed]
    missing = set(original.missing(unpacked))
    if len(missing) == len(frame_bytes):
        raise UserError(f"none of the {len(frame_bytes):,} frames of the annotation files are in {original}")
    to_pack = [name for name in unpacked if name not in missing]
    _check_space(store, sum(frame_bytes[name] for name in to_pack))
    print(f"packing {len(to_pack):,} frames of {original} into {store}, which has {len(packed):,} already", flush=True)

    damaged: dict[str, str] = {}
    shard_frames = max(SHARD_FRAMES, -(-len(to_pack) // max(1, MOST_SHARDS - len(shards))))
    tasks = [to_pack[start : start + shard_frames] for start in range(0, len(to_pack), shard_frames)]
    write = partial(write_shard, store, original, source)
    written = in_threads(write, tasks, min(workers, max(1, len(tasks))))
    with counter("packed", len(to_pack)) as advance, closing(written):
        for task, (shard, reasons) in written:
            damaged |= reasons
            if shard:
                shards.append(shard)
            advance(len(task))
    if not shards:
        raise UserError(f"none of the {len(to_pack):,} frames of {original} can be used: {name_some(damaged)}")
    manifest = write_index(store, shards, damaged, source)
    size_bytes = sum(shard.bytes for shard in manifest.shards)
    print(f"{store}: {sum(shard.frames for shard in manifest.shards):,} frames, {gigabytes(size_bytes)}", flush=True)
    if damaged:
        print(f"left out {len(damaged):,} damaged frames: {name_some(damaged)}", flush=True)
    if missing:
        print(f"left out {len(missing):,} missing frames: {name_some(sorted(missing))}", flush=True)


def _check_space(store: Path, needed_bytes: int) -> None:
    """Raise a `UserError` if the disk of the store is too small for frames of this size."""
    free_bytes = shutil.disk_usage(store).free
    if needed_bytes and free_bytes < needed_bytes + SPARE_BYTES:
        raise UserError(
            f"packing into {store} needs {gigabytes(needed_bytes + SPARE_BYTES)}, {gigabytes(free_bytes)} are free: "
            "free some space, or set store to a folder on another disk"
        )


def _check_origin(store: Path, shards: list[ShardFrames], original: EncodedStorage) -> None:
    """Refuse shards of other frames; the folder of the frames may have been moved."""
    expected = describe(original)
    foreign_shards = [frames for frames in shards if frames.source != expected]
    if not foreign_shards:
        return
    source = foreign_shards[0].source
    has_one_source = all(frames.source == source for frames in shards)
    is_moved = has_one_source and {**source, "path": ""} == {**expected, "path": ""}
    if not is_moved or not all(has_equal_frames(frames, original) for frames in foreign_shards):
        raise UserError(
            f"{store} was packed from {_listed(source)}, not from {_listed(expected)}: "
            "delete it, or set store to another folder"
        )
    former = source["path"]
    print(f"{store} was packed from {former}, whose sampled frames are equal to those of {original}", flush=True)


def _existing_shards(store: Path, original: EncodedStorage, workers: int, *, verify: bool) -> list[ShardFrames]:
    """Return the complete shards of earlier runs, and delete the others."""
    shards, broken = complete_shards(store)
    _check_origin(store, shards, original)
    for file in broken:
        print(f"{store / file} is incomplete: its frames are packed again", flush=True)
        remove_shard(store, file)
    if not verify:
        return shards
    intact: list[ShardFrames] = []
    checked = in_threads(partial(damaged_frames, store), shards, workers)
    with counter("verified", sum(frames.shard.frames for frames in shards)) as advance, closing(checked):
        for frames, names in checked:
            advance(frames.shard.frames)
            if names:
                print(f"{store / frames.shard.file} is damaged ({name_some(names)}): packed again", flush=True)
                remove_shard(store, frames.shard.file)
            else:
                intact.append(frames)
    return intact


def _listed(source: Mapping[str, str]) -> str:
    return ", ".join(f"{key} {value}" for key, value in source.items())
