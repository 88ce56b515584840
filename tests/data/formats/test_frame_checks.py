"""Missing and damaged frames: counted and named, up to a limit."""

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import cv2
import numpy as np
import PIL.ExifTags
import PIL.Image
import pytest

from yolo_lightning.data.formats.frame_checks import (
    PERCENT_ENCODED,
    SAMPLED_FRAMES,
    BadFrames,
    check_frames,
    missing_frames,
)
from yolo_lightning.data.labelled_frames import LabelledFrames
from yolo_lightning.errors import UserError

Split = Callable[..., LabelledFrames]

MISSING, TORN = 1, 3


@pytest.fixture
def damaged(split: Split, tmp_path: Path) -> LabelledFrames:
    """Five frames, one of them missing and one truncated."""
    frames = split([[]] * 5)
    (tmp_path / frames.index.file_name(MISSING)).unlink()
    torn = tmp_path / frames.index.file_name(TORN)
    torn.write_bytes(torn.read_bytes()[:-100])
    return frames


def problem(number: int, reason: str = "torn") -> str:
    return f"frames/image_{number:04d}.jpg: {reason}"


def test_missing_and_torn_frames_are_named_and_tolerated_up_to_the_limit(damaged: LabelledFrames) -> None:
    bad_frames = BadFrames(2)
    with pytest.warns(
        UserWarning,
        match=r"left out 2 of at most 2 bad .*image_0001\.jpg: no such file; .*image_0003\.jpg: .*truncated",
    ):
        check_frames(damaged.index, damaged.storage, bad_frames)
    assert bad_frames.names == {damaged.index.file_name(MISSING), damaged.index.file_name(TORN)}


def test_one_more_than_the_limit_raises_and_names_them(damaged: LabelledFrames) -> None:
    with pytest.raises(
        ValueError, match=r"2 frames cannot be used, more than data\.limits\.max_bad_frames 1: .*0001\.jpg.*0003\.jpg"
    ):
        check_frames(damaged.index, damaged.storage, BadFrames(1))


@pytest.mark.parametrize(
    ("size", "orientation", "cause"),
    [
        ((640, 512), 1, r"1 of 2 sampled frames .*image_0001\.jpg: the file has 640 x 512 .* 64 x 48; does the file"),
        ((48, 64), 1, r"the file has 48 x 64 .* 64 x 48; width and height are exchanged"),
        ((64, 48), 6, r"the file has 48 x 64 .* 64 x 48, the size before the EXIF orientation"),
    ],
)
def test_other_size_than_annotated_raises_with_file_sizes_and_cause(
    split: Split, tmp_path: Path, size: tuple[int, int], orientation: int, cause: str
) -> None:
    frames = split([[]] * 2)
    exif = PIL.Image.Exif()
    exif[PIL.ExifTags.Base.Orientation] = orientation
    PIL.Image.new("L", size).save(tmp_path / frames.index.file_name(1), exif=exif)
    with pytest.raises(UserError, match=cause):
        check_frames(frames.index, frames.storage, BadFrames(100))
    assert re.search(cause.partition("the file has")[2], frames.read(1).problem or "")


def test_missing_file_whose_name_is_percent_encoded_is_recognized(split: Split, tmp_path: Path) -> None:
    frames = split([[]] * 2)
    names = frames.index.file_names()
    existing = names[1].replace("image_", "image ")
    (tmp_path / names[1]).rename(tmp_path / existing)
    problems = missing_frames([names[0], quote(existing)], frames.storage)
    assert problems == {quote(existing): f"{quote(existing)}: no such file, but {existing!r} exists: {PERCENT_ENCODED}"}


def test_frames_that_are_not_read_as_a_whole_are_counted(split: Split, tmp_path: Path) -> None:
    frames = split([[]] * 3)
    for position in (1, 2):
        image = PIL.Image.new("RGBA", (64, 48))
        image.save(tmp_path / frames.index.file_name(position), "TIFF")
    with pytest.warns(UserWarning, match=r"^2 of 3 sampled frames .*: \S+0001\.jpg has 4 bands, of which the first 3"):
        check_frames(frames.index, frames.storage, BadFrames(0))


def test_only_some_frames_of_a_large_split_are_decoded(split: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = split([[]] * 200)
    names: list[str] = []
    read = frames.storage.read
    monkeypatch.setattr(frames.storage, "read", lambda name: names.append(name) or read(name))
    check_frames(frames.index, frames.storage, BadFrames(0))
    assert len(names) == SAMPLED_FRAMES
    assert names == sorted(names)


def deepen(split: Split, tmp_path: Path, count: int, is_deep: Callable[[int], bool]) -> LabelledFrames:
    """Return a split of `count` frames; those of which `is_deep` is true have 16 bits."""
    frames = split([[]] * count)
    for position in filter(is_deep, range(count)):
        path = tmp_path / frames.index.file_name(position)
        content = cv2.imencode(".png", np.full(frames.index.shape(position), 7000, np.uint16))[1]
        path.write_bytes(content.tobytes())
    return frames


@pytest.mark.parametrize("count", [12, 128, 200])
def test_every_second_frame_with_16_bits_is_refused(split: Split, tmp_path: Path, count: int) -> None:
    frames = deepen(split, tmp_path, count, lambda position: position % 2 == 1)
    with pytest.raises(UserError, match=r"sampled frames are not 8-bit images, such as .* are uint16, .*pixel_range"):
        check_frames(frames.index, frames.storage, BadFrames(20))


def test_more_frames_of_another_depth_than_the_limit_are_expected(split: Split, tmp_path: Path) -> None:
    frames = deepen(split, tmp_path, 150, lambda position: position % 5 == 0)
    with pytest.raises(UserError, match=r"^about \d\d of 150 frames cannot be used, more than .*max_bad_frames 10: "):
        check_frames(frames.index, frames.storage, BadFrames(10))
    with pytest.warns(UserWarning, match=r"left out \d+ of at most 100 bad frames: .*uint16"):
        check_frames(frames.index, frames.storage, BadFrames(100))


def test_same_frame_named_twice_counts_once() -> None:
    bad_frames = BadFrames(1)
    with pytest.warns(UserWarning, match="left out 1 of at most 1 bad frames"):
        bad_frames.add([problem(1), problem(1, "gone")])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bad_frames.add([problem(1)])
    assert len(bad_frames.names) == 1


def test_frames_add_up_over_calls() -> None:
    bad_frames = BadFrames(1)
    with pytest.warns(UserWarning, match="left out 1 of at most 1 bad frames"):
        bad_frames.add([problem(1)])
    with pytest.raises(
        ValueError, match=r"2 frames cannot be used, more than data\.limits\.max_bad_frames 1: frames/image_0002\.jpg"
    ):
        bad_frames.add([problem(2)])


def test_many_bad_frames_are_named_in_part() -> None:
    with pytest.raises(ValueError, match=r"image_0004\.jpg: torn; and 3 more$"):
        BadFrames(0).add([problem(number) for number in range(8)])
