import time

import pytest

from yolo_lightning.commands.monitor.wording import DAY_S, HOUR_S, duration, rate, share
from yolo_lightning.utils.moment import moment


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-3, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 0 s"),
        (250, "4 min 10 s"),
        (HOUR_S - 0.4, "1 h 0 min"),
        (2 * HOUR_S + 330, "2 h 5 min"),
        (3 * DAY_S + 4 * HOUR_S, "3 d 4 h"),
    ],
)
def test_duration_has_two_units(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_moment_of_another_day_has_its_date() -> None:
    noon_s = time.mktime((2026, 11, 20, 12, 0, 0, 0, 0, -1))
    assert moment(noon_s + 61, noon_s) == "12:01:01"
    assert moment(noon_s - 2 * HOUR_S, noon_s) == "10:00"
    assert moment(noon_s + 2 * DAY_S, noon_s) == "Sun 22 Nov 12:00"
    assert moment(noon_s + 60 * DAY_S, noon_s) == "19 Jan 2027 12:00"


def test_shares_and_rates() -> None:
    assert (share(None), share(0.254)) == ("?", "25 %")
    assert (rate(0.4), rate(12.34)) == ("2.50 it/s", "12.3 s/it")


def test_rate_of_a_damaged_status_file_is_unknown() -> None:
    assert (rate(0.0), rate(-1.0)) == ("? it/s", "? it/s")
