"""Where a supervised run stands, in a small file for whoever looks on."""

import json
import os
import socket
import time
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from yolo_lightning.supervision.processes import started_ticks
from yolo_lightning.utils.files import write_json


class SupervisorState(StrEnum):
    """What a supervisor is doing, or how it ended."""

    RUNNING = "running"
    STALLED = "stalled"
    RESTARTING = "restarting"
    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    GAVE_UP = "gave up"
    NEEDS_REBOOT = "needs reboot"


@dataclass(frozen=True, slots=True)
class Standing:
    """One state of the file; written when something changes, not in between.

    Attributes:
        state: What the supervisor is doing.
        since_s: Since when, wall clock, seconds since 1970.
        sentence: Why; empty where all is well.
        attempt: Number of the attempt since the last checkpoint, from 1.
        attempts: So many of them may fail in a row.
        restarts: Since the run began.
        rung: Name of the loader's rung.
        process: Id of the supervisor.
        process_started_ticks: When it was started, clock ticks since boot.
        host: Its machine.
        trainer: Process id of the attempt; 0 while there is none.
    """

    state: SupervisorState
    since_s: float
    sentence: str
    attempt: int
    attempts: int
    restarts: int
    rung: str
    process: int
    process_started_ticks: int
    host: str
    trainer: int = 0

    @classmethod
    def of_this_process(
        cls,
        state: SupervisorState,
        sentence: str,
        *,
        attempt: int,
        attempts: int,
        restarts: int,
        rung: str,
        trainer: int = 0,
    ) -> "Standing":
        """As of now."""
        return cls(
            state=state,
            since_s=time.time(),
            sentence=sentence,
            attempt=attempt,
            attempts=attempts,
            restarts=restarts,
            rung=rung,
            process=os.getpid(),
            process_started_ticks=started_ticks(os.getpid()),
            host=socket.gethostname(),
            trainer=trainer,
        )

    def write(self, path: Path) -> None:
        """To a file, whole or not at all.

        Raises:
            OSError: If it cannot be written.
        """
        write_json(path, asdict(self))

    @classmethod
    def read(cls, path: Path) -> "Standing | None":
        """From a file; None if there is none, or none that can be understood."""
        try:
            content = json.loads(path.read_text())
            return cls(**(content | {"state": SupervisorState(content["state"])}))
        except (OSError, ValueError, TypeError, KeyError):
            return None
