"""One trainer per run folder."""

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

LOCK_FILE = "run.lock"


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds, or last held, a run folder.

    Attributes:
        process: Its id.
        host: Name of its machine.
        marker: `NAME=value` in the environment of the processes that it started; empty for none.
    """

    process: int
    host: str
    marker: str = ""


class RunInUseError(ValueError):
    """Another process trains in the folder."""


@contextmanager
def run_lock(folder: Path, marker: str = "") -> Iterator[Holder | None]:
    """Hold the run folder for the block; gives the one who held it before, if its file can be read.

    The kernel releases the lock when the process dies, however it dies, so a stale one cannot be; the file stays, as
    deleting it would let two processes hold two files of one name. Children do not inherit the lock.

    Raises:
        RunInUseError: If another process holds it.
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
        note = json.dumps(asdict(Holder(os.getpid(), socket.gethostname(), marker))) + "\n"
        with suppress(OSError):  # on a full disk the folder is held without a note of who holds it
            os.ftruncate(file.fileno(), 0)
            os.write(file.fileno(), note.encode())
        yield before


def read_holder(path: Path) -> Holder | None:
    """What a lock file says; None if it says nothing."""
    try:
        return Holder(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None
