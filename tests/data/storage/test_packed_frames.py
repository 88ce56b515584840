"""Frames read from a packed store."""

import json
import pickle
from collections.abc import Mapping
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tests.helpers.archives import assert_same_in_threads_and_processes, drawn_frames, pack, pixels, put
from yolo_lightning.data.index.index_folder import NameTable, encode
from yolo_lightning.data.storage.folder_frames import FolderFrames
from yolo_lightning.data.storage.frames import FrameError
from yolo_lightning.data.storage.packed_frames import FORMAT_OF_BITS, MANIFEST, PackedFrames
from yolo_lightning.data.storage.positioned_file import ReplacedFileError

FRAMES = drawn_frames(6)
FIRST, SECOND = list(FRAMES)[:2]
TORN = "frames/20200502/clip_2_1150/image_0000.jpg"
ABSENT = "frames/20200502/clip_9_1150/image_0000.jpg"


def packed(root: Path, frames: Mapping[str, bytes], shard_frames: int = 4) -> Path:
    put(root, frames)
    return pack(root / "packed", FolderFrames(root), sorted(frames), shard_frames)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return packed(tmp_path, {**FRAMES, TORN: FRAMES[FIRST][:200]})


def shards(store: Path) -> list[Path]:
    return sorted(store.glob("shard-*.u8"))


def shard_of(store: Path, frame: np.ndarray) -> tuple[Path, int]:
    """Return the shard with the pixels, and their offset."""
    for path in shards(store):
        if (place := path.read_bytes().find(frame.tobytes())) >= 0:
            return path, place
    raise AssertionError("no shard holds the frame")


@settings(max_examples=10, deadline=None)
@given(
    shapes=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=9), group=st.integers(1, 9)
)
def test_frames_of_any_size_come_back(
    tmp_path_factory: pytest.TempPathFactory, shapes: list[tuple[int, int]], group: int
) -> None:
    generator = np.random.default_rng(0)
    images = {f"frames/{k}.png": generator.integers(0, 256, shape, dtype=np.uint8) for k, shape in enumerate(shapes)}
    encoded = {name: cv2.imencode(".png", image)[1].tobytes() for name, image in images.items()}
    source = PackedFrames(packed(tmp_path_factory.mktemp("sizes"), encoded, group))
    for name, image in images.items():
        assert np.array_equal(source.read(name), image)


def test_damaged_frame_keeps_its_reason_and_is_not_missing(store: Path) -> None:
    source = PackedFrames(store)
    with pytest.raises(FrameError, match=rf"^{TORN}: the JPEG is truncated \(200 bytes"):
        source.read(TORN)
    assert source.missing([FIRST, TORN, ABSENT]) == [ABSENT]


def test_frame_that_was_not_packed_is_named(store: Path) -> None:
    with pytest.raises(FrameError, match=rf"^{ABSENT}: not in the packed store"):
        PackedFrames(store).read(ABSENT)


@pytest.mark.parametrize("place", [0, 300, -1])
def test_flipped_byte_is_a_bad_frame_and_its_neighbour_is_not(store: Path, place: int) -> None:
    frame = pixels(FRAMES)[FIRST]
    path, start = shard_of(store, frame)
    content = bytearray(path.read_bytes())
    content[start + place % frame.size] ^= 1
    path.write_bytes(content)
    source = PackedFrames(store)
    with pytest.raises(FrameError, match=rf"^{FIRST}: wrong checksum in .*{path.name}: run prepare --verify"):
        source.read(FIRST)
    assert np.array_equal(source.read(SECOND), pixels(FRAMES)[SECOND])


def test_cut_shard_is_refused_when_the_store_is_opened(store: Path) -> None:
    path = shards(store)[0]
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(
        ValueError, match=rf"{path.name} has {size - 1:,} bytes, but has {size:,} in manifest.json: run prepare"
    ):
        PackedFrames(store)


def test_lost_shard_is_refused_when_the_store_is_opened(store: Path) -> None:
    path = shards(store)[1]
    path.unlink()
    with pytest.raises(ValueError, match=rf"{path.name} is missing, but has .* in manifest.json"):
        PackedFrames(store)


