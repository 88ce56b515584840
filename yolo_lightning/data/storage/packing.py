"""Writer of packed stores: one shard per task.

A shard is complete or absent, so that an interrupted run can be resumed. Its name is a hash of its task.
"""

import shutil
import zlib
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from yolo_lightning.data.index import index_folder
from yolo_lightning.data.index.index_folder import encode
from yolo_lightning.data.index.sampled_names import sampled_positions
from yolo_lightning.data.storage.frames import Frame, FrameError, reason_of
from yolo_lightning.data.storage.packed_frames import (
    FORMAT_OF_BITS,
    FRAME,
    MANIFEST,
    Manifest,
    Shard,
    bits_of,
    index_checksum,
    map_index,
)
from yolo_lightning.data.storage.storage import EncodedStorage, Storage
from yolo_lightning.utils.files import replacing, write_bytes
from yolo_lightning.utils.regular_files import read_regular

SHARD_PREFIX = "shard-"
SHARD_SUFFIX = ".u8"
INDEX_PREFIX = "index-"

COMPARED_FRAMES = 8  # Number of frames of a shard from which a dataset that was moved is recognized

Task = TypeVar("Task")
Result = TypeVar("Result")


class ShardFrames(msgspec.Struct, frozen=True):
    """Description of a shard, stored beside the shard."""

    shard: Shard
    source: dict[str, str]  # Origin of the frames, see `describe`
    names: list[str]  # Frame names in the order of their pixels
    heights: list[int]  # Height of each frame in pixels
    widths: list[int]  # Width of each frame in pixels
    crcs: list[int]  # CRC-32 of the pixels of each frame


def describe(storage: EncodedStorage) -> dict[str, str]:
    """Return an identification of the content of a storage, the origin of a packed store."""
    source = {"kind": storage.kind, **storage.origin()}
    if storage.limits.bits == 16:
        source["bits"] = "16"
    return source


def write_shard(
    store: Path, storage: Storage, source: dict[str, str], names: Sequence[str]
) -> tuple[ShardFrames | None, dict[str, str]]:
    """Decode frames into a shard and write its description.

    Returns:
        Description of the shard, None if no frame could be decoded; reason by name, for the frames left out.
    """
    key = sha256(msgspec.json.encode([source, list(names)])).hexdigest()[:16]
    path = store / f"{SHARD_PREFIX}{key}{SHARD_SUFFIX}"
    packed: list[tuple[str, int, int, int]] = []
    damaged: dict[str, str] = {}
    size = 0
    with replacing(path) as temporary, temporary.open("wb") as file:
        for name in names:
            try:
                frame = _stored(storage.read(name))
            except FrameError as error:
                damaged[name] = reason_of(error, name)
                continue
            file.write(frame.data)
            size += frame.nbytes
            packed.append((name, *frame.shape, zlib.crc32(frame.data)))
    if not packed:
        path.unlink()
        return None, damaged
    columns = (list(column) for column in zip(*packed, strict=True))
    frames = ShardFrames(Shard(path.name, size, len(packed)), source, *columns)
    content = msgspec.json.encode(frames)
    write_bytes(path.with_suffix(".json"), b"%08x\n" % zlib.crc32(content) + content)
    return frames, damaged


def _stored(frame: Frame) -> Frame:
    """Return a frame with the bytes that a shard contains."""
    little_endian: np.dtype[Any] = frame.dtype.newbyteorder("<")
    return np.ascontiguousarray(frame, dtype=little_endian)


def has_equal_frames(frames: ShardFrames, storage: Storage) -> bool:
    """Return whether sampled frames of a shard are equal to those of `storage`, and at least one can be read."""
    compared = 0
    for position in sampled_positions(frames.names, COMPARED_FRAMES):
        try:
            frame = _stored(storage.read(frames.names[position]))
        except FrameError:
            continue
        if zlib.crc32(frame.data) != frames.crcs[position]:
            return False
        compared += 1
    return compared > 0


