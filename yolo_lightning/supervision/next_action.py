"""Decision what follows an attempt of a supervised run: all rules, as functions without input and output.

`cause_of` names the cause of the end by the failure record of the trainer, else by the phase and the activity of its
heartbeat. Functions in stacks decide nothing. `next_action` returns the reaction and the state after it.
"""

import errno
import re
import signal
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

from yolo_lightning.supervision.classify import WRITES_IN_KERNEL, Diagnosis, StallClass
from yolo_lightning.supervision.failure_record import NO_FAILURE, REFUSAL, FailureRecord
from yolo_lightning.supervision.fallback_levels import (
    COMPUTATION,
    LOADER,
    ONE_LEVEL,
    PRECISION,
    FallbackState,
    Levels,
    LevelState,
    can_leave_out,
)
from yolo_lightning.supervision.heartbeat import NOT_STARTED, Heartbeat, Phase
from yolo_lightning.supervision.incident import Incident
from yolo_lightning.supervision.job import SuperviseSettings
from yolo_lightning.supervision.kill import Killed
from yolo_lightning.utils.activity import Activity
from yolo_lightning.utils.exit_codes import ExitCode, of_signal
from yolo_lightning.utils.files import DISK_FULL
from yolo_lightning.utils.stop_signals import STOP_SIGNALS, signal_name

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 300.0
MOST_DOUBLINGS = 30  # of a pause
EARLY_ATTEMPTS = 2
"""Limit of consecutive stalls before data and network are set up, in a run that has not trained yet."""

QUARANTINE_AFTER = 2
"""A sample at which training has ended this often within an epoch is suspected. Between two epochs it was trained."""

LAST_FAILURE = 2
"""A level that has failed this often in a run is not tried again."""

FAULTS = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL})
"""Signals that a program causes itself."""

FAILED_IMPORTS = frozenset({"ImportError", "SyntaxError"})
"""Errors of a program that is being updated: a run that has trained waits for the end of the update."""

PERMANENT_ERRORS = frozenset(
    {
        "SyntaxError",
        "ImportError",
        "NameError",
        "AttributeError",
        "TypeError",
        "ValueError",
        "NotImplementedError",
        "AssertionError",
        "KeyError",
        "IndexError",
        "PermissionError",
        REFUSAL,
    }
)
"""Errors in the output of a program without failure records that occur again after a restart."""

LOST_WORKER = frozenset({"ConnectionResetError", "ConnectionRefusedError", "BrokenPipeError", "EOFError"})
"""Errors of a trainer that waits for a batch of a worker that has died."""

MISSING_DEVICE = re.compile(
    r"No (CUDA|HIP|XPU) GPUs are available|Found no NVIDIA driver|no (CUDA|ROCm)-capable device|driver.*mismatch"
    r"|(hip|cuda)Error(NoDevice|InvalidDevice|InitializationError)",
    re.IGNORECASE,
)
DEVICE_FAILURE = re.compile(
    r"\b(CUDA|HIP) (driver )?error\b|\b(hip|cuda|miopen)(Error|Status)[A-Z]\w*|device lost|GPU is lost"
    r"|\b(CUDNN|CUBLAS|HIPBLAS|ROCBLAS)_STATUS_\w+|\bHSA_STATUS_ERROR|memory access fault by GPU|ERROR_DEVICE_LOST"
    r"|(cuDNN|MIOpen|rocBLAS|cuBLAS)\b.* error",
    re.IGNORECASE,
)
NO_DEVICE_MEMORY = re.compile(r"\b(CUDA|HIP|XPU)( error:)? out of memory|STATUS_ALLOC_FAILED", re.IGNORECASE)
DEAD_WORKER = re.compile(r"DataLoader worker \(pid|DataLoader worker exited")
STARVED_WORKER = re.compile(r"Caught MemoryError in DataLoader worker|insufficient shared memory")
ERRORS = {
    "WrongResultError": StallClass.WRONG_RESULT,
    "NonFiniteError": StallClass.NOT_FINITE,
    "OutOfMemoryError": StallClass.OUT_OF_MEMORY,
}
"""Causes by the class of an error, whatever its message says."""

MESSAGES = {
    STARVED_WORKER: StallClass.LOADER_CRASH,
    DEAD_WORKER: StallClass.LOADER_CRASH,
    NO_DEVICE_MEMORY: StallClass.OUT_OF_MEMORY,
    MISSING_DEVICE: StallClass.ENVIRONMENT,
    DEVICE_FAILURE: StallClass.DEVICE_ERROR,
}
"""Causes by the message of an error, where a library raises a RuntimeError; the first one counts."""

