"""Neighbouring frames of input images and videos."""

from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest

from yolo_lightning.data.input_clips import ClipReader, gray, with_neighbours
from yolo_lightning.data.input_images import InputImage, from_array

LEVELS = (10, 60, 110, 160, 210)


def flat(level: int, size: int = 16) -> np.ndarray:
    return np.full((size, size), level, np.uint8)


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    """Files `image_8.png` to `image_12.png` with one gray level each, and files of other clips."""
    folder = tmp_path / "clip"
    folder.mkdir()
    for number, level in enumerate(LEVELS, start=8):
        cv2.imwrite(str(folder / f"image_{number}.png"), flat(level))
    for name in ("mask_9.png", "image_9.bmp", "cover.png"):
        cv2.imwrite(str(folder / name), flat(255))
    return folder


@pytest.fixture
def video(tmp_path: Path) -> Path:
    """A lossless video of the same levels."""
    path = tmp_path / "film.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"FFV1"), 5, (16, 16))
    for level in LEVELS:
        writer.write(np.repeat(flat(level)[..., None], 3, axis=2))
    writer.release()
    return path


def levels(images: Iterator[InputImage]) -> list[list[int]]:
    found = []
    for image in images:
        assert image.channels is not None
        assert image.pixels[0, 0].tolist() == [image.channels[0, 0, 1]] * 3
        found.append(image.channels[0, 0].tolist())
    return found


def test_video_and_files_have_the_neighbours_of_their_clip(clip: Path, video: Path) -> None:
    expected = [[10, 10, 110], [10, 60, 160], [60, 110, 210], [110, 160, 210], [160, 210, 210]]
    assert levels(ClipReader((-1, 0, 2)).read(video)) == expected
    reader = ClipReader((-1, 0, 2))
    files = [clip / f"image_{number}.png" for number in range(8, 13)]
    assert levels(image for file in files for image in reader.read(file)) == expected
    assert levels(ClipReader((-1, 0, 2)).read(files[2])) == [expected[2]]


def test_video_is_read_no_further_ahead_than_the_largest_offset() -> None:
    read: list[int] = []

    def frames() -> Iterator[InputImage]:
        for level in LEVELS:
            read.append(level)
            yield from_array(flat(level))

    images = with_neighbours(frames(), (-1, 0, 1))
    assert read == []
    for ahead in (2, 3, 4, 5, 5):
        next(images)
        assert len(read) == ahead
    assert next(images, None) is None


@pytest.mark.parametrize("offsets", [(0, 3), (-3, 0), (-9, 0, 9)])
def test_every_frame_of_a_short_video_is_yielded(offsets: tuple[int, ...]) -> None:
    for count in range(1, 6):
        images = with_neighbours((from_array(flat(level)) for level in LEVELS[:count]), offsets)
        found = [image.channels[0, 0].tolist() for image in images if image.channels is not None]
        places = [[min(max(place + offset, 0), count - 1) for offset in offsets] for place in range(count)]
        assert found == [[LEVELS[place] for place in row] for row in places]


def test_file_without_a_number_is_a_clip_of_one_frame(clip: Path) -> None:
    assert levels(ClipReader((-1, 0, 1)).read(clip / "cover.png")) == [[255, 255, 255]]


@pytest.mark.parametrize(
    "content", [b"torn", cv2.imencode(".png", flat(7, size=8))[1].tobytes()], ids=["torn", "small"]
)
def test_neighbour_that_cannot_be_used_is_replaced(clip: Path, content: bytes) -> None:
    (clip / "image_9.png").write_bytes(content)
    with pytest.warns(UserWarning, match=r"image_9\.png"):
        assert levels(ClipReader((-1, 0, 1)).read(clip / "image_10.png")) == [[110, 110, 160]]


def test_gray_pixels_keep_their_level() -> None:
    ramp = np.arange(256, dtype=np.uint8).reshape(16, 16)
    assert np.array_equal(gray(InputImage(None, None, np.repeat(ramp[..., None], 3, axis=2))), ramp)
