"""Decoding of frames, and frames in a folder."""

import io
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from tests.helpers.archives import put
from yolo_lightning.data.storage.folder_frames import FolderFrames
from yolo_lightning.data.storage.frames import FrameError, decode_frame, is_truncated

NAME = "frames/20200502/clip_1_1142/image_0001.jpg"


def gradient(height: int = 48, width: int = 64) -> np.ndarray:
    return (np.add.outer(np.arange(height), np.arange(width)) * 2 % 256).astype(np.uint8)


def encode(extension: str, image: np.ndarray) -> bytes:
    return cv2.imencode(extension, image)[1].tobytes()


def test_a_gray_jpeg_stored_with_three_channels_reads_as_one(tmp_path: Path) -> None:
    put(tmp_path, {NAME: encode(".jpg", cv2.cvtColor(gradient(), cv2.COLOR_GRAY2BGR))})
    assert FolderFrames(tmp_path).read(NAME).shape == (48, 64)


def test_png_is_accepted_and_exact(tmp_path: Path) -> None:
    put(tmp_path, {"frames/a.png": encode(".png", gradient())})
    assert np.array_equal(FolderFrames(tmp_path).read("frames/a.png"), gradient())


def test_finds_frames_extracted_into_a_folder_of_their_own(tmp_path: Path) -> None:
    put(tmp_path / "frames", {NAME: encode(".jpg", gradient())})
    source = FolderFrames(tmp_path)
    assert source.read(NAME).shape == (48, 64)
    assert source.missing([NAME]) == []


@pytest.mark.parametrize(
    ("root", "message"),
    [
        ("nowhere", r"dataset root .*nowhere does not exist"),
        ("file", "is not a folder"),
        (".", r"has no folder 'frames': extract frames\.zip"),
    ],
)
def test_root_without_frames_is_refused(tmp_path: Path, root: str, message: str) -> None:
    (tmp_path / "file").write_bytes(b"PK")
    with pytest.raises(ValueError, match=message):
        FolderFrames(tmp_path / root)


@pytest.mark.parametrize("share", [0.001, 0.01, 0.3, 0.6, 0.9, 0.99])
def test_torn_jpeg_raises_and_names_the_file(tmp_path: Path, share: float) -> None:
    whole = encode(".jpg", gradient(288, 384))
    put(tmp_path, {NAME: whole[: max(1, int(len(whole) * share))]})
    with pytest.raises(FrameError, match=rf"^{NAME}: "):
        FolderFrames(tmp_path).read(NAME)


def test_bytes_padded_after_the_end_marker_are_accepted() -> None:
    assert decode_frame(encode(".jpg", gradient()) + bytes(16), NAME).shape == (48, 64)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the file is empty"),
        (b"<html>rate limit exceeded</html>", "not an image"),
        (bytes(4096), "not an image"),
        (b"version https://git-lfs.github.com/spec/v1\n", "not an image"),
    ],
    ids=["empty", "html", "zeros", "lfs-pointer"],
)
def test_content_that_is_no_image_is_named_with_its_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    put(tmp_path, {NAME: content})
    with pytest.raises(FrameError, match=rf"^{NAME}: {reason}"):
        FolderFrames(tmp_path).read(NAME)


def test_missing_file_raises_and_names_it(tmp_path: Path) -> None:
    (tmp_path / "frames").mkdir()
    with pytest.raises(FrameError, match=rf"^{NAME}: No such file"):
        FolderFrames(tmp_path).read(NAME)


def test_folder_in_place_of_a_file_raises_frame_error(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir(parents=True)
    with pytest.raises(FrameError, match=rf"^{NAME}: Is a directory"):
        FolderFrames(tmp_path).read(NAME)


def test_missing_lists_absent_files_and_absent_clips(tmp_path: Path) -> None:
    put(tmp_path, {NAME: b"content is not looked at"})
    absent = ["frames/20200502/clip_1_1142/image_0002.jpg", "frames/20200502/clip_9_0000/image_0001.jpg"]
    assert sorted(FolderFrames(tmp_path).missing([NAME, *absent])) == absent


def jpeg_with_thumbnail() -> bytes:
    """Return a JPEG with a thumbnail, including an end marker, before its own pixels."""
    content = io.BytesIO()
    Image.fromarray(gradient()).save(content, "JPEG")
    thumbnail = encode(".jpg", gradient(16, 16))
    segment = b"\xff\xe1" + (len(thumbnail) + 2).to_bytes(2, "big") + thumbnail
    return content.getvalue()[:2] + segment + content.getvalue()[2:]


@pytest.mark.parametrize("progressive", [0, 1])
def test_bytes_that_cameras_append_do_not_make_a_jpeg_torn(progressive: int) -> None:
    content = cv2.imencode(".jpg", gradient(), [cv2.IMWRITE_JPEG_PROGRESSIVE, progressive])[1].tobytes()
    assert np.array_equal(decode_frame(content + b"SEFT" * 500, NAME), decode_frame(content, NAME))


def test_end_of_a_thumbnail_is_not_that_of_the_image() -> None:
    content = jpeg_with_thumbnail()
    assert decode_frame(content, NAME).shape == (48, 64)
    with pytest.raises(FrameError, match="the JPEG is truncated"):
        decode_frame(content[:-100] + b"\0" * 200, NAME)


def test_jpeg_is_truncated_wherever_it_is_cut() -> None:
    content = jpeg_with_thumbnail()
    assert not is_truncated(content)
    assert all(is_truncated(content[:length]) for length in range(2, len(content)))