COMPUTES = frozenset({Activity.FORWARD, Activity.BACKWARD, Activity.OPTIMIZER})
STEPS = frozenset({Phase.FIRST_BATCH, Phase.STEP, Phase.VALIDATE})

REVOKES = frozenset(
    {
        StallClass.GPU_STALL,
        StallClass.DEVICE_ERROR,
        StallClass.WRONG_RESULT,
        StallClass.CRASH,
        StallClass.COMPUTATION,
    }
)
"""Causes after which `backend: auto` does not choose native convolutions in any run. NaN can have other causes."""

PHASES = {phase.label: phase for phase in Phase}
ACTIVITIES = {activity.label: activity for activity in Activity}

STALLS_OF_DEVICE = frozenset({StallClass.GPU_STALL, StallClass.COMPUTATION})
SLOW_OR_HUNG = frozenset({StallClass.STORAGE, StallClass.UNKNOWN})
"""Causes of stalls whose phase gets more time in the next attempt."""

LONG_STALL_S = 1800.0
"""A stall of this time is a hang, unless its cause is in `SLOW_OR_HUNG` and the run makes no progress."""

SAMPLES = "samples"


@dataclass(frozen=True, slots=True)
class Rule:
    """Reaction to a cause, apart from a restart."""

    remedies: tuple[str, ...] = ()  # what is changed, in this order: fallback levels, samples that are left out
    after: int = 0  # number of failures of the kind `remedies[0]`; 0 for more than `attempts` without a new checkpoint


RULES = {
    StallClass.WRONG_RESULT: Rule((COMPUTATION, PRECISION), 1),
    StallClass.NOT_FINITE: Rule((PRECISION, COMPUTATION), 1),
    StallClass.DEVICE_ERROR: Rule((COMPUTATION, PRECISION), 1),
    StallClass.OUT_OF_MEMORY: Rule((COMPUTATION,), 1),
    StallClass.GPU_STALL: Rule((COMPUTATION, PRECISION, SAMPLES), 1),
    StallClass.COMPUTATION: Rule((COMPUTATION, PRECISION, SAMPLES), 2),
    StallClass.CRASH: Rule((COMPUTATION, PRECISION, SAMPLES), 2),
    StallClass.LOADER_STALL: Rule((LOADER, SAMPLES), 1),
    StallClass.LOADER_CRASH: Rule((LOADER, SAMPLES), 2),
    StallClass.SAMPLE: Rule((SAMPLES,), 1),
    StallClass.ERROR: Rule((COMPUTATION, PRECISION, LOADER, SAMPLES)),
    StallClass.UNKNOWN: Rule((COMPUTATION, LOADER)),
    StallClass.KILLED: Rule((LOADER,)),
}
"""Reactions by cause; without one, the next attempt changes nothing."""


