"""Frames read from an archive in place."""

import io
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.archives import (
    ENCRYPTED,
    assert_same_in_threads_and_processes,
    drawn_frames,
    pixels,
    write_zip,
    write_zip_by_hand,
)
from yolo_lightning.data.storage import zip_frames
from yolo_lightning.data.storage.frames import FrameError
from yolo_lightning.data.storage.positioned_file import ReplacedFileError
from yolo_lightning.data.storage.zip_frames import ZipFrames

FRAMES = drawn_frames(6)
FIRST, SECOND = list(FRAMES)[:2]


def assert_reads_all(archive: Path, index_root: Path) -> None:
    source = ZipFrames(archive, index_root)
    assert source.missing(FRAMES) == []
    for name, frame in pixels(FRAMES).items():
        assert np.array_equal(source.read(name), frame)


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED], ids=["stored", "deflated"])
def test_reads_members(tmp_path: Path, compression: int) -> None:
    assert_reads_all(write_zip(tmp_path / "frames.zip", FRAMES, compression), tmp_path / "index")


@pytest.mark.parametrize("zip64", [False, True])
@pytest.mark.parametrize("extra_bytes", [0, 300])
def test_content_begins_where_the_local_header_says(tmp_path: Path, zip64: bool, extra_bytes: int) -> None:
    archive = write_zip_by_hand(tmp_path / "frames.zip", FRAMES, zip64=zip64, local_extra=bytes(extra_bytes))
    assert_reads_all(archive, tmp_path / "index")


def test_sizes_that_stand_behind_the_content_are_taken_from_the_directory(tmp_path: Path) -> None:
    class Pipe(io.RawIOBase):
        def __init__(self) -> None:
            self.content = b""

        def writable(self) -> bool:
            return True

        def write(self, data: bytes) -> int:  # type: ignore[override]
            self.content += bytes(data)
            return len(data)

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as archive:  # type: ignore[arg-type]
        for name, content in FRAMES.items():
            archive.writestr(name, content)
    assert pipe.content[6] & 8, "the archive has no data descriptors"
    (tmp_path / "frames.zip").write_bytes(pipe.content)
    assert_reads_all(tmp_path / "frames.zip", tmp_path / "index")


@pytest.mark.parametrize("folder", ["LTDv2/frames", "frames/frames", "data/ltd/frames", "images", ""])
def test_finds_frames_below_another_leading_folder(tmp_path: Path, folder: str) -> None:
    renamed = {name.replace("frames/", f"{folder}/", 1).removeprefix("/"): body for name, body in FRAMES.items()}
    assert set(renamed) != set(FRAMES)
    assert_reads_all(write_zip(tmp_path / "frames.zip", renamed), tmp_path / "index")


@pytest.mark.parametrize(
    ("name", "member"),
    [
        ("frames/camera_1/20230101/image_1.jpg", "frames/camera_1/20230101/image_1.jpg"),
        ("frames/20230101/12300500/image_1.jpg", "frames/20230101/12300500/image_1.jpg"),
        ("frames/20230101/12300500/image_1.jpg", "20230101/12300500/image_1.jpg"),
        ("frames/20230101/frames/image_1.jpg", "frames/20230101/frames/image_1.jpg"),
        ("frames/20230101/frames/image_1.jpg", "LTDv2/frames/20230101/frames/image_1.jpg"),
        ("frames/20230101/clip/image_1.jpg", "20240101/frames/20230101/clip/image_1.jpg"),
        ("frames/20230101/clip/image_1.jpg", r"LTDv2\frames\20230101\clip\image_1.jpg"),
        ("frames/20230101/M\u00fcnchen/image_1.jpg", "frames/20230101/Mu\u0308nchen/image_1.jpg"),
        ("frames/20230101/Mu\u0308nchen/image_1.jpg", "frames/20230101/M\u00fcnchen/image_1.jpg"),
    ],
)
def test_member_is_found_by_its_name_in_the_folder_of_the_dataset(tmp_path: Path, name: str, member: str) -> None:
    source = ZipFrames(write_zip(tmp_path / "frames.zip", {**FRAMES, member: FRAMES[FIRST]}), tmp_path / "index")
    assert source.missing([name]) == []
    assert np.array_equal(source.read(name), source.read(FIRST))


def test_missing_lists_what_the_archive_lacks(tmp_path: Path) -> None:
    source = ZipFrames(write_zip(tmp_path / "frames.zip", FRAMES), tmp_path / "index")
    absent = ["frames/20200502/clip_1_1142/image_9999.jpg", FIRST + "x" * 300, FIRST + "\0", FIRST[:-1], "\ud800", ""]
    assert source.missing([*absent[:3], FIRST, *absent[3:]]) == absent
    for name in absent:
        with pytest.raises(FrameError, match=r": not in frames\.zip"):
            source.read(name)


def test_flipped_byte_is_a_damaged_frame_and_the_others_are_not(tmp_path: Path) -> None:
    archive = write_zip(tmp_path / "frames.zip", FRAMES)
    content = bytearray(archive.read_bytes())
    content[content.index(FRAMES[FIRST]) + 300] ^= 1
    archive.write_bytes(content)
    source = ZipFrames(archive, tmp_path / "index")
    with pytest.raises(FrameError, match=rf"^{FIRST}: damaged in frames\.zip: wrong checksum"):
        source.read(FIRST)
    assert np.array_equal(source.read(SECOND), pixels(FRAMES)[SECOND])


