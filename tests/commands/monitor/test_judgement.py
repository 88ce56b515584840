"""The state of a run, and its remaining time, from what was found."""

from dataclasses import replace
from typing import Any

import pytest

from tests.commands.monitor.known_states import NOW_S, STANDING, STATUS, record
from yolo_lightning.commands.monitor.run_state import UNENDED, Facts, Judgement, RunVerdict, judge
from yolo_lightning.supervision.heartbeat import NoHeartbeat, Phase
from yolo_lightning.supervision.phase_timeouts import AdaptiveTimeouts, PhaseTimeouts
from yolo_lightning.supervision.run_status import Remaining, SupervisorState, remaining

ALIVE = Facts(
    now_s=NOW_S,
    heartbeat=record(),
    trainer_lives=True,
    waited_s=1.0,
    timeouts=AdaptiveTimeouts(PhaseTimeouts(step_s=60, validate_s=120), {}),
    finished_s=None,
    standing=None,
    supervisor_lives=False,
    last_sign_s=NOW_S - 5,
)
GONE = replace(ALIVE, trainer_lives=False, waited_s=None)
LEARNED = AdaptiveTimeouts(PhaseTimeouts(step_s=60), {"step": 30.0})
RUNNING = Judgement(RunVerdict.RUNNING)
SEEN = replace(STANDING, state=SupervisorState.STALLED, sentence="worker 7 sleeps")
WAITING = replace(STANDING, state=SupervisorState.RESTARTING, sentence="worker 7 slept")
EARLIER = replace(STANDING, state=SupervisorState.GAVE_UP, since_s=NOW_S - 1000)
LOST = Judgement(RunVerdict.GONE, NOW_S - 5, "the trainer and the supervisor disappeared")


def stalled(waited_s: float, sentence: str) -> Judgement:
    return Judgement(RunVerdict.STALLED, NOW_S - waited_s, sentence)


@pytest.mark.parametrize(
    ("facts", "changed", "judgement"),
    [
        (ALIVE, {}, RUNNING),
        *((ALIVE, {"heartbeat": record(phase)}, Judgement(RunVerdict.STARTING))
          for phase in (Phase.IMPORT, Phase.SETUP, Phase.INDEX)),
        # The timeout of the phase decides, also a learned one.
        (ALIVE, {"waited_s": 59.9}, RUNNING),
        (ALIVE, {"waited_s": 60.0}, stalled(60.0, "no progress in step")),
        (ALIVE, {"heartbeat": record(Phase.VALIDATE), "waited_s": 60.0}, RUNNING),
        (ALIVE, {"heartbeat": record(Phase.VALIDATE), "waited_s": 120.0}, stalled(120.0, "no progress in validate")),
        (ALIVE, {"waited_s": 100.0, "timeouts": LEARNED}, RUNNING),
        # A stall has the sentence of a supervisor that lives.
        (ALIVE, {"waited_s": 70.0, "standing": SEEN, "supervisor_lives": True}, stalled(70.0, "worker 7 sleeps")),
        (ALIVE, {"waited_s": 70.0, "standing": SEEN}, stalled(70.0, "no progress in step")),
        (ALIVE, {"heartbeat": NoHeartbeat.TORN}, Judgement(RunVerdict.BLIND, None, "the heartbeat file is incomplete")),
        (ALIVE, {"finished_s": NOW_S - 7}, Judgement(RunVerdict.FINISHED, NOW_S - 7, "the process is exiting")),
        (GONE, {"finished_s": NOW_S - 7}, Judgement(RunVerdict.FINISHED, NOW_S - 7)),
        (GONE, {}, Judgement(RunVerdict.GONE, NOW_S - 5, "the trainer disappeared")),
        (GONE, {"standing": STANDING}, LOST),
        (GONE, {"heartbeat": record(Phase.EXIT)},
         Judgement(RunVerdict.INTERRUPTED, NOW_S - 5, "the process ended before training was finished")),
        (GONE, {"standing": WAITING, "supervisor_lives": True},
         Judgement(RunVerdict.RESTARTING, NOW_S - 100, "attempt 2 since the last checkpoint: worker 7 slept")),
        # The first attempt before its heartbeat.
        (GONE, {"heartbeat": NoHeartbeat.MISSING, "standing": replace(STANDING, restarts=0), "supervisor_lives": True},
         Judgement(RunVerdict.STARTING, NOW_S - 100)),
        # The end of an earlier supervised run does not count.
        (GONE, {"standing": EARLIER}, LOST),
        (ALIVE, {"standing": EARLIER}, RUNNING),
        *((GONE, {"standing": replace(STANDING, state=state, since_s=NOW_S - 3, sentence="why")},
           Judgement(RunVerdict(state.value), NOW_S - 3, "why")) for state in SupervisorState if state not in UNENDED),
    ],
)  # fmt: skip
def test_judgement(facts: Facts, changed: dict[str, Any], judgement: Judgement) -> None:
    assert judge(replace(facts, **changed)) == judgement


@pytest.mark.parametrize(
    ("changed", "position", "expected"),
    [
        # 5 epochs of 75 batches; validations after epochs 2, 4 and the last
        ({}, (1, 30, Phase.STEP), Remaining(45 * 0.5 + 10, (45 + 3 * 75) * 0.5 + 3 * 10)),
        ({}, (0, 30, Phase.STEP), Remaining(45 * 0.5, (45 + 4 * 75) * 0.5 + 3 * 10)),
        # A validation that goes on counts whole, and a past one not.
        ({}, (4, 75, Phase.VALIDATE), Remaining(10, 10)),
        ({}, (4, 75, Phase.EPOCH_END), Remaining(0, 0)),
        # Several validations in an epoch.
        ({"validations_per_epoch": 3, "validate_every_epochs": 1}, (4, 0, Phase.STEP), Remaining(67.5, 67.5)),
        ({"validations_per_epoch": 3, "validate_every_epochs": 1}, (4, 60, Phase.STEP), Remaining(17.5, 17.5)),
        ({"step_s": None}, (1, 30, Phase.STEP), Remaining()),
        # A validation that was never measured is left out and counted.
        ({"validation_s": None}, (1, 30, Phase.STEP), Remaining(None, (45 + 3 * 75) * 0.5, 3)),
        ({"validation_s": None, "validate_every_epochs": None}, (1, 30, Phase.STEP), Remaining(22.5, 270 * 0.5)),
        ({"epochs": None}, (1, 30, Phase.STEP), Remaining(45 * 0.5 + 10)),
    ],
)  # fmt: skip
def test_remaining_time(changed: dict[str, Any], position: tuple[int, int, Phase], expected: Remaining) -> None:
    status = replace(STATUS, **changed)
    assert remaining(status, status.step_s, status.validation_s, *position) == expected
