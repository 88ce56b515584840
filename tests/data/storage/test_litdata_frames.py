"""Frames read from litdata chunks, with a local folder in place of a bucket."""

import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("litdata")

from tests.helpers.archives import drawn_frames, pixels, write_annotations
from yolo_lightning.commands.prepare.command import prepare
from yolo_lightning.data.storage.choose_storage import open_frames
from yolo_lightning.data.storage.frames import FolderFrames, FrameError
from yolo_lightning.data.storage.litdata_frames import LitdataFrames, read_object, write_litdata, write_object

pytestmark = pytest.mark.slow  # every process of litdata takes seconds to start
FRAMES = drawn_frames(9)
TORN, ABSENT = "frames/20200502/clip_2_1150/image_0000.jpg", "frames/20200502/clip_9_1150/image_0000.jpg"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset root with a store `bucket` of two chunks and more; shared, so never change it."""
    root = tmp_path_factory.mktemp("litdata")
    for name, content in {**FRAMES, TORN: b"<html>"}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    write_annotations(root / "Train.json", sorted(FRAMES))
    write_litdata(FolderFrames(root), sorted([*FRAMES, TORN, ABSENT]), str(root / "bucket"), workers=1)
    return root


@pytest.fixture
def source(root: Path, tmp_path: Path) -> LitdataFrames:
    return LitdataFrames(str(root / "bucket"), tmp_path)


def test_pixels_are_those_of_the_folder_in_any_order(source: LitdataFrames) -> None:
    for name, frame in reversed(pixels(FRAMES).items()):
        assert np.array_equal(source.read(name), frame)


def test_damaged_frames_keep_their_reason(source: LitdataFrames) -> None:
    with pytest.raises(FrameError, match=rf"^{TORN}: not an image"):
        source.read(TORN)
    with pytest.raises(FrameError, match=rf"^{ABSENT}: No such file"):
        source.read(ABSENT)


def test_what_was_not_written_is_missing(source: LitdataFrames) -> None:
    assert source.missing([*FRAMES, "frames/x.jpg"]) == ["frames/x.jpg"]
    with pytest.raises(FrameError, match=r"^frames/x\.jpg: not in .*bucket"):
        source.read("frames/x.jpg")


def test_record_of_another_name_is_a_bad_frame(source: LitdataFrames) -> None:
    names = source._names.names.copy()
    names[0] = bytes(names[0]).replace(b"0000.jpg", b"000/.jpg")
    source._names.names = names
    with pytest.raises(FrameError, match="wrong name or checksum in record 0"):
        source.read(names[0].decode())


def test_flipped_byte_is_a_bad_frame(root: Path, tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    for path in (root / "bucket").iterdir():
        content = path.read_bytes()
        for frame in FRAMES.values():
            content = content.replace(frame, frame[:300] + bytes([frame[300] ^ 1]) + frame[301:])
        (bucket / path.name).write_bytes(content)
    source = LitdataFrames(str(bucket), tmp_path / "cache")
    for name in FRAMES:
        with pytest.raises(FrameError, match=rf"^{name}: damaged in .*wrong name or checksum"):
            source.read(name)


def test_pickles_as_text_and_reads_in_processes(source: LitdataFrames) -> None:
    source.read(next(iter(FRAMES)))
    assert len(pickle.dumps(source)) < 1000
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as processes:
        for name, frame in zip(FRAMES, processes.map(source.read, FRAMES), strict=True):
            assert np.array_equal(frame, pixels(FRAMES)[name])


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is not a litdata store of frames: .*; run prepare"):
        LitdataFrames(str(tmp_path), tmp_path)


def test_is_opened_by_name(root: Path, tmp_path: Path) -> None:
    source = open_frames(root, "litdata", index_root=tmp_path, store=str(root / "bucket"))
    assert isinstance(source, LitdataFrames)


def test_objects_are_read_and_written_by_address(tmp_path: Path) -> None:
    address = tmp_path.as_uri()
    write_object(address, "names.npy", b"content")
    assert read_object(address, "names.npy") == read_object(str(tmp_path), "names.npy") == b"content"


def test_prepare_writes_a_bucket(root: Path, tmp_path: Path) -> None:
    bucket = str(tmp_path / "bucket")
    prepare(str(root), index_root=str(tmp_path), workers=1, bucket=bucket)
    source = LitdataFrames(bucket, tmp_path)
    assert source.missing([*FRAMES, TORN]) == [TORN]
    for name, frame in pixels(FRAMES).items():
        assert np.array_equal(source.read(name), frame)
    with pytest.raises(ValueError, match=r"cannot write .*bucket: "):
        prepare(str(root), index_root=str(tmp_path), workers=1, bucket=bucket)
