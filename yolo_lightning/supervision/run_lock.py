"""Lock of a run folder: at most one trainer or supervisor uses the folder."""

import fcntl
import json
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from yolo_lightning.errors import UserError
from yolo_lightning.utils.json_record import read_record
from yolo_lightning.utils.process_identity import started_ticks
from yolo_lightning.utils.run_files import LOCK_FILE

MARKER = re.compile(r"[\w-]{0,100}", re.ASCII)  # part of the names of folders, which are deleted

LOCK_ATTEMPTS = 3  # another process locks the file for a moment to see whether it is free
LOCK_PAUSE_S = 0.02


@dataclass(frozen=True, slots=True)
class Holder:
    """Process that holds, or held last, the lock of a run folder."""

    process: int
    host: str
    marker: str = ""  # token in the environment of the supervisor's trainers; empty without a supervisor
    started_ticks: int = 0  # start of the process, clock ticks since boot; 0 if unknown
    is_starting: bool = False  # whether the process has reserved the folder and has not locked it

    @property
    def is_own(self) -> bool:
        """Whether this is the present process or its parent process."""
        return self.host == socket.gethostname() and self.process in (os.getpid(), os.getppid())


class RunInUseError(UserError):
    """The run folder is locked by another process."""


@contextmanager
def run_lock(folder: Path, marker: str = "", *, is_starting: bool = False) -> Iterator[Holder | None]:
    """Lock the run folder for the block; yield the last holder if the lock file is readable.

    With `is_starting`, the folder is reserved for this process after the block (see `reserve`).

    The kernel releases the lock at the end of the process. The file remains, because two processes could otherwise lock
    two files with the same name. Child processes do not inherit the lock.

    Raises:
        RunInUseError: If another process holds the lock.
        OSError: If the file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK_FILE
    with path.open("a+") as file:
        if not _is_locked_now(file):
            holder = read_holder(path)
            who = f"process {holder.process} on {holder.host}" if holder else "another process"
            raise RunInUseError(
                f"{who} trains in {folder} already: wait until it has ended, end it, or choose another run folder"
            )
        before = read_holder(path)
        _note(file, marker, is_starting=is_starting)
        yield before


def reserve(folder: Path) -> bool:
    """Reserve a run folder for this process until it locks the folder; return False if another process uses it.

    The reservation is a note of this process. It remains when the process becomes the supervisor, and ends with it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK_FILE).open("a+") as file:
        if not _is_locked_now(file):
            return False
        before = read_holder(folder / LOCK_FILE)
        if _is_reserved(before):
            return False
        _note(file, before.marker if before else "", is_starting=True)
        return True


def in_use(folder: Path) -> bool:
    """Return whether a process besides this one and its parent process has locked or reserved a run folder."""
    try:
        holder = current_holder(folder)
    except ValueError:
        return True
    if holder is not None:
        return not holder.is_own
    return _is_reserved(read_holder(folder / LOCK_FILE))


def _is_reserved(holder: Holder | None) -> bool:
    if holder is None or holder.is_own or not holder.is_starting or holder.host != socket.gethostname():
        return False
    return 0 < started_ticks(holder.process) == holder.started_ticks


def _is_locked_now(file: IO[Any]) -> bool:
    """Lock a file; return False if another process holds the lock longer than a look at it takes."""
    for _ in range(LOCK_ATTEMPTS):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(LOCK_PAUSE_S)
    return False


def _note(file: IO[Any], marker: str, *, is_starting: bool) -> None:
    """Replace the content of a locked file by a note of this process; on a full disk there is none."""
    holder = Holder(os.getpid(), socket.gethostname(), marker, started_ticks(os.getpid()), is_starting)
    with suppress(OSError):
        os.ftruncate(file.fileno(), 0)
        os.write(file.fileno(), (json.dumps(asdict(holder)) + "\n").encode())


def current_holder(folder: Path) -> Holder | None:
    """Return the process that holds the lock of a run folder now, or None if the folder is not locked.

    Raises:
        UserError: If the folder is locked and the lock file does not name a process.
    """
    path = folder / LOCK_FILE
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
    except FileNotFoundError:
        return None
    except BlockingIOError as error:
        holder = read_holder(path)
        if holder is None:
            raise UserError(f"{path} is locked, but does not name the process that trains in {folder}") from error
        return holder


def read_holder(path: Path) -> Holder | None:
    """Return the content of a lock file, or None if it is missing or damaged, or its marker names no folder."""
    holder = read_record(path, Holder)
    if holder is None or not MARKER.fullmatch(holder.marker):
        return None
    return holder