@dataclass(frozen=True, slots=True)
class AttemptFacts:
    """What the supervisor knows after an attempt: the trainer has ended, was killed, or could not be started."""

    settings: SuperviseSettings
    folder: Path  # of the incident report, if there is one
    levels: Levels = ONE_LEVEL
    heartbeat: Heartbeat = NOT_STARTED  # the last one
    finished: bool = False  # whether the trainer has reported the end of training
    stop_signal: int = 0  # number of the stop signal that the supervisor has received; 0 for none
    climbs: bool = False  # whether the trainer was stopped to take a fallback level back
    code: int | None = None  # exit code, negative for a signal; None if the trainer was killed after a stall
    lines: tuple[str, ...] = ()  # last lines of the output
    waited_s: float = 0.0  # seconds without a heartbeat; 0 unless the trainer has stalled
    grown_s: float = 0.0  # seconds from the start to the last sign of life of a program without a heartbeat
    rank: int = 0  # that hangs, while the first rank waits for this rank
    record: FailureRecord = NO_FAILURE  # of the trainer, or of the supervisor that could not start a trainer
    evidence: Diagnosis | None = None  # of a stall, from stacks and processes
    saved: bool = False  # whether the attempt has written a checkpoint of further steps
    trained: bool = False  # whether the run has trained a step, in this or an earlier attempt
    is_watched: bool = False  # whether a person has just started the run, and no step has been trained since
    failing_s: float = 0.0  # seconds since the first failure after the last checkpoint
    killed: Killed = field(default_factory=Killed)  # with the processes that SIGKILL did not end
    disk_hangs: bool = False  # whether the disk of the run folder did not respond
    disk_is_full: bool = False  # whether the disk of the run folder has no space for the next attempt
    can_test: bool = False  # whether there is a program that tests the device
    device_answers: bool | None = None  # result of this program; None before it has run
    now: str = ""  # ISO 8601

    def incident(self, diagnosis: Diagnosis) -> Incident:
        """Return the incident, at the place of the exception, if any: the teardown has changed the heartbeat."""
        heartbeat = self.heartbeat
        if self.record.phase in PHASES and not self.waited_s:
            activity = ACTIVITIES.get(self.record.activity, Activity.NONE)
            heartbeat = replace(heartbeat, phase=PHASES[self.record.phase], activity=activity)
        return Incident(self.folder, heartbeat, diagnosis, self.waited_s, self.rank)

    @property
    def is_blocked(self) -> bool:
        """Whether no attempt can be started: a process survives SIGKILL, or the device does not respond."""
        return bool(self.killed.survivors) or self.device_answers is False

    @property
    def is_blocked_by_disk(self) -> bool:
        """Whether processes survive SIGKILL because they wait for a disk: they end when the disk responds."""
        places = self.killed.survivors.values()
        return bool(places) and (self.disk_hangs or all(map(WRITES_IN_KERNEL.search, places)))

    @property
    def suspects(self) -> tuple[str, ...]:
        """Samples that can be the cause: of the record, of a hung worker, else the batch of a step."""
        if self.record.samples:
            return self.record.samples
        if self.evidence is not None and self.evidence.suspect:
            return (self.evidence.suspect,)
        if self.heartbeat.phase is not Phase.STEP:
            return ()
        return tuple(f"id={sample}" for sample in self.heartbeat.samples)


@dataclass(frozen=True, slots=True)
class Action:
    """Reaction to the end of an attempt; all reactions but `Finish` are followed by another attempt."""

    state: FallbackState  # after the reaction
    reason: str
    pause_s: float = 0.0  # before the next attempt
    longer: Phase | None = None  # phase whose timeout is doubled: slow and hung look the same


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish(Action):
    """The run ends."""

    code: int


class Wait(Action):
    """Something outside of the run is missing, or all remedies have failed. No attempt is counted."""


class TestDevice(Action):
    """Whether the device responds decides the reaction."""


