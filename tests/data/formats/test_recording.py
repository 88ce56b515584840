"""Month, clip, position in the clip and weather of frames."""

import json
from typing import Any

import msgspec
import numpy as np
import pytest

from yolo_lightning.data.formats.annotations import WEATHER
from yolo_lightning.data.formats.ltdv2 import are_ltdv2_ids, clips, months, positions_in_clip, weather


def texts(*values: str) -> np.ndarray[Any, np.dtype[np.bytes_]]:
    return np.array([value.encode() for value in values], dtype=np.bytes_)


@pytest.mark.parametrize(
    ("image_id", "expected"),
    [
        ("20200502114223915", True),
        ("20210100001000000", True),
        ("20200502131235959", True),
        ("20201302114223915", False),
        ("20200502100223915", False),
        ("20200502132223915", False),
        ("20200502114243915", False),
        ("20200502114226015", False),
        ("20200502114223960", False),
        ("12340502114223915", False),
        ("2020050211422391", False),
        ("202005021142239150", False),
        ("2020050211422391x", False),
        ("", False),
    ],
)
def test_ltdv2_ids_are_recognised(image_id: str, expected: bool) -> None:
    assert are_ltdv2_ids(texts(image_id)).tolist() == [expected]


@pytest.mark.parametrize(
    ("image_id", "date", "month"),
    [
        ("20200502114223915", "2021-01-01T00:00:00", 202005),
        ("20200502114223960", "2021-01-31T00:00:00", 202101),
        ("7", "2021-01", 202101),
        ("7", "2021-13-01", 0),
        ("7", "21 Jan 2021", 0),
        ("7", "", 0),
    ],
    ids=["id", "date", "date-only-month", "no-month", "words", "none"],
)
def test_month_comes_from_the_id_or_else_the_date(image_id: str, date: str, month: int) -> None:
    found = months(texts(image_id), texts(date))
    assert found.tolist() == [month]
    assert found.dtype == np.int32


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


def weather_of(*metas: Any) -> dict[str, list[float]]:
    table = weather([msgspec.Raw(json.dumps(meta).encode()) for meta in metas])
    assert (table.shape, table.dtype) == ((8, len(metas)), np.float32)
    return dict(zip(WEATHER, table.tolist(), strict=True))


def test_each_measurement_has_its_row() -> None:
    meta = {name: number for number, name in enumerate(reversed(WEATHER))}
    assert weather_of(meta) == {name: [7 - number] for number, name in enumerate(WEATHER)}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (7, 7.0),
        (-7.5, -7.5),
        ("7.5", 7.5),
        (" -7,5 °C", -7.5),
        ("1e2", 100.0),
        ("+3", 3.0),
    ],
)
def test_numbers_may_be_text_with_units(value: Any, expected: float) -> None:
    assert weather_of({" temperature ": value})["Temperature"] == [expected]


@pytest.mark.parametrize("value", [None, True, "", "warm", [7], {"C": 7}, 1e300, 10**400, "1e300", "1e999"])
def test_what_is_no_number_is_unknown(value: Any) -> None:
    assert np.isnan(weather_of({"Temperature": value})["Temperature"]).all()


@pytest.mark.parametrize("meta", [None, {}, [], "cold", 3, {"Altitude m": 70}])
def test_frames_without_weather_do_not_disturb_others(meta: Any) -> None:
    found = weather_of(meta, {"Humidity": 80})["Humidity"]
    assert np.isnan(found[0])
    assert found[1] == 80