def test_shard_cut_in_use_ends_the_run(store: Path) -> None:
    source = PackedFrames(store)
    path, _ = shard_of(store, pixels(FRAMES)[FIRST])
    path.write_bytes(b"")
    with pytest.raises(ReplacedFileError, match=rf"{path.name} has changed since"):
        source.read(FIRST)


def test_shard_cut_under_an_open_file_is_a_bad_frame(store: Path) -> None:
    source = PackedFrames(store)
    source.read(FIRST)
    path, _ = shard_of(store, pixels(FRAMES)[FIRST])
    path.write_bytes(b"")
    with pytest.raises(FrameError, match=rf"^{FIRST}: wrong checksum in .*{path.name}"):
        source.read(FIRST)


@pytest.mark.parametrize("file", ["names.npy", "frames.npy"])
@pytest.mark.parametrize("damage", ["flip", "cut", "delete"])
def test_damaged_index_is_refused(store: Path, file: str, damage: str) -> None:
    (path,) = store.glob(f"index-*/{file}")
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content if damage == "flip" else content[:-8])
    if damage == "delete":
        path.unlink()
    with pytest.raises(ValueError, match=r"index-\w+ is damaged: .*; run prepare"):
        PackedFrames(store)


@pytest.mark.parametrize("content", ["", "{}", '{"format": 1', "[]", "\x00\xff"])
def test_damaged_manifest_is_refused(store: Path, content: str) -> None:
    (store / MANIFEST).write_text(content)
    with pytest.raises(ValueError, match=r"manifest\.json is damaged: .*; run prepare"):
        PackedFrames(store)


def test_other_format_is_refused(store: Path) -> None:
    manifest = json.loads((store / MANIFEST).read_text())
    (store / MANIFEST).write_text(json.dumps({**manifest, "format": FORMAT_OF_BITS[16]}))
    with pytest.raises(ValueError, match=r"must have format 1, got 2"):
        PackedFrames(store)


def test_unfinished_store_is_refused(store: Path) -> None:
    (store / MANIFEST).unlink()
    with pytest.raises(ValueError, match=r"is not a finished packed store \(manifest\.json is missing\): run prepare"):
        PackedFrames(store)


def test_worker_that_starts_after_the_store_was_replaced_refuses_it(store: Path) -> None:
    sent = pickle.dumps(PackedFrames(store))
    assert pickle.loads(sent).missing(FRAMES) == []
    manifest = json.loads((store / MANIFEST).read_text())
    (store / MANIFEST).write_text(json.dumps({**manifest, "source": {"kind": "folder", "path": "/elsewhere"}}))
    with pytest.raises(ReplacedFileError, match="was packed from other frames since"):
        pickle.loads(sent)


def test_moved_store_is_read(store: Path, tmp_path: Path) -> None:
    moved = store.rename(tmp_path / "elsewhere")
    assert np.array_equal(PackedFrames(moved).read(FIRST), pixels(FRAMES)[FIRST])


def test_pickles_as_a_path_and_reads_in_threads_and_processes(store: Path) -> None:
    source = PackedFrames(store)
    source.read(FIRST)
    assert len(pickle.dumps(source)) < 1000
    assert_same_in_threads_and_processes(source, FRAMES)


@settings(deadline=None)
@given(
    names=st.lists(st.text(max_size=5), unique=True, max_size=30),
    wanted=st.lists(st.text(max_size=7), max_size=30),
)
def test_name_table_agrees_with_a_set(names: list[str], wanted: list[str]) -> None:
    stored = sorted({encode(name) for name in names if not name.endswith("\0")})
    table = NameTable(np.array(stored, dtype=np.bytes_))
    asked = wanted + names
    assert table.absent(asked) == [name for name in asked if encode(name) not in stored]
    for name in asked:
        position = table.find(name)
        assert (position is None) == (encode(name) not in stored)
        assert position is None or stored[position] == encode(name)
