"""Background of input images and videos."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from yolo_lightning.data import input_clips
from yolo_lightning.data.input_clips import ClipReader, gray, numbered, pair_of
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


def levels(image: InputImage) -> list[int]:
    values: list[int] = pair_of(image)[0, 0].tolist()
    return values


def test_video_and_files_have_the_background_of_their_clip(clip: Path, tmp_path: Path) -> None:
    video = tmp_path / "film.avi"
    writer = cv2.VideoWriter(str(video), cv2.VideoWriter.fourcc(*"FFV1"), 5, (16, 16))
    for level in LEVELS:
        writer.write(np.repeat(flat(level)[..., None], 3, axis=2))
    writer.release()
    expected = [[level, 110] for level in LEVELS]
    assert [levels(image) for image in ClipReader(background=True).read(video)] == expected
    reader = ClipReader(background=True)
    files = [clip / f"image_{number}.png" for number in range(8, 13)]
    assert [levels(image) for file in files for image in reader.read(file)] == expected
    (plain,) = ClipReader().read(files[0])
    assert plain.background is None


def test_frames_of_each_size_of_a_video_have_a_background_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    film = [flat(level, size) for size, level in ((16, 10), (16, 60), (16, 70), (8, 200), (8, 210), (8, 220))]
    pictures = [InputImage(tmp_path / "film.ts", None, np.repeat(frame[..., None], 3, axis=2)) for frame in film]
    monkeypatch.setattr(input_clips, "read_pictures", lambda path, ranges: iter(pictures))
    read = list(ClipReader(background=True).read(tmp_path / "film.ts"))
    assert [levels(image) for image in read] == [[10, 60], [60, 60], [70, 60], [200, 210], [210, 210], [220, 210]]


def test_file_without_a_number_is_a_clip_of_one_frame(clip: Path) -> None:
    (image,) = ClipReader(background=True).read(clip / "cover.png")
    assert levels(image) == [255, 255]


@pytest.mark.parametrize(
    "content", [b"torn", cv2.imencode(".png", flat(7, size=8))[1].tobytes()], ids=["torn", "small"]
)
def test_image_that_cannot_be_used_is_left_out(clip: Path, content: bytes) -> None:
    (clip / "image_12.png").write_bytes(content)
    (image,) = ClipReader(background=True).read(clip / "image_8.png")
    assert levels(image) == [10, 110]  # the upper middle value of 10, 60, 110, 160


def test_image_with_an_unknown_background_does_not_differ_from_it() -> None:
    assert levels(from_array(flat(7))) == [7, 7]


def test_names_without_their_number() -> None:
    assert numbered("image_0012.png") == numbered("image_7.png") == ("image_", ".png")
    assert numbered("2020/clip-3b.jpg") == ("2020/clip-", "b.jpg")
    assert numbered("cover.png") == ("cover.png", "")


def test_gray_pixels_keep_their_level() -> None:
    ramp = np.arange(256, dtype=np.uint8).reshape(16, 16)
    assert np.array_equal(gray(InputImage(None, None, np.repeat(ramp[..., None], 3, axis=2))), ramp)
