"""Profile of a training step: time of nested parts, and the table. No training runs."""

import importlib
from types import ModuleType

import pytest

from tests.conftest import REPOSITORY


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(REPOSITORY / "scripts"))
    return importlib.import_module("profile_step")


def test_time_of_an_inner_part_does_not_count_for_the_outer_one(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = iter([0.0, 1.0, 3.0, 6.0, 10.0, 15.0])
    monkeypatch.setattr(script.time, "thread_time", lambda: next(now_s))
    clock = script.PartClock()
    with clock.part("loss"):
        with clock.part("assigner"):
            pass
        clock.rename("backward")
    assert clock.seconds == {script.REST: 1.0, "loss": 2.0 + 4.0, "assigner": 3.0, "backward": 5.0}


def test_table_contains_medians_and_shares_without_the_self_check(script: ModuleType) -> None:
    measurements = [
        {"case": "gray", "parts": {script.FORWARD: 0.2, script.BACKWARD: 0.2, "loss": loss_s, script.SELF_CHECK: 9.0}}
        for loss_s in (0.1, 0.1, 0.3)
    ]
    lines = script.table(measurements).splitlines()
    assert lines[0] == "| ms per step | gray |"
    assert "| loss | 100.0 (100.0 to 300.0), 20.0% |" in lines
    assert f"| {script.TOTAL} | 500.0 (500.0 to 700.0), 100.0% |" in lines
    assert f"| {script.OUTSIDE} | 100.0 (100.0 to 300.0), 20.0% |" in lines
