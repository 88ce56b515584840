"""Everything that is known about a run, as plain data."""

from dataclasses import dataclass, field
from enum import StrEnum

from yolo_lightning.supervision.heartbeat import Phase
from yolo_lightning.supervision.incident import IncidentReport
from yolo_lightning.supervision.processes import Process
from yolo_lightning.supervision.run_status import Status
from yolo_lightning.supervision.supervisor_status import SupervisorStatus
from yolo_lightning.utils.sensors import Capacity, GpuReading


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


@dataclass(frozen=True, slots=True)
class Remaining:
    """Estimated remaining time; None if unknown."""

    epoch_s: float | None = None  # until the end of the epoch with its validation
    run_s: float | None = None  # until the end of training with all validations that can be estimated
    unmeasured_validations: int = 0  # validations missing in `run_s`, because none has been timed yet


@dataclass(frozen=True, slots=True)
class SensorReadings:
    """Readings of GPUs, main memory and the disk of the run folder."""

    gpus: tuple[GpuReading, ...] = ()
    memory: Capacity | None = None
    disk: Capacity | None = None
    silent_s: float = 0.0  # seconds without an answer of the sensors; 0 if they answer


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
    trainer: Process | None = None
    workers: tuple[Process, ...] = ()
    status: Status | None = None  # last report of the trainer
    standing: SupervisorStatus | None = None  # last report of the supervisor
    remaining: Remaining = field(default_factory=Remaining)
    checkpoints: tuple[Checkpoint, ...] = ()  # newest first
    incidents: tuple[IncidentReport, ...] = ()  # the latest, oldest first
    machine: SensorReadings = field(default_factory=SensorReadings)