@pytest.mark.parametrize("place", [0, 5, 200])
def test_damaged_deflate_stream_is_a_damaged_frame(tmp_path: Path, place: int) -> None:
    archive = write_zip(tmp_path / "frames.zip", {FIRST: FRAMES[FIRST]}, zipfile.ZIP_DEFLATED)
    content = bytearray(archive.read_bytes())
    with zipfile.ZipFile(archive) as opened:
        start = opened.getinfo(FIRST).header_offset + 30 + len(FIRST)
    content[start + place] ^= 0xFF
    archive.write_bytes(content)
    with pytest.raises(FrameError, match=rf"^{FIRST}: damaged in frames\.zip"):
        ZipFrames(archive, tmp_path / "index").read(FIRST)


def test_overwritten_header_is_a_damaged_frame(tmp_path: Path) -> None:
    archive = write_zip_by_hand(tmp_path / "frames.zip", FRAMES)
    archive.write_bytes(bytes(4) + archive.read_bytes()[4:])
    with pytest.raises(FrameError, match=rf"^{FIRST}: damaged in frames\.zip: no member begins at byte 0"):
        ZipFrames(archive, tmp_path / "index").read(FIRST)


@pytest.mark.parametrize("lost_bytes", [1, 30, 2000])
def test_cut_archive_is_refused(tmp_path: Path, lost_bytes: int) -> None:
    archive = write_zip(tmp_path / "frames.zip", FRAMES)
    archive.write_bytes(archive.read_bytes()[:-lost_bytes])
    with pytest.raises(ValueError, match=r"frames\.zip \(.* bytes\) cannot be read as a zip archive.*incomplete"):
        ZipFrames(archive, tmp_path / "index")


def test_empty_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="contains no files"):
        ZipFrames(write_zip(tmp_path / "frames.zip", {}), tmp_path / "index")


def test_encrypted_member_is_refused(tmp_path: Path) -> None:
    archive = write_zip_by_hand(tmp_path / "frames.zip", FRAMES, flags=ENCRYPTED)
    with pytest.raises(ValueError, match=rf"frames\.zip: {FIRST} is encrypted"):
        ZipFrames(archive, tmp_path / "index")


def test_archive_of_several_disks_is_refused(tmp_path: Path) -> None:
    archive = write_zip_by_hand(tmp_path / "frames.zip", FRAMES, disk=1)
    with pytest.raises(ValueError, match=rf"frames\.zip: '{FIRST}' has .* of disk 1, .* which have to be joined"):
        ZipFrames(archive, tmp_path / "index")


def test_other_compression_is_refused(tmp_path: Path) -> None:
    archive = write_zip(tmp_path / "frames.zip", FRAMES, zipfile.ZIP_LZMA)
    with pytest.raises(ValueError, match=r"compression method .* must be one of 0 \(stored\), 8 \(deflated\), got 14"):
        ZipFrames(archive, tmp_path / "index")


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", [FIRST, f"LTDv2/{FIRST}"])
def test_two_frames_of_one_name_are_refused(tmp_path: Path, name: str) -> None:
    archive = write_zip(tmp_path / "frames.zip", FRAMES)
    with zipfile.ZipFile(archive, "a") as opened:
        opened.writestr(name, FRAMES[SECOND])
    with pytest.raises(ValueError, match=rf"frames\.zip contains {FIRST} twice"):
        ZipFrames(archive, tmp_path / "index")


def test_directory_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = write_zip(tmp_path / "frames.zip", FRAMES)
    ZipFrames(archive, tmp_path / "index")
    monkeypatch.delattr(zip_frames, "read_directory")
    assert_reads_all(archive, tmp_path / "index")


def test_changed_archive_is_read_again(tmp_path: Path) -> None:
    archive = write_zip(tmp_path / "frames.zip", {FIRST: FRAMES[FIRST]})
    before = ZipFrames(archive, tmp_path / "index")
    write_zip(archive, {FIRST: FRAMES[SECOND]})
    after = ZipFrames(archive, tmp_path / "index")
    assert np.array_equal(after.read(FIRST), pixels(FRAMES)[SECOND])
    assert after.fingerprint != before.fingerprint


def test_archive_replaced_in_use_ends_the_run(tmp_path: Path) -> None:
    archive = write_zip(tmp_path / "frames.zip", FRAMES)
    source = ZipFrames(archive, tmp_path / "index")
    os.utime(archive, ns=(0, 0))
    with pytest.raises(ReplacedFileError, match=r"frames\.zip has changed since"):
        source.read(FIRST)


def test_worker_that_starts_after_the_archive_was_replaced_refuses_it(tmp_path: Path) -> None:
    archive = write_zip(tmp_path / "frames.zip", FRAMES)
    sent = pickle.dumps(ZipFrames(archive, tmp_path / "index"))
    assert pickle.loads(sent).missing(FRAMES) == []
    write_zip(archive, {**FRAMES, FIRST: FRAMES[SECOND]})
    with pytest.raises(ReplacedFileError, match=r"frames\.zip has changed since"):
        pickle.loads(sent)


def test_pickles_as_paths_and_reads_in_threads_and_processes(tmp_path: Path) -> None:
    source = ZipFrames(write_zip(tmp_path / "frames.zip", FRAMES, zipfile.ZIP_DEFLATED), tmp_path / "index")
    source.read(FIRST)
    assert len(pickle.dumps(source)) < 1000
    assert_same_in_threads_and_processes(source, FRAMES)
