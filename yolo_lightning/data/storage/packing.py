"""Writes packed stores in parallel: one process per shard, whole or not there, so a killed run is continued."""

import errno
import multiprocessing
import os
import signal
import threading
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import wait
from pathlib import Path

import cv2
import msgspec
import numpy as np

from yolo_lightning.data.index import index_folder
from yolo_lightning.data.index.name_table import encode
from yolo_lightning.data.storage.frames import FolderFrames, FrameSource
from yolo_lightning.data.storage.packed_frames import FORMAT, FRAME, MANIFEST, Manifest, index_checksum, map_index
from yolo_lightning.data.storage.shards import (
    PackedShard,
    ShardFrames,
    Source,
    damaged_frames,
    remove_shard,
    shard_files,
    write_shard,
)
from yolo_lightning.data.storage.zip_frames import ZipFrames
from yolo_lightning.utils.files import replacing

INDEX_PREFIX = "index-"


def describe(source: FolderFrames | ZipFrames) -> Source:
    """What identifies the content that frames are packed from."""
    if isinstance(source, ZipFrames):
        return {"kind": "zip", "fingerprint": source.fingerprint}
    return {"kind": "folder", "path": str((source.base / "frames").resolve())}


def write_shards(
    store: Path, source: FrameSource, description: Source, tasks: Iterable[Sequence[str]], workers: int
) -> Generator[tuple[Sequence[str], PackedShard], None, None]:
    """Write a shard for each task, several at once; yields tasks and results as they are done.

    Raises:
        OSError: If one cannot be written; those that are done stay.
        ValueError: If the source was replaced meanwhile.
    """
    with process_pool(workers) as pool:
        pending = {pool.submit(write_shard, store, source, description, task): task for task in tasks}
        for done in as_completed(pending):
            yield pending[done], done.result()


def find_damaged(
    store: Path, shards: Iterable[ShardFrames], workers: int
) -> Generator[tuple[ShardFrames, list[str]], None, None]:
    """Compare all frames with their checksums; yields each shard with the names of those that fail."""
    with process_pool(workers) as pool:
        pending = {pool.submit(damaged_frames, store, frames): frames for frames in shards}
        for done in as_completed(pending):
            yield pending[done], done.result()


@contextmanager
def process_pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Spawned processes (a fork stalls ROCm's queues and inherits held locks); when the block ends, none begins a task.

    Raises:
        OSError: If a process was killed, for instance for want of memory.
    """
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=prepare_process)
    try:
        yield pool
    except BrokenProcessPool as error:
        raise OSError(errno.ECHILD, "a packing process was killed, perhaps for want of memory") from error
    finally:
        pool.shutdown(cancel_futures=True)


def prepare_process() -> None:
    """One core, no reaction to Ctrl-C (the parent sees to it), and no life after the parent's."""
    cv2.setNumThreads(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=end_with_parent, daemon=True).start()


def end_with_parent() -> None:
    """A process pool's workers wait for ever for a parent that was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def write_index(store: Path, shards: Sequence[ShardFrames], damaged: dict[str, str], source: Source) -> Manifest:
    """Write the sorted arrays and the manifest that makes the store readable; delete what it does not name.

    Raises:
        OSError: If they cannot be written; an earlier manifest then stays valid.
    """
    shards = sorted(shards, key=lambda frames: frames.shard.file)
    names = np.array([encode(name) for frames in shards for name in frames.names])
    records = np.zeros(len(names), dtype=FRAME)
    start = 0
    for number, frames in enumerate(shards):
        part = records[start : start + len(frames.names)]
        part["shard"], part["crc"] = number, frames.crcs
        part["height"], part["width"] = frames.heights, frames.widths
        sizes = part["height"].astype(np.uint64) * part["width"]
        part["offset"] = np.cumsum(sizes) - sizes
        start += len(part)
    order = np.argsort(names)
    names, records = names[order], records[order]
    crc = index_checksum(names, records)
    folder = store / f"{INDEX_PREFIX}{crc:08x}"
    manifest = Manifest(FORMAT, source, folder.name, crc, [frames.shard for frames in shards], damaged)
    try:
        map_index(store, manifest)
    except ValueError:
        index_folder.write_folder(folder, {"names": names, "frames": records}, {})
    with replacing(store / MANIFEST) as temporary:
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
    remove_unnamed(store, manifest)
    return manifest


def remove_unnamed(store: Path, manifest: Manifest) -> None:
    """Delete shards and arrays of earlier runs, also those that a killed one did not finish."""
    index_folder.remove_leftovers(store, INDEX_PREFIX)
    named = {shard.file for shard in manifest.shards} | {manifest.index}
    for path in shard_files(store):
        if path.name not in named:
            remove_shard(store, path.name)
    for path in store.glob(f"{INDEX_PREFIX}*"):
        if path.name not in named:
            index_folder.remove(path)
