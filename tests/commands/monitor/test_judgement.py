from dataclasses import replace

import pytest

from tests.commands.monitor.known_states import NOW_S, STANDING, record
from yolo_lightning.commands.monitor.run_state import ENDS, Facts, RunVerdict, judge
from yolo_lightning.supervision.heartbeat import NoHeartbeat, Phase
from yolo_lightning.supervision.phase_timeouts import AdaptiveTimeouts, PhaseTimeouts
from yolo_lightning.supervision.run_status import SupervisorState

ALIVE = Facts(
    now_s=NOW_S,
    found=record(),
    trainer_lives=True,
    waited_s=1.0,
    timeouts=AdaptiveTimeouts(PhaseTimeouts(step_s=60, validate_s=120), {}),
    finished_s=None,
    standing=None,
    supervisor_lives=False,
    last_sign_s=NOW_S - 5,
)
GONE = replace(ALIVE, trainer_lives=False, waited_s=None)


def test_beating_trainer_runs() -> None:
    assert judge(ALIVE).verdict is RunVerdict.RUNNING


@pytest.mark.parametrize("phase", [Phase.IMPORT, Phase.SETUP, Phase.INDEX])
def test_trainer_that_has_not_begun_is_starting(phase: Phase) -> None:
    assert judge(replace(ALIVE, found=record(phase))).verdict is RunVerdict.STARTING


@pytest.mark.parametrize(
    ("phase", "waited_s", "stalled"),
    [(Phase.STEP, 59.9, False), (Phase.STEP, 60.0, True), (Phase.VALIDATE, 60.0, False), (Phase.VALIDATE, 120.0, True)],
)
def test_timeout_of_the_phase_decides_what_is_a_stall(phase: Phase, waited_s: float, stalled: bool) -> None:
    found = judge(replace(ALIVE, found=record(phase), waited_s=waited_s))
    assert (found.verdict is RunVerdict.STALLED) == stalled
    assert found.since_s == (NOW_S - waited_s if stalled else None)


def test_learned_timeout_counts() -> None:
    learned = AdaptiveTimeouts(PhaseTimeouts(step_s=60), {Phase.STEP: 30.0})
    assert judge(replace(ALIVE, waited_s=100.0, timeouts=learned)).verdict is RunVerdict.RUNNING


def test_stall_that_the_supervisor_has_seen_bears_its_sentence() -> None:
    seen = replace(STANDING, state=SupervisorState.STALLED, sentence="worker 7 sleeps")
    stalled = replace(ALIVE, waited_s=70.0, standing=seen)
    assert judge(replace(stalled, supervisor_lives=True)).sentence == "worker 7 sleeps"
    assert judge(stalled).sentence == "no progress in step"


def test_torn_record_of_a_living_trainer_is_blindness_and_not_health() -> None:
    found = judge(replace(ALIVE, found=NoHeartbeat.TORN))
    assert (found.verdict, found.sentence) == (RunVerdict.BLIND, "the heartbeat file is incomplete")


def test_finished_marker_counts_also_while_the_process_ends() -> None:
    for facts in (ALIVE, GONE):
        found = judge(replace(facts, finished_s=NOW_S - 7))
        assert (found.verdict, found.since_s) == (RunVerdict.FINISHED, NOW_S - 7)


def test_process_that_vanished_is_gone_since_its_last_sign() -> None:
    found = judge(GONE)
    assert (found.verdict, found.since_s) == (RunVerdict.GONE, NOW_S - 5)
    assert "supervisor" not in found.sentence


def test_vanished_supervisor_is_named() -> None:
    assert "the trainer and the supervisor disappeared" in judge(replace(GONE, standing=STANDING)).sentence


def test_process_that_ended_by_itself_without_finishing_was_interrupted() -> None:
    assert judge(replace(GONE, found=record(Phase.EXIT))).verdict is RunVerdict.INTERRUPTED


def test_between_two_attempts_it_restarts() -> None:
    waiting = replace(STANDING, state=SupervisorState.RESTARTING, sentence="worker 7 slept")
    found = judge(replace(GONE, standing=waiting, supervisor_lives=True))
    assert (found.verdict, found.since_s) == (RunVerdict.RESTARTING, NOW_S - 100)
    assert found.sentence == "attempt 2 of 3: worker 7 slept"


def test_first_attempt_before_its_record_is_starting() -> None:
    first = replace(STANDING, restarts=0)
    assert (
        judge(replace(GONE, found=NoHeartbeat.MISSING, standing=first, supervisor_lives=True)).verdict
        is RunVerdict.STARTING
    )


@pytest.mark.parametrize("state", list(ENDS))
def test_end_that_the_supervisor_has_told_counts_after_it(state: SupervisorState) -> None:
    ended = replace(STANDING, state=state, since_s=NOW_S - 3, sentence="why")
    found = judge(replace(GONE, standing=ended))
    assert (found.verdict, found.since_s, found.sentence) == (ENDS[state], NOW_S - 3, "why")


def test_end_of_an_earlier_supervised_run_does_not_count() -> None:
    earlier = replace(STANDING, state=SupervisorState.GAVE_UP, since_s=NOW_S - 1000)
    assert judge(replace(GONE, standing=earlier)).verdict is RunVerdict.GONE
    assert judge(replace(ALIVE, standing=earlier)).verdict is RunVerdict.RUNNING
