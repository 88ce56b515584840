"""Where the progress record of a supervised trainer lies: in memory, so that no disk delays the trainer or its watch.

The record that the trainer writes through a memory map lies in /dev/shm. On a disk that hangs, the next beat of the
trainer would wait in the kernel although training needs no file. The supervisor copies the record into the run folder
now and then, for readers on other machines and for the time after the run.
"""

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from yolo_lightning.supervision.heartbeat import PROGRESS_FILE, RECORD_BYTES
from yolo_lightning.supervision.run_lock import LOCK_FILE, read_holder
from yolo_lightning.utils.files import TEMPORARY_PREFIX

SHARED_MEMORY = Path("/dev/shm")
COPY_INTERVAL_S = 5.0


def folders(token: str) -> tuple[Path, ...]:
    """Return where the record of the supervisor with `token` may lie: in memory, or where that is full, on a disk."""
    name = f"yolo-{token[:12]}-record"
    return tuple(base / name for base in (SHARED_MEMORY, Path(tempfile.gettempdir())))


def make(token: str) -> Path:
    """Make a folder with room for a record, in place of an earlier one; return the path for the record.

    Raises:
        OSError: If there is no place for it.
    """
    remove(token)
    last = OSError("no folder for the progress record")
    for folder in folders(token):
        path = folder / PROGRESS_FILE
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            with path.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, RECORD_BYTES)
            path.unlink()  # there is no record before the trainer writes one
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            last = error
        else:
            return path
    raise last


def remove(token: str) -> None:
    """Delete the record and the stacks beside it, wherever they lie."""
    for folder in folders(token):
        shutil.rmtree(folder, ignore_errors=True)


def record_of(run: Path) -> Path:
    """Return the path of a run's record: the live one while a supervised trainer of this machine has one."""
    holder = read_holder(run / LOCK_FILE)
    live = [folder / PROGRESS_FILE for folder in folders(holder.marker)] if holder and holder.marker else []
    return next((path for path in live if path.is_file()), run / PROGRESS_FILE)


def write_copy(content: bytes, run: Path) -> None:
    """Store a copy of the record in the run folder, whole or not at all; a full disk leaves the older copy."""
    temporary = run / f"{TEMPORARY_PREFIX}{os.getpid()}-{PROGRESS_FILE}.part"
    with suppress(OSError):
        try:
            temporary.write_bytes(content)
            os.replace(temporary, run / PROGRESS_FILE)  # not flushed: the next copy follows within seconds
        finally:
            temporary.unlink(missing_ok=True)
