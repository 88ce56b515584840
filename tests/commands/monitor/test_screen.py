"""The text of the screen, line by line."""

from dataclasses import replace
from datetime import datetime
from io import StringIO

import pytest
from rich.console import Console

from tests.commands.monitor.known_states import NOW_S, STANDING, STATUS
from yolo_lightning.commands.monitor.run_state import (
    Checkpoint,
    Judgement,
    RunState,
    RunVerdict,
)
from yolo_lightning.commands.monitor.screen import buffer_of, screen
from yolo_lightning.supervision.heartbeat import Phase
from yolo_lightning.supervision.incident import IncidentReport
from yolo_lightning.supervision.rank_status import RankStatus
from yolo_lightning.supervision.run_status import Remaining
from yolo_lightning.utils.process_identity import Process
from yolo_lightning.utils.sensors import Capacity, GpuReading, SensorReadings

STATE = RunState(
    folder="runs/ltdv2",
    now_s=NOW_S,
    judgement=Judgement(RunVerdict.RUNNING),
    phase=Phase.STEP,
    phase_s=0.4,
    phase_timeout_s=60.0,
    epoch=1,
    batch=30,
    step=105,
    trainer=Process(4711, "python", "R", memory_bytes=1_200_000_000),
    workers=(
        Process(4712, "pt_data_worker", "S", memory_bytes=300_000_000),
        Process(4713, "pt_data_worker", "T", memory_bytes=0),
    ),
    status=STATUS,
    standing=STANDING,
    remaining=Remaining(32.5, 165.0),
    checkpoints=(Checkpoint("step-000000100.ckpt", 12.0, 36_500_000, 100), Checkpoint("best.ckpt", 90.0, 1, None)),
    incidents=(
        IncidentReport(
            NOW_S - 300, "loader stall", "loader stall: worker 7 slept", "restart in 10 s", 105.0, "20261120-120000"
        ),
    ),
    machine=SensorReadings(
        gpus=(GpuReading("AMD GPU 1", 0.97, 71.0, 180.0, 5_000_000_000, 8_573_157_376),),
        memory=Capacity(4_000_000_000, 16_000_000_000),
        disk=Capacity(60, 100),
    ),
)


def draw(state: RunState, width: int = 80) -> str:
    file = StringIO()
    Console(file=file, width=width, color_system=None).print(screen(state))
    return file.getvalue()


@pytest.mark.parametrize("width", [80, 120])
def test_everything_is_shown_and_fits(width: int) -> None:
    shown = draw(STATE, width=width)
    assert max(map(len, shown.splitlines())) == width
    assert len(shown.splitlines()) <= 24
    for words in (
        *("RUNNING", "restarts: 1, fallback level: as configured", "step for 0 s, timeout 1 min 0 s, process 4711 (R)"),
        *("2 of 5, batch 30 of 75", "28 %, step 105", "2.00 it/s now, 1.75 it/s on average"),
        *("25 % waiting for data", "epoch 32 s, run 2 min 45 s, done", "11.5, box 4.25, cls 3"),
        *("lr 0.01 / 0.02", "0.1234 (epoch 1); best 0.1234", "97 % busy, 71 °C, 180 W, 5.0 GB of 8.6 GB"),
        *("memory 4.0 GB of 16.0 GB, this run 1.5 GB", "40 %"),
        *("2 workers: 4712 (S), 4713 (T)", "step-000000100.ckpt 12 s ago, 36.5 MB", "! loader worker 4713 is stopped"),
        *("loader stall: worker 7 slept", "restart in 10 s"),
    ):
        assert words in " ".join(line.strip("│ ") for line in shown.splitlines()), words
    assert "loader stall: loader stall" not in shown


@pytest.mark.parametrize(
    ("time_s", "since"),
    [(NOW_S - 60, "%H:%M:%S"), (NOW_S - 3 * 24 * 3600, "%Y-%m-%dT%H:%M:%S%z")],
    ids=["today", "earlier"],
)
def test_a_lowered_fallback_level_has_its_own_row(time_s: float, since: str) -> None:
    then = datetime.fromtimestamp(time_s).astimezone()
    level = f"loader: no workers since {then:%Y-%m-%dT%H:%M:%S%z} (loader stall at step 54)"
    lines = draw(replace(STATE, standing=replace(STANDING, fallback_level=level))).splitlines()
    at = next(number for number, line in enumerate(lines) if "level" in line)
    assert lines[at].startswith(f"│ level   loader: no workers since {then.strftime(since)} (loader stall")
    assert "restarts: 1 " in lines[at - 1]


