"""State of the supervisor in `supervisor.json`, and the times of its pings."""

import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest

from yolo_lightning.supervision.announcer import Announcer
from yolo_lightning.supervision.fallback_levels import FallbackState, LevelState
from yolo_lightning.supervision.heartbeat import Heartbeat, Phase
from yolo_lightning.supervision.helper_process import Call
from yolo_lightning.supervision.notify import NotifySettings
from yolo_lightning.supervision.run_status import SupervisorState, SupervisorStatus
from yolo_lightning.utils.activity import Activity
from yolo_lightning.utils.exit_codes import ExitCode

RECORD = Heartbeat(1, 1, 0, 2, 0, 10, 10, Phase.STEP, 0.0, {}, ())

NO_WORKERS = LevelState("no workers", "loader stall at step 47", "2026-11-23T22:00:00+0000")


class Direct:
    """Instead of the helper process: makes each call at once."""

    def post(self, function: Callable[..., Any], *arguments: Any, replaces: str = "") -> None:
        with suppress(OSError):
            function(*arguments)

    def begin(self, function: Callable[..., Any], *arguments: Any) -> Call[Any]:
        call: Call[Any] = Call(function, arguments)
        call.answered = True
        try:
            call.value = function(*arguments)
        except OSError as error:
            call.value = error
        return call


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now_s = [1000.0]
    monkeypatch.setattr("yolo_lightning.supervision.announcer.time.monotonic", lambda: now_s[0])
    return now_s


def announcer(run: Path, settings: NotifySettings | None = None) -> tuple[Announcer, Mock]:
    with patch("yolo_lightning.supervision.announcer.Notifier") as notifier:
        return Announcer(run, settings or NotifySettings(), Direct(), print), notifier()  # type: ignore[arg-type]


def sent(notifier: Mock) -> list[tuple[str, str]]:
    return [call.args for call in notifier.send.call_args_list]


def status(run: Path) -> SupervisorStatus:
    stored_status = SupervisorStatus.read(run / "supervisor.json")
    assert stored_status is not None
    return stored_status


@pytest.mark.parametrize(
    ("states", "interval_s", "pings"),
    [
        ([replace(RECORD, step=step) for step in range(10, 200)], 1.0, 4),  # at once, and after each of three minutes
        ([replace(RECORD, phase=Phase.VALIDATE, batch=batch) for batch in range(5)], 60.0, 5),
        ([replace(RECORD, sequence=number) for number in range(2, 900, 2)], 60.0, 1),
        ([replace(RECORD, step=step) for _ in range(50) for step in (10, 8, 9)], 60.0, 1),
        ([RECORD, *(replace(RECORD, phase=Phase.SETUP, step=step) for step in range(500))], 60.0, 1),
    ],
    ids=["steps", "batches of a validation", "beats without a step", "the same steps again and again", "set-up"],
)
def test_pings_follow_progress(
    states: list[Heartbeat], interval_s: float, pings: int, tmp_path: Path, clock: list[float]
) -> None:
    run_announcer = Announcer(tmp_path, NotifySettings(), Direct(), print)  # type: ignore[arg-type]
    with patch.object(run_announcer.notifier, "ping") as ping:
        for state in states:
            clock[0] += interval_s
            run_announcer.progress_made(state)
    assert ping.call_count == pings


def test_recovery_is_told_at_the_first_trained_batch_with_what_was_lost(tmp_path: Path) -> None:
    run_announcer, spy = announcer(tmp_path)
    run_announcer.attempt_started(1, FallbackState())
    run_announcer.restarting("it slept", FallbackState(NO_WORKERS, attempts=1, restarts=1), 37)
    run_announcer.attempt_started(2, FallbackState(NO_WORKERS, restarts=1))
    run_announcer.progress_made(replace(RECORD, phase=Phase.FIRST_BATCH))
    assert [event for event, _ in sent(spy)] == ["started", "degraded"]
    run_announcer.progress_made(RECORD)
    run_announcer.progress_made(RECORD)
    assert [event for event, _ in sent(spy)] == ["started", "degraded", "recovered"]
    assert (
        sent(spy)[-1][1]
        == f"training resumed from step 10, 37 steps lost, fallback level: {FallbackState(NO_WORKERS).line}"
    )


def test_waits_are_told_at_the_start_once_a_day_and_at_the_end(tmp_path: Path, clock: list[float]) -> None:
    run_announcer, spy = announcer(tmp_path)
    run_announcer.attempt_started(1, FallbackState())
    absent = replace(RECORD, activity=Activity.WAIT)
    for minutes in range(25 * 60):
        clock[0] += 60.0
        run_announcer.progress_made(absent)
        if minutes == 0:
            assert [event for event, _ in sent(spy)] == ["started"]
    run_announcer.progress_made(RECORD)
    assert [event for event, _ in sent(spy)] == ["started", "waiting", "waiting", "recovered"]
    for _ in range(25 * 60):
        clock[0] += 60.0
        run_announcer.waiting("waits for space", FallbackState(), 0)
    run_announcer.attempt_started(2, FallbackState())
    run_announcer.progress_made(RECORD)
    assert [event for event, _ in sent(spy)][4:] == ["waiting", "waiting", "recovered"]


