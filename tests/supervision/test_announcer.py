"""What a supervisor says of itself: in `supervisor.json`, and when it pings."""

import os
import signal
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.supervision.supervised import Supervised, floors
from yolo_lightning.supervision import ExitCode, NotifySettings
from yolo_lightning.supervision.announcer import Announcer
from yolo_lightning.supervision.fallback import Decision, LadderState
from yolo_lightning.supervision.heartbeat import Heartbeat, Phase
from yolo_lightning.supervision.notify import News
from yolo_lightning.supervision.state_file import Standing, SupervisorState

RECORD = Heartbeat(1, 1, 0, 2, 0, 10, 10, Phase.STEP, 0.0, {}, ())


@dataclass
class Spy:
    """Instead of the messenger."""

    told: list[News] = field(default_factory=list)
    pings: int = 0

    def tell(self, news: News) -> None:
        self.told.append(news)

    def ping(self) -> None:
        self.pings += 1

    def close(self) -> None:
        pass


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now_s = [0.0]
    monkeypatch.setattr("yolo_lightning.supervision.announcer.time.monotonic", lambda: now_s[0])
    return now_s


def announcer(run: Path) -> tuple[Announcer, Spy]:
    made, spy = Announcer(run, NotifySettings(), 3), Spy()
    made._messenger = spy  # type: ignore[assignment]
    return made, spy


def standing(run: Path) -> Standing:
    found = Standing.read(run / "supervisor.json")
    assert found is not None
    return found


def test_pings_with_headway_and_not_more_often_than_asked_for(tmp_path: Path, clock: list[float]) -> None:
    made, spy = announcer(tmp_path)
    for step in range(10, 200):
        clock[0] += 1.0
        made.sees(replace(RECORD, step=step))
    assert spy.pings == 4  # at once, and after each of three minutes


@pytest.mark.parametrize(
    "states",
    [
        [replace(RECORD, sequence=number) for number in range(2, 900, 2)],
        [replace(RECORD, step=step) for _ in range(50) for step in (8, 9, 10)],
        [replace(RECORD, phase=Phase.SETUP, step=step) for step in range(500)],
        [None] * 500,
    ],
    ids=["beats without a step", "the same steps again and again", "set-up", "blind"],
)
def test_without_headway_comes_no_second_ping(
    states: list[Heartbeat | None], tmp_path: Path, clock: list[float]
) -> None:
    made, spy = announcer(tmp_path)
    made.sees(RECORD)
    for state in states:
        clock[0] += 60.0
        made.sees(state)
    assert spy.pings == 1


def test_batches_of_a_validation_are_headway(tmp_path: Path, clock: list[float]) -> None:
    made, spy = announcer(tmp_path)
    for batch in range(5):
        clock[0] += 60.0
        made.sees(replace(RECORD, phase=Phase.VALIDATE, batch=batch))
    assert spy.pings == 5


def test_recovery_is_told_at_the_first_trained_batch_with_what_was_lost(tmp_path: Path) -> None:
    made, spy = announcer(tmp_path)
    made.begins(1, "as configured", 0)
    decision = Decision(LadderState(rung=1, attempts=1, restarts=1), True, 0.0, "")
    made.restarts(decision, "no workers", "it slept", 37, stalled=True)
    made.begins(2, "no workers", 1)
    made.sees(replace(RECORD, phase=Phase.FIRST_BATCH))
    assert [news.event.value for news in spy.told] == ["started", "degraded"]
    made.sees(RECORD)
    made.sees(RECORD)
    assert [news.event.value for news in spy.told] == ["started", "degraded", "recovered"]
    assert spy.told[-1].details == {"steps_lost": 37, "rung": "no workers"}  # there is no checkpoint


def test_standing_follows_the_run(tmp_path: Path) -> None:
    made, _ = announcer(tmp_path)
    made.begins(4711, "as configured", 0)
    assert (standing(tmp_path).state, standing(tmp_path).trainer) == (SupervisorState.RUNNING, 4711)
    made.stalled("it sleeps")
    assert (standing(tmp_path).state, standing(tmp_path).sentence) == (SupervisorState.STALLED, "it sleeps")
    made.recovered()
    assert (standing(tmp_path).state, standing(tmp_path).sentence) == (SupervisorState.RUNNING, "")
    made.restarts(Decision(LadderState(attempts=1, restarts=5), True, 0.0, ""), "x", "it died", None, stalled=False)
    found = standing(tmp_path)
    assert (found.state, found.attempt, found.attempts, found.restarts, found.rung) == (
        SupervisorState.RESTARTING,
        2,
        3,
        5,
        "x",
    )
    assert (found.process, found.host) == (os.getpid(), os.uname().nodename)


@pytest.mark.parametrize(
    ("code", "state"),
    [
        (ExitCode.FINISHED, SupervisorState.FINISHED),
        (ExitCode.USAGE, SupervisorState.FAILED),
        (ExitCode.NEEDS_REBOOT, SupervisorState.NEEDS_REBOOT),
        (128 + signal.SIGTERM, SupervisorState.INTERRUPTED),
    ],
)
def test_exit_code_says_how_it_ended(code: int, state: SupervisorState, tmp_path: Path) -> None:
    made, spy = announcer(tmp_path)
    made.ended(code, "why")
    assert (standing(tmp_path).state, standing(tmp_path).sentence) == (state, "why")
    assert spy.told[-1].event.value == state.value


def test_folder_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    made, _ = announcer(tmp_path / "gone")
    made.begins(1, "x", 0)
    made.ended(0, "finished")


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"state": "dancing"}'])
def test_standing_that_says_nothing_is_none(content: str, tmp_path: Path) -> None:
    (tmp_path / "supervisor.json").write_text(content)
    assert Standing.read(tmp_path / "supervisor.json") is None


def test_real_supervisor_says_stalled_and_in_the_end_interrupted(tmp_path: Path) -> None:
    run = tmp_path / "run"
    supervised = Supervised(run, "sleep_for_ever", allowed=floors(step_s=0.6), kill_after_s=30.0)
    supervised.wait_for("incidents")
    end_s = time.monotonic() + 20
    while (state := Standing.read(run / "supervisor.json")) is None or state.state is not SupervisorState.STALLED:
        assert time.monotonic() < end_s, state
        time.sleep(0.05)
    assert "sleep_for_ever" in state.sentence
    supervised.process.send_signal(signal.SIGTERM)
    assert supervised.wait() == 128 + signal.SIGTERM
    assert standing(run).state is SupervisorState.INTERRUPTED
    assert "SIGTERM" in standing(run).sentence
