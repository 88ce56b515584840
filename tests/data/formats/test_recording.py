"""Month, clip and position in the clip of frames."""

import numpy as np
import pytest

from yolo_lightning.data.formats.ltdv2 import clips, months, positions_in_clip


@pytest.mark.parametrize(
    ("image_id", "date", "month"),
    [
        ("20200502114223915", "2021-01-01T00:00:00", 202005),
        ("20201302114223915", "2021-01-31T00:00:00", 202101),
        ("2020050211422391", "2021-01-31", 202101),
        ("2020050211422391x", "2021-01", 202005),
        ("7", "2021-13-01", 0),
        ("7", "21 Jan 2021", 0),
        ("7", "", 0),
    ],
    ids=["id", "month-13", "16-digits", "letter-behind", "no-month", "words", "none"],
)
def test_month_comes_from_the_id_or_else_the_date(image_id: str, date: str, month: int) -> None:
    actual_months = months([image_id], [date])
    assert actual_months.tolist() == [month]
    assert actual_months.dtype == np.int32


def test_clips_are_numbered_as_they_appear() -> None:
    numbers, names = clips(["b/2/x.jpg", "a/x.jpg", "b/2/y.jpg", "x.jpg", "a/b/x.jpg"])
    assert (numbers.tolist(), names) == ([0, 1, 0, 2, 3], ["b/2", "a", "", "a/b"])
    assert numbers.dtype == np.int32


def test_positions_follow_the_image_number_within_each_clip() -> None:
    names = ["a/image_0015.jpg", "b/image_2.jpg", "a/image_0009.jpg", "b/image_10.jpg", "a/image_0010.jpg"]
    positions = positions_in_clip(names, clips(names)[0])
    assert positions.tolist() == [2, 0, 0, 1, 1]
    assert positions.dtype == np.int32


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["c.jpg", "a.jpg", "b.jpg"], [0, 1, 2]),
        (["7.jpg", "x.jpg", "3.jpg"], [2, 0, 1]),
        (["1/9.jpg", "1/8.jpg"], [1, 0]),
        (["image_5_copy.jpg", "image_4.jpg2"], [1, 0]),
        (["5.jpg", "5.png", "5"], [1, 2, 0]),
        ([f"{10**30}.jpg", "1.jpg"], [0, 1]),
    ],
    ids=["no-number", "some", "number-of-the-folder", "words-after", "equal", "beyond-int64"],
)
def test_positions_without_plain_numbers(names: list[str], expected: list[int]) -> None:
    assert positions_in_clip(names, clips(names)[0]).tolist() == expected