class Restart(Action):
    """Another attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lower(Restart):
    """Another attempt at a lower fallback level."""

    part: str  # `LOADER`, `COMPUTATION` or `PRECISION`
    revokes: bool = False  # whether native convolutions of this device are not trusted any more


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine(Restart):
    """Another attempt without some samples."""

    samples: tuple[str, ...]


def cause_of(facts: AttemptFacts) -> StallClass:
    """Return the cause of the end of an attempt that has not finished."""
    record = facts.record
    if facts.disk_hangs:
        return StallClass.STORAGE
    if facts.disk_is_full and (not record.error or record.errno in DISK_FULL):
        return StallClass.DISK_FULL
    if record.error:
        return _cause_of_error(record, facts)
    if facts.waited_s:
        return cause_of_stall(facts.heartbeat) if facts.evidence is None else facts.evidence.kind
    if facts.code is not None and -facts.code in FAULTS:
        return StallClass.LOADER_CRASH if facts.heartbeat.activity is Activity.LOAD else StallClass.CRASH
    if facts.code is not None and (facts.code < 0 or facts.code in map(of_signal, STOP_SIGNALS)):
        return StallClass.KILLED
    return StallClass.UNKNOWN


def _cause_of_error(record: FailureRecord, facts: AttemptFacts) -> StallClass:
    names = record.names
    for name, cause in ERRORS.items():
        if name in names:
            return cause
    for pattern, cause in MESSAGES.items():
        if pattern.search(record.message) and not record.is_user_error:
            return cause
    if "AcceleratorError" in names:
        return StallClass.DEVICE_ERROR
    if names & LOST_WORKER and (record.activity == Activity.LOAD.label or not record.process):
        return StallClass.LOADER_CRASH
    is_missing = record.errno is not None or names & {"MemoryError", "TimeoutError", "ConnectionError"}
    if record.is_user_error and (facts.is_watched or not facts.trained):
        return StallClass.USER_ERROR
    if is_missing or (facts.trained and (record.is_user_error or names & FAILED_IMPORTS)):
        return StallClass.ENVIRONMENT
    if record.samples:
        return StallClass.SAMPLE
    if not record.process and not names & PERMANENT_ERRORS:
        return StallClass.UNKNOWN
    return StallClass.ERROR


def cause_of_stall(heartbeat: Heartbeat) -> StallClass:
    """Return the cause of a stall that no exception has preceded."""
    phase = heartbeat.phase
    activity = heartbeat.activity
    if activity in (Activity.EXCHANGE, Activity.UNKNOWN):
        return StallClass.UNKNOWN  # another rank hangs, or the phase is not the last one that could be read
    if activity is Activity.LOAD:
        return StallClass.LOADER_STALL
    if activity is Activity.DEVICE_WAIT:
        return StallClass.GPU_STALL
    if activity is Activity.WRITE or phase is Phase.SAVE:
        return StallClass.STORAGE
    if activity in COMPUTES or phase in (*STEPS, Phase.EXIT):
        return StallClass.COMPUTATION
    return StallClass.LOADER_STALL if phase is Phase.FETCH else StallClass.UNKNOWN


def next_action(state: FallbackState, facts: AttemptFacts) -> Action:
    """Return what follows an attempt. `state` is the state of the attempt."""
    if facts.finished:
        return Finish(state, "finished", code=ExitCode.FINISHED)
    if facts.stop_signal:
        if facts.killed.survivors:
            return _needs_reboot(state, facts)
        reason = f"stopped by {signal_name(facts.stop_signal)}"
        return Finish(state, reason, code=of_signal(facts.stop_signal))
    state = replace(state, trained=facts.trained)
    if facts.saved:
        state = state.after_progress()
    if facts.climbs:
        return _climb(state, facts)
    cause = cause_of(facts)
    action = _end(state, facts, cause) or _wait_or_test(state, facts, cause)
    if action is not None:
        return action
    return _remedy(_counted(state, facts, cause), facts, cause)


def _end(state: FallbackState, facts: AttemptFacts, cause: StallClass) -> Finish | None:
    """Return the end of the run if no further attempt can succeed."""
    if cause is StallClass.USER_ERROR:
        return _permanent(state, facts, ExitCode.USAGE)
    if _is_for_a_person(cause, facts):
        return _permanent(state, facts)
    is_out_of_patience = facts.failing_s >= facts.settings.patience_h * 3600
    if facts.is_blocked and (is_out_of_patience or not (facts.trained or facts.is_blocked_by_disk)):
        return _needs_reboot(state, facts)
    waits = facts.trained or facts.disk_hangs or cause is StallClass.DISK_FULL  # attempts have no limit
    if waits and is_out_of_patience:
        reason = f"gave up: no new checkpoint for {facts.settings.patience_h:g} h (supervision.patience_h)"
        return Finish(state, reason, code=ExitCode.GAVE_UP)
    return None


def _wait_or_test(state: FallbackState, facts: AttemptFacts, cause: StallClass) -> Action | None:
    """Return the reaction to a failure that says nothing about the settings of the run."""
    if facts.is_blocked:
        return _wait(state, facts, str(facts.killed) or "the device")
    is_doubtful = cause is StallClass.GPU_STALL or (cause is StallClass.DEVICE_ERROR and facts.waited_s > 0)
    if is_doubtful and facts.can_test and facts.device_answers is None:
        return TestDevice(state, "the device is tested")
    if cause is StallClass.DISK_FULL:
        return _wait(state, facts, "space on the disk of the run folder")
    if facts.disk_hangs:
        reason = "the disk of the run folder did not respond; this attempt does not count"
        return Restart(state, reason, pause_s=_pause_s(state, facts))
    if facts.trained and cause is StallClass.ENVIRONMENT:
        return _wait(state, facts, _missing(facts))
    return None


def _is_for_a_person(cause: StallClass, facts: AttemptFacts) -> bool:
    """Return whether an error before the first step ends the run, because a person can correct the error at once."""
    if cause is StallClass.ENVIRONMENT:
        return facts.record.process > 0 and facts.is_watched and not facts.trained
    return cause is StallClass.ERROR and (facts.is_watched or not facts.trained)


def _permanent(state: FallbackState, facts: AttemptFacts, code: int = ExitCode.FAILED) -> Finish:
    reason = f"a restart cannot correct this error: {facts.record.sentence}"
    return Finish(state, reason, code=code)


def _needs_reboot(state: FallbackState, facts: AttemptFacts) -> Finish:
    cause = "the device does not respond"
    if facts.killed.survivors:
        cause = f"SIGKILL did not end {facts.killed}"
    return Finish(state, f"needs reboot: {cause}", code=ExitCode.NEEDS_REBOOT)


def _missing(facts: AttemptFacts) -> str:
    """Return what an attempt that the outside world has ended needs, for `waits for ...`."""
    record = facts.record
    if record.errno == errno.ENOMEM or "MemoryError" in record.names:
        return "memory"
    return f"the end of this error: {record.sentence}"


def _wait(state: FallbackState, facts: AttemptFacts, missing: str, longer: Phase | None = None) -> Wait:
    first_s = max(facts.settings.poll_s, _first_pause_s(facts))
    pause_s = _doubled(first_s, state.waits)
    state = replace(state, waits=state.waits + 1)
    return Wait(state, f"waits for {missing}", pause_s=pause_s, longer=longer)


def _counted(state: FallbackState, facts: AttemptFacts, cause: StallClass) -> FallbackState:
    """Return the state with this failure counted: attempts, failures of the kind, suspected samples, equal errors."""
    failures = Counter(state.failures)
    rule = RULES.get(cause, Rule())
    if rule.after:  # a failure of unknown cause is no evidence against the computation or the loader
        failures.update(rule.remedies[:1])
    fingerprint = ""
    if facts.record.error:
        fingerprint = f"{facts.record.fingerprint} at step {facts.heartbeat.step}"
    is_equal = fingerprint != "" and fingerprint == state.fingerprint
    suspicions: Counter[str] = Counter()
    if state.suspicious_epoch == facts.heartbeat.epoch:
        suspicions.update(state.suspicions)
    suspicions.update(facts.suspects)
    return replace(
        state,
        attempts=state.attempts + 1,
        failures=dict(failures),
        fingerprint=fingerprint,
        equal_failures=state.equal_failures + 1 if is_equal else 0,
        suspicions=dict(suspicions),
        suspicious_epoch=facts.heartbeat.epoch,
    )


def _remedy(state: FallbackState, facts: AttemptFacts, cause: StallClass) -> Action:
    """Return the reaction to a failure that is not waited for."""
    remedies = _due_remedies(state, facts, cause)
    state = replace(state, on_trial="")
    for remedy in remedies:
        action = _changed(state, facts, cause, remedy)
        if action is not None:
            return action
    limit = facts.settings.attempts
    longer = facts.heartbeat.phase if _can_be_slow(state, facts, cause) else None
    if facts.trained and state.attempts > limit:
        missing = f"a successful attempt, after {state.attempts} failed ones: {cause} at step {facts.heartbeat.step:,}"
        return _wait(state, facts, missing, longer)
    if not facts.trained and state.equal_failures:
        return _permanent(state, facts)
    if _hangs_at_start(facts):
        limit = min(limit, EARLY_ATTEMPTS)
    if not facts.trained and state.attempts >= limit:
        reason = f"gave up: {state.attempts} consecutive attempts without a new checkpoint"
        return Finish(state, reason, code=ExitCode.GAVE_UP)
    return Restart(state, _attempt(state), pause_s=_pause_s(state, facts), longer=longer)


def _can_be_slow(state: FallbackState, facts: AttemptFacts, cause: StallClass) -> bool:
    """Return whether a stalled phase gets more time: if it can be slow, or if all remedies of a hang have failed.

    A hang that returns again and again after new checkpoints must not take hours each time.
    """
    if not facts.waited_s:
        return False
    if cause in SLOW_OR_HUNG:
        return not facts.saved or facts.waited_s < LONG_STALL_S
    return state.attempts > facts.settings.attempts and facts.waited_s < LONG_STALL_S


def _hangs_at_start(facts: AttemptFacts) -> bool:
    return facts.waited_s > 0 and facts.heartbeat.phase <= Phase.SETUP


def _due_remedies(state: FallbackState, facts: AttemptFacts, cause: StallClass) -> tuple[str, ...]:
    """Return what can be changed after this failure, in order; nothing before the cause has repeated."""
    rule = RULES.get(cause, Rule())
    if state.on_trial and not facts.saved:
        return (state.on_trial, *rule.remedies)
    if _hangs_at_start(facts):
        return ()
    is_starved = STARVED_WORKER.search(facts.record.message)
    is_evicted = facts.evidence is not None and facts.evidence.evicted and cause in STALLS_OF_DEVICE
    if is_starved or is_evicted:  # both follow from the number of workers
        return (LOADER, *rule.remedies)
    after = rule.after
    if cause is StallClass.LOADER_STALL and facts.heartbeat.phase is Phase.FIRST_BATCH:  # a slow start looks the same
        after = 2
    is_due = state.attempts > facts.settings.attempts or state.equal_failures > 0
    if after:
        is_due = state.failures.get(rule.remedies[0], 0) >= after
    return rule.remedies if is_due else ()


def _changed(state: FallbackState, facts: AttemptFacts, cause: StallClass, remedy: str) -> Action | None:
    """Return the restart with a lower level or without the suspected samples; None if there is nothing to change."""
    if remedy == SAMPLES:
        return _without_suspects(state, facts, cause)
    levels = getattr(facts.levels, remedy)
    before: LevelState = getattr(state, remedy)
    number = before.number(levels)
    below = levels[number + 1 :]
    if cause is StallClass.OUT_OF_MEMORY and remedy == COMPUTATION:
        below = [level for level in below if level.saves_memory]
    if not below:
        return None
    name = levels[number].name
    # The second failure of a level follows an attempt to take the level back.
    failed_climbs = state.failed_climbs + (name in before.failures)
    failures = before.failures.get(name, 0) + 1
    if cause is StallClass.WRONG_RESULT:
        failures = LAST_FAILURE
    reason = f"{cause} at step {facts.heartbeat.step:,}"
    lowered = LevelState(below[0].name, reason, facts.now, before.failures | {name: failures})
    counts = {kind: count for kind, count in state.failures.items() if kind != remedy}
    state = replace(state, failures=counts, failed_climbs=failed_climbs, equal_failures=0)
    reason = f"{_attempt(state)}, fallback level '{lowered.name}'"
    pause_s = _pause_s(state, facts)
    state = replace(state, **{remedy: lowered})  # type: ignore[arg-type]
    if remedy != LOADER:
        state = replace(state, attempts=0)
    revokes = remedy == COMPUTATION and cause in REVOKES
    return Lower(state, reason, pause_s=pause_s, part=remedy, revokes=revokes)


def _without_suspects(state: FallbackState, facts: AttemptFacts, cause: StallClass) -> Action | None:
    """Return the restart without the samples that a record names, or, after all else, those at which training ends."""
    if cause is not StallClass.SAMPLE and state.attempts <= facts.settings.attempts:
        return None
    samples = tuple(
        sample
        for sample in facts.suspects
        if state.suspicions.get(sample, 0) >= QUARANTINE_AFTER
        and sample not in state.quarantined
        and can_leave_out(sample)
    )
    if not samples:
        return None
    reason = f"{_attempt(state)}, leaving out {', '.join(samples)}"
    state = replace(state, quarantined=(*state.quarantined, *samples))
    return Quarantine(state, reason, pause_s=_pause_s(state, facts), samples=samples)


def _attempt(state: FallbackState) -> str:
    return f"attempt {state.attempts + 1} since the last checkpoint"


def _first_pause_s(facts: AttemptFacts) -> float:
    return min(FIRST_PAUSE_S, facts.settings.pause_s)


def _doubled(pause_s: float, times: int) -> float:
    return min(pause_s * 2.0 ** min(times, MOST_DOUBLINGS), LONGEST_PAUSE_S)


def _pause_s(state: FallbackState, facts: AttemptFacts) -> float:
    """Return the pause before the next attempt: short before the first one, then doubled from `pause_s` on."""
    if state.attempts <= 1:
        return _first_pause_s(facts)
    return _doubled(facts.settings.pause_s, state.attempts - 2)


def level_to_take_back(state: FallbackState, levels: Levels) -> tuple[str, str] | None:
    """Return the name of a part and the level above its present one; None if no level can be taken back."""
    for part, present in state.parts.items():
        of_part = getattr(levels, part)
        number = present.number(of_part)
        if number and present.failures.get(of_part[number - 1].name, 0) < LAST_FAILURE:
            return part, of_part[number - 1].name
    return None


def _climb(state: FallbackState, facts: AttemptFacts) -> Restart:
    """Return the restart with one level taken back."""
    target = level_to_take_back(state, facts.levels)
    assert target is not None, "the trainer is stopped only if a level can be taken back"
    part, name = target
    reason = "no incident for some time"
    raised = LevelState(name, reason, facts.now, getattr(state, part).failures)
    state = replace(state, on_trial=part, attempts=0, **{part: raised})  # type: ignore[arg-type]
    return Restart(state, f"{reason}, fallback level: {state.line}")
