"""Missing and damaged frames: counted and named, up to a limit."""

import warnings
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

from yolo_lightning.data.formats.frame_checks import SAMPLED_FRAMES, BadFrames, check_frames
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


def test_other_size_than_annotated_raises_with_file_and_both_sizes(split: Split, tmp_path: Path) -> None:
    frames = split([[]] * 2)
    cv2.imwrite(str(tmp_path / frames.index.file_name(1)), np.zeros((512, 640), np.uint8))
    with pytest.raises(ValueError, match=r"image_0001\.jpg is 640 x 512 pixels, .* 20200502114223916 has 64 x 48"):
        check_frames(frames.index, frames.storage, BadFrames(100))


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
    with pytest.raises(UserError, match=r"sampled frames are not 8-bit images: .* is uint16, .*pixel_range"):
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
