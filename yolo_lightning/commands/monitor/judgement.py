"""Derives the state of a run from what was found. Pure functions."""

from dataclasses import dataclass

from yolo_lightning.commands.monitor.run_state import Judgement, RunVerdict
from yolo_lightning.supervision.heartbeat import Blind, Phase, Progress
from yolo_lightning.supervision.incident import phase_name
from yolo_lightning.supervision.phase_timeouts import Allowances
from yolo_lightning.supervision.supervisor_status import SupervisorState, SupervisorStatus

SETTING_UP = frozenset({Phase.IMPORT, Phase.SETUP, Phase.INDEX, Phase.SANITY})
ENDS = {
    SupervisorState.FINISHED: RunVerdict.FINISHED,
    SupervisorState.INTERRUPTED: RunVerdict.INTERRUPTED,
    SupervisorState.FAILED: RunVerdict.FAILED,
    SupervisorState.GAVE_UP: RunVerdict.GAVE_UP,
    SupervisorState.NEEDS_REBOOT: RunVerdict.NEEDS_REBOOT,
}
LATER_S = 60.0
"""A trainer that was active so many seconds after its supervisor ended was started without that supervisor."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What was found in the run folder and in the process table."""

    now_s: float  # seconds since 1970
    found: Progress | Blind  # the heartbeat, or why it cannot be read
    trainer_lives: bool
    waited_s: float | None  # seconds since the last heartbeat; None if unknown
    allowances: Allowances  # phase timeouts
    finished_s: float | None  # when the file that marks a finished run was written; None without one
    standing: SupervisorStatus | None  # last report of the supervisor
    supervisor_lives: bool
    last_sign_s: float | None  # newest modification time of the files that training writes


def judge(facts: Facts) -> Judgement:
    """Return the state of a run: by the heartbeat if the trainer lives, else by the report of the supervisor."""
    if facts.trainer_lives:
        return judge_living(facts)
    if facts.finished_s is not None:
        return Judgement(RunVerdict.FINISHED, facts.finished_s)
    standing = facts.standing
    if standing is not None:
        is_stale = facts.last_sign_s is not None and facts.last_sign_s > standing.since_s + LATER_S
        if standing.state in ENDS and (facts.supervisor_lives or not is_stale):
            return Judgement(ENDS[standing.state], standing.since_s, standing.sentence)
        if facts.supervisor_lives:
            return judge_between_attempts(standing)
    if isinstance(facts.found, Progress) and facts.found.phase is Phase.EXIT:
        return Judgement(RunVerdict.INTERRUPTED, facts.last_sign_s, "the process ended before training was finished")
    supervisor = " and the supervisor" if standing is not None else ""
    unreadable = f"; {facts.found}" if isinstance(facts.found, Blind) else ""
    return Judgement(RunVerdict.GONE, facts.last_sign_s, f"the trainer{supervisor} disappeared{unreadable}")


def judge_living(facts: Facts) -> Judgement:
    """Return the state of a run whose trainer process exists."""
    if facts.finished_s is not None:
        return Judgement(RunVerdict.FINISHED, facts.finished_s, "the process is exiting")
    if isinstance(facts.found, Blind):
        return Judgement(RunVerdict.BLIND, None, str(facts.found))
    phase = facts.found.phase
    if facts.waited_s is None or facts.waited_s < facts.allowances.seconds(phase):
        return Judgement(RunVerdict.STARTING if phase in SETTING_UP else RunVerdict.RUNNING)
    standing = facts.standing
    is_reported = facts.supervisor_lives and standing is not None and standing.state is SupervisorState.STALLED
    sentence = standing.sentence if standing is not None and is_reported else f"no progress in {phase_name(phase)}"
    return Judgement(RunVerdict.STALLED, facts.now_s - facts.waited_s, sentence)


def judge_between_attempts(standing: SupervisorStatus) -> Judgement:
    """Return the state of a run whose supervisor lives and has no trainer."""
    if standing.state is SupervisorState.RUNNING and standing.restarts == 0:
        return Judgement(RunVerdict.STARTING, standing.since_s)
    reason = f": {standing.sentence}" if standing.sentence else ""
    return Judgement(
        RunVerdict.RESTARTING, standing.since_s, f"attempt {standing.attempt} of {standing.attempts}{reason}"
    )
