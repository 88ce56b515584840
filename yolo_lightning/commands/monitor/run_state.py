"""State of a run at one moment, and its warnings, from what was found. Pure functions."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from yolo_lightning.commands.console import share
from yolo_lightning.supervision.heartbeat import Heartbeat, NoHeartbeat, Phase
from yolo_lightning.supervision.incident import IncidentReport
from yolo_lightning.supervision.phase_timeouts import AdaptiveTimeouts
from yolo_lightning.supervision.rank_status import RankStatus
from yolo_lightning.supervision.run_status import Remaining, Status, SupervisorState, SupervisorStatus
from yolo_lightning.supervision.unsaved_checkpoint import UnsavedCheckpoint
from yolo_lightning.supervision.watches import WatchFinding
from yolo_lightning.utils.moment import duration, moment
from yolo_lightning.utils.process_identity import Process
from yolo_lightning.utils.sensors import SensorReadings


class RunVerdict(StrEnum):
    """State of a run."""

    STARTING = "starting"
    RUNNING = "running"
    BLIND = "running, heartbeat file unreadable"
    STALLED = "stalled"
    RESTARTING = "restarting"
    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    GAVE_UP = "gave up"
    NEEDS_REBOOT = "needs reboot"
    GONE = "stopped, process gone"


ALIVE = frozenset(
    {RunVerdict.STARTING, RunVerdict.RUNNING, RunVerdict.BLIND, RunVerdict.STALLED, RunVerdict.RESTARTING}
)
"""States in which the run has not ended."""

SETTING_UP = frozenset({Phase.IMPORT, Phase.SETUP, Phase.INDEX})
UNENDED = frozenset({SupervisorState.RUNNING, SupervisorState.STALLED, SupervisorState.RESTARTING})
"""States of a supervisor that has not ended; the other ones are states of a run, too."""
LATER_S = 60.0
"""A trainer that was active so many seconds after its supervisor ended was started without that supervisor."""

TRAINING = frozenset({Phase.FIRST_BATCH, Phase.FETCH, Phase.STEP})
WORKER_STATES = {"T": "stopped", "t": "held by a debugger", "D": "waiting in the kernel", "Z": "dead", "X": "dead"}
MAX_BATCH_S = 120.0
MAX_MEMORY_SHARE = 0.9
MIN_DISK_FREE_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Judgement:
    """State of a run, its start time and its reason."""

    verdict: RunVerdict
    since_s: float | None = None  # seconds since 1970; None if unknown
    sentence: str = ""  # reason; empty if there is none


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint file."""

    name: str
    age_s: float  # seconds since it was written
    size_bytes: int
    steps: int | None  # steps trained, from the sidecar file; None without one
    is_damaged: bool = False  # whether the sidecar file is unreadable or states another size


@dataclass(frozen=True, slots=True)
class RunState:
    """Everything that is known about a run at one moment; None if unknown."""

    folder: str
    now_s: float  # seconds since 1970
    judgement: Judgement
    phase: Phase | None = None
    phase_s: float | None = None  # seconds since the last heartbeat
    phase_timeout_s: float | None = None
    epoch: int | None = None  # from 0
    batch: int | None = None  # trained in the epoch
    step: int | None = None  # steps trained, over all restarts
    ranks: tuple[RankStatus, ...] = ()  # of a distributed fit
    trainer: Process | None = None
    workers: tuple[Process, ...] = ()
    status: Status | None = None  # last report of the trainer
    standing: SupervisorStatus | None = None  # last report of the supervisor
    remaining: Remaining = field(default_factory=Remaining)
    checkpoints: tuple[Checkpoint, ...] = ()  # newest first
    damaged: tuple[str, ...] = ()  # a sentence per file that exists and cannot be used
    incidents: tuple[IncidentReport, ...] = ()  # the latest, oldest first
    unsaved: UnsavedCheckpoint | None = None  # failed save that no successful one has followed
    machine: SensorReadings = field(default_factory=SensorReadings)

    @property
    def is_alive(self) -> bool:
        """Whether the run has not ended."""
        return self.judgement.verdict in ALIVE


@dataclass(frozen=True, slots=True)
class Facts:
    """What was found in the run folder and in the process table."""

    now_s: float  # seconds since 1970
    heartbeat: Heartbeat | NoHeartbeat  # or why the heartbeat cannot be read
    trainer_lives: bool
    waited_s: float | None  # seconds since the last heartbeat; None if unknown
    timeouts: AdaptiveTimeouts  # phase timeouts
    finished_s: float | None  # when the file that marks a finished run was written; None without one
    standing: SupervisorStatus | None  # last report of the supervisor
    supervisor_lives: bool
    last_sign_s: float | None  # newest modification time of the files that training writes


