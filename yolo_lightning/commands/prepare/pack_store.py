"""Packs frames into a store: keeps what earlier runs finished, adds what is lacking, says what was left out."""

import shutil
from contextlib import closing
from pathlib import Path

from yolo_lightning.commands.console import counter, gigabytes, name_some
from yolo_lightning.data.storage.frames import FolderFrames
from yolo_lightning.data.storage.packing import describe, find_damaged, write_index, write_shards
from yolo_lightning.data.storage.shards import ShardFrames, Source, complete_shards, remove_shard
from yolo_lightning.data.storage.zip_frames import ZipFrames
from yolo_lightning.utils.files import DISK_FULL

SPARE_BYTES = 64 << 20
"""Left free on the disk beyond the frames, for the index and whoever else writes there."""

MOST_SHARDS = 500
"""Every reader keeps every shard open, and 1024 open files are a usual limit."""


def pack_store(
    store: Path,
    source: FolderFrames | ZipFrames,
    sizes: dict[str, int],
    workers: int,
    shard_frames: int,
    *,
    verify: bool,
) -> None:
    """Pack what the store lacks and write its index.

    Raises:
        OSError: If the store cannot be written.
        ValueError: If the store was made from other frames, the disk is too small or no frame can be used.
    """
    description = describe(source)
    shards = keep_whole(store, description, workers, verify=verify)
    packed = {name for frames in shards for name in frames.names}
    wanted = [name for name in sizes if name not in packed]
    missing = set(source.missing(wanted))
    if len(missing) == len(sizes):
        raise ValueError(f"none of the {len(sizes):,} frames that the annotation files name is in {source}")
    wanted = [name for name in wanted if name not in missing]
    if len(shards) + -(-len(wanted) // shard_frames) > MOST_SHARDS:
        raise ValueError(
            f"shard_frames is {shard_frames}, which gives more than {MOST_SHARDS} shards: {len(wanted):,} frames need "
            f"{-(-len(wanted) // max(1, MOST_SHARDS - len(shards)))} or more each"
        )
    check_space(store, sum(sizes[name] for name in wanted))
    print(f"packing {len(wanted):,} frames of {source} into {store}, {len(packed):,} are there already", flush=True)

    damaged: dict[str, str] = {}
    tasks = [wanted[start : start + shard_frames] for start in range(0, len(wanted), shard_frames)]
    written = write_shards(store, source, description, tasks, min(workers, max(1, len(tasks))))
    with counter("packed", len(wanted)) as advance, closing(written):
        for task, done in written:
            damaged |= done.damaged
            shards += [done.frames] if done.frames else []
            advance(len(task))
    if not shards:
        raise ValueError(f"none of the {len(wanted):,} frames of {source} can be used: {name_some(damaged)}")
    manifest = write_index(store, shards, damaged, description)
    report(
        store, sum(shard.frames for shard in manifest.shards), sum(s.bytes for s in manifest.shards), damaged, missing
    )


def keep_whole(store: Path, description: Source, workers: int, *, verify: bool) -> list[ShardFrames]:
    """The whole shards of earlier runs; the others are deleted and so packed again.

    Raises:
        ValueError: If they were made from other frames.
    """
    shards, broken = complete_shards(store)
    foreign = next((frames.source for frames in shards if frames.source != description), None)
    if foreign is not None:
        raise ValueError(
            f"{store} was packed from {words(foreign)}, not from {words(description)}: delete it, or name another store"
        )
    for file in broken:
        print(f"{store / file} is incomplete: its frames are packed again", flush=True)
        remove_shard(store, file)
    if not verify:
        return shards
    whole: list[ShardFrames] = []
    checked = find_damaged(store, shards, workers)
    with counter("verified", sum(frames.shard.frames for frames in shards)) as advance, closing(checked):
        for frames, names in checked:
            advance(frames.shard.frames)
            if names:
                print(f"{store / frames.shard.file} is damaged ({name_some(names)}): packed again", flush=True)
                remove_shard(store, frames.shard.file)
            else:
                whole.append(frames)
    return whole


def check_space(store: Path, needed_bytes: int) -> None:
    """Refuse to begin what the disk cannot hold.

    Raises:
        ValueError: If it is too small.
    """
    free_bytes = shutil.disk_usage(store).free
    if needed_bytes and free_bytes < needed_bytes + SPARE_BYTES:
        raise ValueError(
            f"packing into {store} needs {gigabytes(needed_bytes + SPARE_BYTES)}, {gigabytes(free_bytes)} are free: "
            "free some, or name a folder on another disk with store"
        )


def report(store: Path, frames: int, size_bytes: int, damaged: dict[str, str], missing: set[str]) -> None:
    """Say what the store holds and what it does not."""
    print(f"{store} holds {frames:,} frames, {gigabytes(size_bytes)}", flush=True)
    if damaged:
        print(f"left out, {len(damaged):,} damaged: {name_some(damaged)}", flush=True)
    if missing:
        print(f"left out, {len(missing):,} missing: {name_some(sorted(missing))}", flush=True)


def explain(error: OSError, store: Path) -> str:
    """What a user can do about an error of the disk."""
    if error.errno in DISK_FULL:
        return (
            f"no space for {store} ({error.strerror}): finished shards are kept; free some space and run prepare again"
        )
    return f"cannot write {store}: {error}; name a folder that can be written with store"


def words(source: Source) -> str:
    """A source's description as text."""
    return ", ".join(f"{key} {value}" for key, value in source.items())