@pytest.mark.parametrize(
    ("remaining", "words"),
    [
        (Remaining(32.5), "ETA     epoch 32 s, run unknown: no trainer.max_epochs"),
        (Remaining(None, 165.0, 3), "run 2 min 45 s + 3 validations not yet timed"),
        (Remaining(None, 165.0, 1), "+ 1 validation not yet timed"),
        (Remaining(), "ETA     estimating"),
    ],
)
def test_time_that_is_not_known_is_not_invented(remaining: Remaining, words: str) -> None:
    shown = draw(replace(STATE, remaining=remaining, status=replace(STATUS, step_s=None, fetch_share=None, step=0)))
    assert words in shown
    assert "speed   not timed yet" in shown
    assert "done" not in shown


def test_stalled_run_promises_no_date_and_says_since_when() -> None:
    stalled = replace(STATE, judgement=Judgement(RunVerdict.STALLED, NOW_S - 70, "worker 7 sleeps"), phase_s=70.0)
    shown = draw(stalled)
    assert "STALLED since" in shown
    assert "(1 min 10 s)" in shown
    assert "worker 7 sleeps" in shown
    assert "done" not in shown
    assert "2.00 it/s last" in shown


@pytest.mark.parametrize(("margin_s", "words"), [(3600, "1 h 0 min to spare"), (-90, "1 min 30 s too late")])
def test_deadline_of_the_run_is_compared_and_shown_with_its_problem(margin_s: float, words: str) -> None:
    planned = replace(STATUS, deadline_s=NOW_S + 165 + margin_s, deadline_problem="40 s are left")
    state = replace(STATE, status=planned)
    assert buffer_of(state) == margin_s
    assert f"{words}; 40 s are left" in " ".join(draw(state).replace("│", "").split())


def test_deadline_without_known_time_is_shown_alone() -> None:
    state = replace(STATE, status=replace(STATUS, deadline_s=NOW_S), remaining=Remaining(None, 165.0, 3))
    assert buffer_of(state) is None
    shown = draw(state)
    assert "deadline" in shown
    assert "to spare" not in shown


def test_ended_run_shows_what_it_reached() -> None:
    ended = replace(STATE, judgement=Judgement(RunVerdict.FINISHED, NOW_S - 7200), trainer=None, workers=())
    shown = draw(ended)
    assert "FINISHED since" in shown
    assert "ETA" not in shown
    assert "timeout" not in shown
    assert "best 0.1234" in shown


def test_markup_in_names_is_shown_as_it_is() -> None:
    assert "runs/[red]x" in draw(replace(STATE, folder="runs/[red]x"))
    incident = IncidentReport(NOW_S, "unknown", "unknown: in [/bold] frame", "", None, "")
    assert "[/bold] frame" in draw(replace(STATE, incidents=(incident,)))


def test_newest_incident_is_shown_whole_and_older_ones_in_a_line() -> None:
    past = tuple(
        IncidentReport(NOW_S - age_s, "unknown", f"unknown: {age_s} {'x' * 100} end", "", None, "")
        for age_s in (3000, 2000)
    )
    lines = [line for line in draw(replace(STATE, incidents=past)).splitlines() if "unknown:" in line or "end" in line]
    assert "2000" in lines[0]
    assert "end" in lines[1]
    assert "3000" in lines[2]
    assert "…" in lines[2]
    assert len(lines) == 3


def test_sentence_of_the_present_stall_is_shown_once() -> None:
    judgement = Judgement(RunVerdict.STALLED, NOW_S - 70, "loader stall: worker 7 slept")
    shown = draw(replace(STATE, judgement=judgement))
    assert shown.count("worker 7 slept") == 1
    assert "→ restart in 10 s" in shown


def test_nothing_known_is_no_error() -> None:
    assert "STOPPED, PROCESS GONE" in draw(RunState("runs/x", NOW_S, Judgement(RunVerdict.GONE)))


def test_ranks_that_do_not_wait_for_others_come_first() -> None:
    waiting = [RankStatus(rank, "node1", "step", "exchange", 1204, 40.0, NOW_S) for rank in range(9)]
    hanging = RankStatus(9, "node2", "step", "forward", 1204, 41.0, NOW_S - 60)
    lines = [line for line in draw(replace(STATE, ranks=(*waiting, hanging))).splitlines() if " on node" in line]
    assert len(lines) == 8
    assert "9 on node2 in step (forward) for 41 s, step 1,204 (1 min 0 s ago)" in lines[0]
    assert "0 on node1 in step (exchange) for 40 s, step 1,204" in lines[1]