def complete_shards(store: Path) -> tuple[list[ShardFrames], list[str]]:
    """Return the complete shards, and the file names of the others; no frame is in two complete shards."""
    complete: list[ShardFrames] = []
    broken: list[str] = []
    seen: set[str] = set()
    for path in _shard_files(store):
        frames = read_description(path.with_suffix(".json"))
        if frames is None or frames.shard.file != path.name or not seen.isdisjoint(frames.names):
            broken.append(path.name)
        else:
            complete.append(frames)
            seen.update(frames.names)
    return complete, broken


def read_description(path: Path) -> ShardFrames | None:
    """Return the description of a shard; None if it is damaged, or the shard is missing or truncated."""
    try:
        checksum, _, content = read_regular(path).partition(b"\n")
        if int(checksum, 16) != zlib.crc32(content):
            return None
        frames = msgspec.json.decode(content, type=ShardFrames)
        if (path.parent / frames.shard.file).stat().st_size == frames.shard.bytes:
            return frames
    except (OSError, ValueError, msgspec.MsgspecError):
        pass
    return None


def _shard_files(store: Path) -> list[Path]:
    """Return the path of every shard whose file or description exists."""
    return sorted({path.with_suffix(SHARD_SUFFIX) for path in store.glob(f"{SHARD_PREFIX}*")})


def damaged_frames(store: Path, frames: ShardFrames) -> list[str]:
    """Return the names of the frames in a shard with a wrong checksum."""
    rows = zip(frames.names, frames.heights, frames.widths, frames.crcs, strict=True)
    pixel_bytes = bits_of(frames.source) // 8
    with (store / frames.shard.file).open("rb") as file:
        return [name for name, height, width, crc in rows if zlib.crc32(file.read(height * width * pixel_bytes)) != crc]


def remove_shard(store: Path, file: str) -> None:
    """Delete a shard, its description first: a shard without a description is never complete."""
    (store / file).with_suffix(".json").unlink(missing_ok=True)
    (store / file).unlink(missing_ok=True)


def in_threads(
    function: Callable[[Task], Result], tasks: Iterable[Task], workers: int
) -> Generator[tuple[Task, Result], None, None]:
    """Call `function` for each task in a pool of threads; yield each task with its result on completion.

    OpenCV and zlib release Python's lock. At the end, or on an error, pending tasks are cancelled.
    """
    with ThreadPoolExecutor(workers) as pool:
        pending = {pool.submit(function, task): task for task in tasks}
        try:
            for done in as_completed(pending):
                yield pending[done], done.result()
        finally:
            pool.shutdown(cancel_futures=True)


def write_index(
    store: Path, shards: Sequence[ShardFrames], damaged: dict[str, str], source: dict[str, str]
) -> Manifest:
    """Write the sorted arrays and the manifest, which completes the store; then delete unused shards and arrays."""
    shards = sorted(shards, key=lambda frames: frames.shard.file)
    names = np.array([encode(name) for frames in shards for name in frames.names])
    records = np.zeros(len(names), dtype=FRAME)
    bits = bits_of(source)
    start = 0
    for number, frames in enumerate(shards):
        part = records[start : start + len(frames.names)]
        part["shard"] = number
        part["crc"] = frames.crcs
        part["height"] = frames.heights
        part["width"] = frames.widths
        sizes = part["height"].astype(np.uint64) * part["width"] * (bits // 8)
        part["offset"] = np.cumsum(sizes) - sizes
        start += len(part)
    order = np.argsort(names)
    names = names[order]
    records = records[order]
    crc = index_checksum(names, records)
    folder = store / f"{INDEX_PREFIX}{crc:08x}"
    manifest = Manifest(FORMAT_OF_BITS[bits], source, folder.name, crc, [frames.shard for frames in shards], damaged)
    try:
        map_index(store, manifest)
    except ValueError:
        index_folder.write_folder(folder, {"names": names, "frames": records}, {})
    write_bytes(store / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
    used = {shard.file for shard in manifest.shards} | {manifest.index}
    for path in _shard_files(store):
        if path.name not in used:
            remove_shard(store, path.name)
    for path in store.glob(f"{INDEX_PREFIX}*"):
        if path.name not in used:
            shutil.rmtree(path)
    return manifest
