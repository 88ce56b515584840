"""Packing into a store: keep the shards of earlier runs, add the missing frames, report the frames left out."""

import shutil
from contextlib import closing
from functools import partial
from pathlib import Path

from yolo_lightning.commands.console import counter, gigabytes, name_some
from yolo_lightning.data.storage.frames import FolderFrames
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
from yolo_lightning.data.storage.zip_frames import ZipFrames

SPARE_BYTES = 64 << 20
"""Space that remains free for the index and for other writers on the same disk."""

MOST_SHARDS = 500
"""Every reader keeps every shard open, and 1024 open files are a usual limit."""


def pack_store(
    store: Path,
    original: FolderFrames | ZipFrames,
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
    shards = existing_shards(store, source, workers, verify=verify)
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


def existing_shards(store: Path, source: dict[str, str], workers: int, *, verify: bool) -> list[ShardFrames]:
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
