"""Moments as text, and deadlines that users write."""

import time
from datetime import datetime

import pytest

from yolo_lightning.errors import UserError
from yolo_lightning.utils.moment import is_moment, moment, parse_moment


def test_moment_of_another_day_has_its_date() -> None:
    noon_s = time.mktime((2026, 11, 20, 12, 0, 0, 0, 0, -1))
    assert moment(noon_s + 61, noon_s) == "12:01:01"
    assert moment(noon_s - 2 * 3600, noon_s) == "10:00"
    assert moment(noon_s + 2 * 86400, noon_s) == "Sun 22 Nov 12:00"
    assert moment(noon_s + 60 * 86400, noon_s) == "19 Jan 2027 12:00"


def test_deadline_is_a_date_or_a_moment() -> None:
    assert parse_moment("--deadline", "2026-12-01").replace(tzinfo=None) == datetime(2026, 12, 1, 23, 59, 59)
    assert parse_moment("--deadline", "2026-12-01T18:30").replace(tzinfo=None) == datetime(2026, 12, 1, 18, 30)
    assert parse_moment("--deadline", "2026-12-01T18:30+00:00").timestamp() == 1796149800
    assert parse_moment("--deadline", "2026-12-01").tzinfo is not None


@pytest.mark.parametrize(
    ("time_s", "expected"), [(0.0, True), (1.8e9, True), (-1.0, False), (1e12, False), (float("nan"), False)]
)
def test_moments_in_files_are_of_this_century_or_the_next(time_s: float, expected: bool) -> None:
    assert is_moment(time_s) is expected


@pytest.mark.parametrize("text", ["tomorrow", "2026-13-01", "", "20261201", "2026-12-01-05:00", "2026-12-01T05"])
def test_text_that_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=f"--deadline must be YYYY-MM-DD, YYYY-MM-DDTHH:MM or .*, got {text!r}"):
        parse_moment("--deadline", text)


@pytest.mark.parametrize("text", ["0001-01-01", "9999-12-31", "1969-12-31T23:59"])
def test_moment_that_no_zone_can_convert_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=f"--deadline must be in the years 2000 to 2199, got {text!r}"):
        parse_moment("--deadline", text)
