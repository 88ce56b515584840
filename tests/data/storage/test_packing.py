"""Shards: complete or absent, found again, verified."""

import errno
import multiprocessing
import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.archives import drawn_frames, pixels, put, write_zip
from yolo_lightning.data.storage.folder_frames import FolderFrames
from yolo_lightning.data.storage.packed_frames import MANIFEST, PackedFrames, read_manifest
from yolo_lightning.data.storage.packing import (
    ShardFrames,
    complete_shards,
    damaged_frames,
    describe,
    in_threads,
    write_index,
    write_shard,
)
from yolo_lightning.data.storage.positioned_file import PositionedFile
from yolo_lightning.data.storage.zip_frames import ZipFrames
from yolo_lightning.utils import files

FRAMES = drawn_frames(6)
NAMES = sorted(FRAMES)
HALVES = [NAMES[:3], NAMES[3:]]


@pytest.fixture
def source(tmp_path: Path) -> FolderFrames:
    put(tmp_path, FRAMES)
    return FolderFrames(tmp_path)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    (tmp_path / "packed").mkdir()
    return tmp_path / "packed"


def write(store: Path, source: FolderFrames, names: list[str]) -> ShardFrames:
    frames = write_shard(store, source, describe(source), names)[0]
    assert frames is not None
    return frames


def test_same_task_gives_the_same_file_and_another_source_does_not(store: Path, source: FolderFrames) -> None:
    archive = ZipFrames(write_zip(store.parent / "frames.zip", FRAMES), store.parent / "index")
    first, again = (write(store, source, NAMES) for _ in range(2))
    other = write_shard(store, archive, describe(archive), NAMES)[0]
    assert other is not None
    assert first == again
    assert first.crcs == other.crcs
    assert first.shard.file != other.shard.file


def test_frames_in_a_folder_whose_name_is_not_utf8_are_packed(tmp_path: Path, store: Path) -> None:
    root = tmp_path / os.fsdecode(b"caf\xe9")
    put(root, FRAMES)
    source = FolderFrames(root)
    write_index(store, [write(store, source, NAMES)], {}, describe(source))
    assert read_manifest(store).source["path"].endswith(r"/caf\udce9/frames")
    for name, frame in pixels(FRAMES).items():
        assert np.array_equal(PackedFrames(store).read(name), frame)


@pytest.mark.parametrize("damage", ["cut shard", "no description", "cut description", "flipped name", "not JSON"])
def test_shard_that_is_not_whole_is_told_apart(store: Path, source: FolderFrames, damage: str) -> None:
    good, bad = (write(store, source, names) for names in HALVES)
    path = store / bad.shard.file
    description = path.with_suffix(".json")
    if damage == "cut shard":
        path.write_bytes(path.read_bytes()[:-1])
    elif damage == "no description":
        description.unlink()
    elif damage == "cut description":
        description.write_bytes(description.read_bytes()[:-9])
    elif damage == "flipped name":
        description.write_bytes(description.read_bytes().replace(b"image_0003", b"image_0009"))
    else:
        description.write_bytes(b"\xff\x00")
    assert complete_shards(store) == ([good], [bad.shard.file])


def test_frame_in_two_shards_counts_once(store: Path, source: FolderFrames) -> None:
    for names in (NAMES[:4], NAMES[2:]):
        write(store, source, names)
    whole, broken = complete_shards(store)
    assert (len(whole), len(broken)) == (1, 1)


def test_full_disk_leaves_nothing_of_the_shard(
    store: Path, source: FolderFrames, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_shard(store, source, describe(source), NAMES)
    assert list(store.iterdir()) == []


def test_shard_without_a_usable_frame_is_not_kept(store: Path, source: FolderFrames) -> None:
    (source.base / NAMES[0]).write_bytes(b"")
    done = write_shard(store, source, describe(source), NAMES[:1])
    assert done == (None, {NAMES[0]: "the file is empty"})
    assert list(store.iterdir()) == []


def test_damaged_frames_are_found_by_name(store: Path, source: FolderFrames) -> None:
    frames = write(store, source, NAMES)
    path = store / frames.shard.file
    content = bytearray(path.read_bytes())
    content[frames.heights[0] * frames.widths[0]] ^= 1
    path.write_bytes(content)
    assert damaged_frames(store, frames) == [NAMES[1]]


def test_threads_write_and_check_shards(store: Path, source: FolderFrames) -> None:
    done = list(in_threads(partial(write_shard, store, source, describe(source)), HALVES, workers=2))
    assert sorted(names for names, _ in done) == HALVES
    shards = [shard for _, (shard, _) in done if shard]
    assert {
        tuple(frames.names) for frames, damaged in in_threads(partial(damaged_frames, store), shards, 2) if not damaged
    } == {tuple(names) for names in HALVES}
    write_index(store, shards, {}, describe(source))
    packed = PackedFrames(store)
    for name, frame in pixels(FRAMES).items():
        assert np.array_equal(packed.read(name), frame)


def test_index_does_not_depend_on_the_order_in_which_shards_were_done(store: Path, source: FolderFrames) -> None:
    shards = [write(store, source, names) for names in HALVES]
    first = write_index(store, shards, {}, describe(source))
    assert write_index(store, shards[::-1], {}, describe(source)) == first == read_manifest(store)


def test_what_the_manifest_does_not_name_is_deleted(store: Path, source: FolderFrames) -> None:
    old = write(store, source, NAMES[:4])
    write_index(store, [old], {}, describe(source))
    manifest = write_index(store, [write(store, source, names) for names in HALVES], {}, describe(source))
    kept = {shard.file for shard in manifest.shards}
    assert {path.name for path in store.iterdir()} == {
        MANIFEST,
        manifest.index,
        *kept,
        *(file.replace(".u8", ".json") for file in kept),
    }


def test_sole_writer_names_who_holds_the_lock(tmp_path: Path) -> None:
    with (
        files.sole_writer(tmp_path / "lock"),
        pytest.raises(ValueError, match=rf"^process {os.getpid()} is writing"),
        files.sole_writer(tmp_path / "lock"),
    ):
        pass
    with files.sole_writer(tmp_path / "lock"):
        pass


def test_positioned_file_is_not_shared_with_a_forked_child(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    file = PositionedFile(tmp_path / "file", 10)
    assert file.read(2, 3) == b"234"
    inherited = file._opened
    assert inherited is not None
    receiver, sender = multiprocessing.Pipe()
    child = os.fork()
    if child == 0:
        sender.send((file.read(4, 100), file._opened[0]))
        os._exit(0)
    os.waitpid(child, 0)
    assert receiver.recv() == (b"456789", child)
