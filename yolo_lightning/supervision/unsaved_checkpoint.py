"""Record of a checkpoint that could not be saved, which the supervisor and `monitor` read while training continues.

The record is beside the heartbeat file, in the memory file system: the disk of the run folder is full, read-only or
broken. Standard library only.
"""

import os
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from yolo_lightning.supervision.heartbeat import HEARTBEAT_VARIABLE, records_beside
from yolo_lightning.utils.files import write_json
from yolo_lightning.utils.json_record import read_record
from yolo_lightning.utils.plain_text import one_line
from yolo_lightning.utils.run_files import STEP_CHECKPOINTS


@dataclass(frozen=True, slots=True)
class UnsavedCheckpoint:
    """A failed save, and the newest checkpoint that a restart could use."""

    path: str  # of the checkpoint that could not be saved
    reason: str
    since_s: float  # wall clock of the first failure, seconds since 1970
    newest: str = ""  # name of the newest step checkpoint; empty without one
    newest_s: float = 0.0  # wall clock of its last change, seconds since 1970

    def sentence(self, now_s: float) -> str:
        """Return path, reason and the age of the newest checkpoint at the moment `now_s`, seconds since 1970."""
        newest = "there is no older checkpoint"
        if self.newest:
            newest = f"the newest checkpoint, {self.newest}, is {(now_s - self.newest_s) / 60:.0f} min old"
        return f"could not save {self.path} ({self.reason}); {newest}"


def _record_path(heartbeat: Path, name: str) -> Path:
    return heartbeat.with_name(f"{heartbeat.name}.unsaved-{name}")


def note_unsaved(name: str, path: Path, error: OSError) -> None:
    """Record a failed save for the supervisor, if there is one; never raise.

    The first failure remains until `forget_unsaved` is called with the same `name`.
    """
    heartbeat = os.environ.get(HEARTBEAT_VARIABLE)
    if not heartbeat:
        return
    record = _record_path(Path(heartbeat), name)
    if record.exists():
        return
    newest = ""
    newest_s = 0.0
    with suppress(OSError):
        ages = {saved.stat().st_mtime: saved.name for saved in path.parent.glob(STEP_CHECKPOINTS) if saved != path}
        newest_s = max(ages, default=0.0)
        newest = ages.get(newest_s, "")
    reason = one_line(error.strerror or str(error))
    unsaved = UnsavedCheckpoint(one_line(str(path)), reason, time.time(), newest, newest_s)
    try:
        write_json(record, asdict(unsaved), durable=False)
    except OSError as problem:
        print(f"warning: the supervisor is not told about the failed save: {problem}", file=sys.stderr)


def forget_unsaved(name: str) -> None:
    """Delete the record after a successful save, if there is one."""
    heartbeat = os.environ.get(HEARTBEAT_VARIABLE)
    if heartbeat:
        with suppress(OSError):
            _record_path(Path(heartbeat), name).unlink(missing_ok=True)


def read_unsaved(heartbeat: Path) -> UnsavedCheckpoint | None:
    """Return the earliest failed save that no successful one has followed; None if there is none that can be read."""
    records = [read_record(path, UnsavedCheckpoint) for path in records_beside(heartbeat, "unsaved-")]
    return min((record for record in records if record is not None), key=lambda record: record.since_s, default=None)
