"""Wall clock of a deadline: small steps are followed at once, a jump after it has lasted."""

import pytest

from yolo_lightning.utils.wall_clock import CONFIRMED_AFTER_S, WallClock

HOUR_S = 3600.0


class Clocks:
    """Clock of the system, which can be set, and clock since boot."""

    def __init__(self) -> None:
        self.boot_s = 100.0
        self.error_s = 1.8e9

    def wall(self) -> float:
        return self.boot_s + self.error_s

    def boot(self) -> float:
        return self.boot_s


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


def test_small_steps_are_followed_at_once(clocks: Clocks) -> None:
    clock = WallClock(clocks.wall, clocks.boot)
    for _ in range(10):
        clocks.boot_s += 5
        clocks.error_s += 30
        assert clock.now_s() == clocks.wall()


@pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S])
def test_jump_that_ends_is_ignored(clocks: Clocks, jump_s: float, caplog: pytest.LogCaptureFixture) -> None:
    clock = WallClock(clocks.wall, clocks.boot)
    clocks.error_s += jump_s
    for _ in range(10):
        clocks.boot_s += 1
        assert clock.now_s() == clocks.wall() - jump_s
    clocks.error_s -= jump_s
    assert clock.now_s() == clocks.wall()
    assert [record.message.partition(";")[0] for record in caplog.records] == [
        f"the wall clock has jumped by {jump_s:+.0f} s",
        "the wall clock is right again",
    ]


def test_jump_that_lasts_is_followed(clocks: Clocks) -> None:
    clock = WallClock(clocks.wall, clocks.boot)
    clocks.error_s += HOUR_S
    assert clock.now_s() == clocks.wall() - HOUR_S
    clocks.boot_s += CONFIRMED_AFTER_S
    assert clock.now_s() == clocks.wall()


def test_clock_continues_in_the_next_process_of_the_same_boot(clocks: Clocks) -> None:
    before = WallClock(clocks.wall, clocks.boot)
    clocks.error_s += HOUR_S
    after = WallClock(clocks.wall, clocks.boot)
    after.load_state_dict(before.state_dict())
    assert after.now_s() == clocks.wall() - HOUR_S
    other_boot = WallClock(clocks.wall, clocks.boot)
    other_boot.load_state_dict({**before.state_dict(), "boot": "another"})
    assert other_boot.now_s() == clocks.wall()