def test_status_follows_the_run(tmp_path: Path) -> None:
    run_announcer, _ = announcer(tmp_path)
    run_announcer.attempt_started(4711, FallbackState())
    assert (status(tmp_path).state, status(tmp_path).trainer) == (SupervisorState.RUNNING, 4711)
    run_announcer.stalled("it sleeps", tmp_path)
    assert (status(tmp_path).state, status(tmp_path).sentence) == (SupervisorState.STALLED, "it sleeps")
    run_announcer.recovered()
    assert (status(tmp_path).state, status(tmp_path).sentence) == (SupervisorState.RUNNING, "")
    run_announcer.restarting("it died", FallbackState(attempts=1, restarts=5), None)
    final_status = status(tmp_path)
    assert (final_status.state, final_status.attempt, final_status.restarts, final_status.fallback_level) == (
        SupervisorState.RESTARTING,
        2,
        5,
        "as configured",
    )
    assert (final_status.process, final_status.host) == (os.getpid(), os.uname().nodename)


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
    run_announcer, spy = announcer(tmp_path)
    run_announcer.ended(code, "why")
    assert (status(tmp_path).state, status(tmp_path).sentence) == (state, "why")
    assert sent(spy)[-1] == (state.value, "why")


STATUS = {
    **dict.fromkeys(("interval_s", "step_s", "fetch_share", "trained_s", "validation_s", "best_map_50"), 1.0),
    **dict.fromkeys(("process", "process_started_ticks", "workers", "epochs", "batches_per_epoch"), 1),
    **{"epoch": 2, "batch": 7, "step": 99, "validate_every_epochs": 1, "validations_per_epoch": 1},
    **{"host": "h", "device": "cpu", "learning_rates": {}, "scores": []},
}


def checked(run: Path) -> list[tuple[str, str]]:
    """What is sent without any event of the supervisor."""
    run_announcer, spy = announcer(run, NotifySettings(webhook="http://localhost/"))
    run_announcer.serve()
    run_announcer.serve()
    return sent(spy)


@pytest.mark.parametrize(
    ("content", "ahead_s", "sent"),
    [
        (
            {"losses": {"train/box_loss": None}},
            100.0,
            [("loss is not finite", "train/box_loss in epoch 3, batch 7, step 99")],
        ),
        ({"losses": {"train/box_loss": 1.0}}, 100.0, []),
        ({"losses": {"train/box_loss": None}}, -100.0, []),
        (
            {"losses": {}, "deadline_s": 1e9, "deadline_problem": "too late"},
            100.0,
            [("deadline cannot be met", "too late")],
        ),
        (
            {"losses": {}, "epochs": 3602, "deadline_s": 5 * 3600.0, "is_planned": False},
            100.0,
            [("less than a day of buffer", "the estimated end is 3.0 h before the deadline")],
        ),
        (
            {"losses": {}, "epochs": 3602, "deadline_s": 3600.0, "is_planned": False},
            100.0,
            [("deadline cannot be met", "the estimated end is 1.0 h after the deadline")],
        ),
    ],
    ids=["not finite", "finite", "of an earlier run", "deadline", "buffer", "no buffer"],
)
def test_problem_in_the_status_file_is_sent(
    content: dict[str, Any], ahead_s: float, sent: list[tuple[str, str]], tmp_path: Path
) -> None:
    """A deadline without a plan is that many seconds after the status file was written."""
    written_s = time.time() + ahead_s
    if not content.get("is_planned", True):
        content = content | {"deadline_s": written_s + content["deadline_s"]}
    (tmp_path / "status.json").write_text(json.dumps(STATUS | content | {"written_s": written_s}))
    assert checked(tmp_path) == sent


def test_alarm_of_a_watch_is_sent_once_and_its_end_once(tmp_path: Path, clock: list[float]) -> None:
    run_announcer, spy = announcer(tmp_path, NotifySettings(webhook="http://localhost/"))
    hot = {"watch": "GPU too hot", "sentence": "84 °C, limit 80 °C", "since_s": 1000.0, "until_s": None}
    again = hot | {"since_s": 9000.0}
    ended = hot | {"until_s": 1600.0}
    for findings in ([], [hot], [hot], [ended], [ended], [ended, again], [ended, again]):
        content = STATUS | {"written_s": time.time() + 100.0, "losses": {}, "findings": findings}
        (tmp_path / "status.json").write_text(json.dumps(content))
        for _ in range(2):
            clock[0] += 31.0
            run_announcer.serve()
    assert sent(spy) == [
        ("GPU too hot", "84 °C, limit 80 °C"),
        ("GPU too hot: over", "after 10 min; last: 84 °C, limit 80 °C"),
        ("GPU too hot", "84 °C, limit 80 °C"),
    ]
