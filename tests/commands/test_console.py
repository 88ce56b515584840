"""Progress output of tools."""

import pytest

from yolo_lightning.commands import console
from yolo_lightning.commands.console import gigabytes, lines, rate, share
from yolo_lightning.utils.moment import DAY_S, HOUR_S, duration
from yolo_lightning.utils.plain_text import name_some


def test_lines_come_at_intervals_and_at_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now_s = 0.0
    monkeypatch.setattr(console.time, "monotonic", lambda: now_s)
    advance = lines("packed", 4000, interval_s=30.0)
    for step_s in (10.0, 25.0, 10.0, 65.0):
        now_s += step_s
        advance(1000)
    assert capsys.readouterr().out.splitlines() == [
        "packed 2,000 of 4,000, 57 per second, 0:35 left",
        "packed 4,000 of 4,000, 36 per second, 0:00 left",
    ]


def test_slow_progress_has_digits_and_an_estimate_that_is_too_small_prints_one_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now_s = 0.0
    monkeypatch.setattr(console.time, "monotonic", lambda: now_s)
    advance = lines("predicted", 2, interval_s=30.0)
    for _ in range(4):
        now_s += 4.0
        advance(1)
    assert capsys.readouterr().out.splitlines() == ["predicted 2 of 2, 0.25 per second, 0:00 left"]


def test_long_lists_are_cut() -> None:
    assert name_some(["a", "b"]) == "a; b"
    assert name_some({"a": "torn"}) == "a: torn"
    assert name_some([str(number) for number in range(7)]) == "0; 1; 2; 3; 4; and 2 more"


def test_sizes_have_a_fitting_unit() -> None:
    assert [gigabytes(size) for size in (0, 67_108_864, 46_453_000_000)] == ["0.0 MB", "67.1 MB", "46.5 GB"]


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


def test_shares_and_rates() -> None:
    assert (share(None), share(0.254)) == ("?", "25 %")
    assert (rate(0.4), rate(12.34)) == ("2.50 it/s", "12.3 s/it")
    assert (rate(0.0), rate(-1.0)) == ("? it/s", "? it/s")  # of a damaged status file