def judge(facts: Facts) -> Judgement:
    """Return the state of a run: by the heartbeat if the trainer lives, else by the report of the supervisor."""
    if facts.trainer_lives:
        return _judge_living(facts)
    if facts.finished_s is not None:
        return Judgement(RunVerdict.FINISHED, facts.finished_s)
    standing = facts.standing
    if standing is not None:
        is_stale = facts.last_sign_s is not None and facts.last_sign_s > standing.since_s + LATER_S
        if standing.state not in UNENDED and (facts.supervisor_lives or not is_stale):
            return Judgement(RunVerdict(standing.state.value), standing.since_s, standing.sentence)
        if facts.supervisor_lives:
            return _judge_between_attempts(standing)
    if isinstance(facts.heartbeat, Heartbeat) and facts.heartbeat.phase is Phase.EXIT:
        return Judgement(RunVerdict.INTERRUPTED, facts.last_sign_s, "the process ended before training was finished")
    reason = "the trainer disappeared" if standing is None else "the trainer and the supervisor disappeared"
    if isinstance(facts.heartbeat, NoHeartbeat):
        reason += f"; {facts.heartbeat}"
    return Judgement(RunVerdict.GONE, facts.last_sign_s, reason)


def _judge_living(facts: Facts) -> Judgement:
    """Return the state of a run whose trainer process exists."""
    if facts.finished_s is not None:
        return Judgement(RunVerdict.FINISHED, facts.finished_s, "the process is exiting")
    if isinstance(facts.heartbeat, NoHeartbeat):
        return Judgement(RunVerdict.BLIND, None, str(facts.heartbeat))
    phase = facts.heartbeat.phase
    if facts.waited_s is None or facts.waited_s < facts.timeouts.seconds(phase):
        if phase in SETTING_UP:
            return Judgement(RunVerdict.STARTING)
        return Judgement(RunVerdict.RUNNING)
    standing = facts.standing
    sentence = f"no progress in {phase.label}"
    if standing is not None and facts.supervisor_lives and standing.state is SupervisorState.STALLED:
        sentence = standing.sentence
    return Judgement(RunVerdict.STALLED, facts.now_s - facts.waited_s, sentence)


def _judge_between_attempts(standing: SupervisorStatus) -> Judgement:
    """Return the state of a run whose supervisor lives and has no trainer."""
    if standing.state is SupervisorState.RUNNING and standing.restarts == 0:
        return Judgement(RunVerdict.STARTING, standing.since_s)
    sentence = f"attempt {standing.attempt} since the last checkpoint"
    if standing.sentence:
        sentence += f": {standing.sentence}"
    return Judgement(RunVerdict.RESTARTING, standing.since_s, sentence)


def red_flags(state: RunState) -> list[str]:
    """Return one line per warning: first about the training, then about the machine, then those of the watches."""
    flags = [*state.damaged]
    if state.unsaved is not None and state.is_alive:
        flags.append(state.unsaved.sentence(state.now_s))
    flags += [*_training_flags(state), *_machine_flags(state)]
    if state.status is not None and state.is_alive:
        flags += [finding_line(finding, state.now_s) for finding in state.status.findings if finding.is_alarm]
    return flags


def finding_line(finding: WatchFinding, now_s: float) -> str:
    """Return a finding with its numbers and times."""
    subject = f"{finding.watch}: {finding.sentence}"
    since = moment(finding.since_s, now_s)
    if finding.until_s is None:
        return f"{subject}, since {since}"
    return f"{subject}, {since} to {moment(finding.until_s, now_s)} ({duration(finding.until_s - finding.since_s)})"


def _training_flags(state: RunState) -> Iterator[str]:
    """Yield warnings about missing progress, losses and loader workers."""
    is_waiting = state.is_alive and state.phase in TRAINING
    if is_waiting and state.phase_s is not None and state.phase_s > MAX_BATCH_S:
        yield f"no batch for {duration(state.phase_s)}"
    names = state.status.not_finite() if state.status is not None else ()
    if names:
        yield f"loss not finite: {', '.join(names)}"
    for worker in state.workers:
        if worker.state in WORKER_STATES:
            yield f"loader worker {worker.pid} is {WORKER_STATES[worker.state]} ({worker.state})"


def _machine_flags(state: RunState) -> Iterator[str]:
    """Yield warnings about sensors, GPUs, memory and disk."""
    machine = state.machine
    if machine.silent_s:
        yield f"the sensors have not answered for {duration(machine.silent_s)}"
    uses_gpu = state.status is not None and state.status.device.startswith("cuda")
    is_training = state.judgement.verdict in (RunVerdict.RUNNING, RunVerdict.STALLED)
    busy = [gpu.busy_share for gpu in machine.gpus if gpu.busy_share is not None]
    if uses_gpu and is_training and state.phase in (Phase.FETCH, Phase.STEP) and busy and not any(busy):
        yield "GPU at 0 %"
    if machine.memory is not None and 1 - machine.memory.free_share > MAX_MEMORY_SHARE:
        yield f"memory {share(1 - machine.memory.free_share)} full"
    if machine.disk is not None and machine.disk.free_share < MIN_DISK_FREE_SHARE:
        yield f"disk {share(1 - machine.disk.free_share)} full"
