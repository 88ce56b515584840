"""State of a supervisor, in `supervisor.json` of the run folder."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from yolo_lightning.utils.json_record import read_record


class SupervisorState(StrEnum):
    """State of a running supervisor, or the way in which it ended."""

    RUNNING = "running"
    STALLED = "stalled"
    RESTARTING = "restarting"
    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    GAVE_UP = "gave up"
    NEEDS_REBOOT = "needs reboot"


@dataclass(frozen=True, slots=True)
class SupervisorStatus:
    """Content of the file, which is rewritten when the state changes."""

    state: SupervisorState
    since_s: float  # start of the state, seconds since 1970
    attempts: int  # limit of consecutive failed attempts
    process: int  # process id of the supervisor
    process_started_ticks: int  # start of that process, clock ticks since boot
    host: str  # host name of the supervisor
    sentence: str = ""  # reason for the state; empty while training makes progress
    attempt: int = 1  # number of the attempt since the last checkpoint, from 1
    restarts: int = 0  # since the run began
    fallback_level: str = ""
    trainer: int = 0  # process id of the trainer; 0 if none runs

    @classmethod
    def read(cls, path: Path) -> "SupervisorStatus | None":
        return read_record(path, cls)
