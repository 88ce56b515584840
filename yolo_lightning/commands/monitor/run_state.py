"""What is known about a run, as plain data."""

from dataclasses import dataclass, field
from enum import StrEnum

from yolo_lightning.supervision.heartbeat import Phase
from yolo_lightning.supervision.run_status import Status
from yolo_lightning.supervision.state_file import Standing
from yolo_lightning.utils.sensors import Capacity, GpuReading, ProcessInfo


class RunVerdict(StrEnum):
    """How a run stands."""

    STARTING = "starting"
    RUNNING = "running"
    BLIND = "running, but its record says nothing"
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
"""Something is still to come."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """How a run stands.

    Attributes:
        verdict: In a word.
        since_s: Since when, wall clock, seconds since 1970; None where that is not known.
        sentence: Why, and what else belongs to it; may be empty.
    """

    verdict: RunVerdict
    since_s: float | None = None
    sentence: str = ""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One file.

    Attributes:
        name: File name.
        age_s: Seconds since it was written.
        size_bytes: Its length.
        steps: Batches trained, as its sidecar says; None without one.
    """

    name: str
    age_s: float
    size_bytes: int
    steps: int | None


@dataclass(frozen=True, slots=True)
class PastIncident:
    """What went wrong, and what was done about it.

    Attributes:
        time_s: Wall clock, seconds since 1970.
        kind: Class of the stall, or of the end.
        sentence: What was found.
        outcome: What was done; empty where nobody has said.
    """

    time_s: float
    kind: str
    sentence: str
    outcome: str = ""


@dataclass(frozen=True, slots=True)
class Remaining:
    """How long it still takes; None for unknown.

    Attributes:
        epoch_s: Until the end of the epoch, its validation included.
        run_s: Until all is trained and validated.
        unmeasured_validations: Validations to come that `run_s` leaves out, as none was measured yet.
    """

    epoch_s: float | None = None
    run_s: float | None = None
    unmeasured_validations: int = 0


@dataclass(frozen=True, slots=True)
class SensorReadings:
    """What the sensors say.

    Attributes:
        gpus: All that were found.
        memory: Main memory.
        disk: File system of the run folder.
        evicted_ms: For how long the kernel has stopped the trainer's GPU queues; None without an AMD GPU.
        silent_s: Seconds for which the sensors have not answered; 0 where they do.
    """

    gpus: tuple[GpuReading, ...] = ()
    memory: Capacity | None = None
    disk: Capacity | None = None
    evicted_ms: int | None = None
    silent_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RunState:
    """All that is known about a run at one moment.

    Attributes:
        folder: Run folder.
        now_s: The moment, wall clock, seconds since 1970.
        judgement: How it stands.
        phase: What the loop does; None where that is not known.
        phase_s: Seconds since that began, or went on; None where that cannot be told.
        allowance_s: Seconds that it may take; None where that is not known.
        epoch: From 0; None where it is not known.
        batch: Within the phase.
        step: Batches trained since training began.
        trainer: The process; None where it is not there.
        workers: Its loader workers.
        status: What training has said last.
        standing: What the supervisor has said last.
        remaining: How long it still takes.
        checkpoints: Newest first.
        incidents: The last few, oldest first.
        machine: GPU, memory, disk.
    """

    folder: str
    now_s: float
    judgement: Judgement
    phase: Phase | None = None
    phase_s: float | None = None
    allowance_s: float | None = None
    epoch: int | None = None
    batch: int | None = None
    step: int | None = None
    trainer: ProcessInfo | None = None
    workers: tuple[ProcessInfo, ...] = ()
    status: Status | None = None
    standing: Standing | None = None
    remaining: Remaining = field(default_factory=Remaining)
    checkpoints: tuple[Checkpoint, ...] = ()
    incidents: tuple[PastIncident, ...] = ()
    machine: SensorReadings = field(default_factory=SensorReadings)
