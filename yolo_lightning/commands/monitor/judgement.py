"""How a run stands, from what was found: a pure function."""

from dataclasses import dataclass

from yolo_lightning.commands.monitor.run_state import Judgement, RunVerdict
from yolo_lightning.supervision.heartbeat import Blind, Phase, Progress
from yolo_lightning.supervision.phase_timeouts import Allowances
from yolo_lightning.supervision.state_file import Standing, SupervisorState

SETTING_UP = frozenset({Phase.IMPORT, Phase.SETUP, Phase.INDEX, Phase.SANITY})
ENDS = {
    SupervisorState.FINISHED: RunVerdict.FINISHED,
    SupervisorState.INTERRUPTED: RunVerdict.INTERRUPTED,
    SupervisorState.FAILED: RunVerdict.FAILED,
    SupervisorState.GAVE_UP: RunVerdict.GAVE_UP,
    SupervisorState.NEEDS_REBOOT: RunVerdict.NEEDS_REBOOT,
}
LATER_S = 60.0
"""A trainer that still lived so long after its supervisor had ended was started without one."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What was found.

    Attributes:
        now_s: Wall clock, seconds since 1970.
        found: The progress record, or why it says nothing.
        trainer_lives: Whether the process that wrote it is there.
        waited_s: Seconds since its last beat; None where that cannot be told.
        allowances: How long each phase may take.
        finished_s: When the finished marker was written, wall clock; None without one.
        standing: What the supervisor has said last.
        supervisor_lives: Whether it is there.
        last_sign_s: Last sign of life in the folder, wall clock; None where there is none.
    """

    now_s: float
    found: Progress | Blind
    trainer_lives: bool
    waited_s: float | None
    allowances: Allowances
    finished_s: float | None
    standing: Standing | None
    supervisor_lives: bool
    last_sign_s: float | None


def judge(facts: Facts) -> Judgement:
    """A trainer that lives speaks for itself; of one that is gone the supervisor knows more than its traces tell."""
    if facts.trainer_lives:
        return of_living(facts)
    if facts.finished_s is not None:
        return Judgement(RunVerdict.FINISHED, facts.finished_s)
    standing = facts.standing
    if standing is not None and (facts.supervisor_lives or not is_older(standing, facts.last_sign_s)):
        if standing.state in ENDS:
            return Judgement(ENDS[standing.state], standing.since_s, standing.sentence)
        if facts.supervisor_lives:
            return between_attempts(standing)
    if isinstance(facts.found, Progress) and facts.found.phase is Phase.EXIT:
        return Judgement(RunVerdict.INTERRUPTED, facts.last_sign_s, "the process has ended without having finished")
    watcher = ", its supervisor too" if standing is not None and not facts.supervisor_lives else ""
    blind = f"; {facts.found}" if isinstance(facts.found, Blind) else ""
    return Judgement(RunVerdict.GONE, facts.last_sign_s, f"no process of this run is there{watcher}{blind}")


def of_living(facts: Facts) -> Judgement:
    """Of a trainer whose process is there."""
    if facts.finished_s is not None:
        return Judgement(RunVerdict.FINISHED, facts.finished_s, "the process is ending")
    if isinstance(facts.found, Blind):
        return Judgement(RunVerdict.BLIND, None, str(facts.found))
    phase = facts.found.phase
    allowed_s = facts.allowances.seconds(phase)
    if facts.waited_s is not None and facts.waited_s >= allowed_s:
        seen = facts.standing if facts.supervisor_lives else None
        is_seen = seen is not None and seen.state is SupervisorState.STALLED
        return Judgement(
            RunVerdict.STALLED,
            facts.now_s - facts.waited_s,
            seen.sentence if seen is not None and is_seen else f"no progress in {name_of(phase)}",
        )
    return Judgement(RunVerdict.STARTING if phase in SETTING_UP else RunVerdict.RUNNING)


def between_attempts(standing: Standing) -> Judgement:
    """The supervisor lives and the trainer does not."""
    if standing.state is SupervisorState.RUNNING and standing.restarts == 0:
        return Judgement(RunVerdict.STARTING, standing.since_s)
    number = f"attempt {standing.attempt} of {standing.attempts}"
    return Judgement(
        RunVerdict.RESTARTING, standing.since_s, f"{number}: {standing.sentence}" if standing.sentence else number
    )


def is_older(standing: Standing, last_sign_s: float | None) -> bool:
    """Whether somebody has trained in the folder since."""
    return last_sign_s is not None and last_sign_s > standing.since_s + LATER_S


def name_of(phase: Phase) -> str:
    """For people."""
    return phase.name.lower().replace("_", " ")
