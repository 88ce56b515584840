"""Lock of a run folder: at most one trainer or supervisor uses the folder."""

import fcntl
import json
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from yolo_lightning.utils.json_record import read_record
from yolo_lightning.utils.process_identity import started_ticks
from yolo_lightning.utils.run_files import LOCK_FILE

MARKER = re.compile(r"[\w-]{0,100}", re.ASCII)  # part of the names of folders, which are deleted


@dataclass(frozen=True, slots=True)
class Holder:
    """Process that holds, or held last, the lock of a run folder."""

    process: int
    host: str
    marker: str = ""  # token in the environment of the supervisor's trainers; empty without a supervisor
    started_ticks: int = 0  # start of the process, clock ticks since boot; 0 if unknown


class RunInUseError(ValueError):
    """The run folder is locked by another process."""


@contextmanager
def run_lock(folder: Path, marker: str = "") -> Iterator[Holder | None]:
    """Lock the run folder for the block; yield the last holder if the lock file is readable.

    The kernel releases the lock at the end of the process. The file remains, because two processes could otherwise lock
    two files with the same name. Child processes do not inherit the lock.

    Raises:
        RunInUseError: If another process holds the lock.
        OSError: If the file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK_FILE
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = read_holder(path)
            who = f"process {holder.process} on {holder.host}" if holder else "another process"
            raise RunInUseError(
                f"{who} trains in {folder} already: wait until it has ended, end it, or choose another run folder"
            ) from error
        before = read_holder(path)
        note = json.dumps(asdict(Holder(os.getpid(), socket.gethostname(), marker, started_ticks(os.getpid())))) + "\n"
        with suppress(OSError):  # on a full disk the lock holds without a note of its holder
            os.ftruncate(file.fileno(), 0)
            os.write(file.fileno(), note.encode())
        yield before


def current_holder(folder: Path) -> Holder | None:
    """Return the process that holds the lock of a run folder now, or None if the folder is not locked.

    Raises:
        ValueError: If the folder is locked and the lock file does not name a process.
    """
    path = folder / LOCK_FILE
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
    except FileNotFoundError:
        return None
    except BlockingIOError as error:
        if (holder := read_holder(path)) is None:
            raise ValueError(f"{path} is locked, but does not name the process that trains in {folder}") from error
        return holder


def read_holder(path: Path) -> Holder | None:
    """Return the content of a lock file, or None if it is missing or damaged, or its marker names no folder."""
    found = read_record(path, Holder)
    return found if found is not None and MARKER.fullmatch(found.marker) else None
