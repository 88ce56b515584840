"""Location of the heartbeat file of a supervised trainer.

The file is in /dev/shm, so that neither the trainer nor the supervisor waits for a disk: on a disk that hangs, a write
through the memory map would block the trainer. The supervisor regularly copies the file into the run folder, for
readers on other machines and after the run.
"""

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from yolo_lightning.supervision.heartbeat import RECORD_BYTES
from yolo_lightning.supervision.run_lock import read_holder
from yolo_lightning.utils.files import replacing
from yolo_lightning.utils.run_files import HEARTBEAT_FILE, LOCK_FILE

SHARED_MEMORY = Path("/dev/shm")
COPY_INTERVAL_S = 5.0


def folders(token: str) -> tuple[Path, ...]:
    """Return the possible folders of the heartbeat file of the supervisor with `token`: in memory, or on a disk."""
    return tuple(base / f"{token}-record" for base in (SHARED_MEMORY, Path(tempfile.gettempdir())))


def make(token: str) -> Path:
    """Create the folder of the heartbeat file, and return the path of the file; raise an OSError without free space."""
    remove(token)
    last = OSError("no folder for the heartbeat file")
    for folder in folders(token):
        path = folder / HEARTBEAT_FILE
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            with path.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, RECORD_BYTES)
            path.unlink()  # the trainer creates the file
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            last = error
        else:
            return path
    raise last


def remove(token: str) -> None:
    """Delete the heartbeat file and the stacks beside it."""
    for folder in folders(token):
        shutil.rmtree(folder, ignore_errors=True)


def heartbeat_of(run: Path) -> Path:
    """Return the path of a run's heartbeat file: the live file of a supervised trainer on this machine, or the copy."""
    holder = read_holder(run / LOCK_FILE)
    if holder is not None and holder.marker:
        for folder in folders(holder.marker):
            if (folder / HEARTBEAT_FILE).is_file():
                return folder / HEARTBEAT_FILE
    return run / HEARTBEAT_FILE


def write_copy(content: bytes, run: Path) -> None:
    """Store a copy of the heartbeat file in the run folder atomically; on a full disk the older copy remains."""
    with suppress(OSError), replacing(run / HEARTBEAT_FILE, durable=False) as temporary:
        temporary.write_bytes(content)
