"""Free space of the run folder's disk: whether a full disk has ended the trainer, and what the next attempt needs."""

import os
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from yolo_lightning.supervision.outcome import STARVED_WORKER
from yolo_lightning.utils.exit_codes import ExitCode
from yolo_lightning.utils.run_files import CHECKPOINT_PATTERN, CHECKPOINTS

RESERVE_BYTES = 16 << 20
RESERVE_SHARE = 0.05
"""A disk with less free space than both of these is full."""

LONGEST_PAUSE_S = 300.0
NO_SPACE = re.compile(r"No space left on device|errno[= ]28\b", re.IGNORECASE)
NO_QUOTA = re.compile(r"Disk quota exceeded", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Space:
    """Space of the run folder's file system."""

    free_bytes: int  # available to this user
    total_bytes: int
    checkpoint_bytes: int = 0  # size of the largest checkpoint of the run; 0 without one
    has_free_files: bool = True  # whether another file can be created

    @property
    def reserve_bytes(self) -> int:
        """Free space below which the disk counts as full."""
        return min(RESERVE_BYTES, int(RESERVE_SHARE * self.total_bytes))

    @property
    def needed_bytes(self) -> int:
        """Free space that the next attempt needs: a checkpoint is written before an older one is deleted."""
        return self.reserve_bytes + self.checkpoint_bytes

    @property
    def suffices(self) -> bool:
        """Whether the next attempt can start."""
        return self.has_free_files and self.free_bytes >= self.needed_bytes

    def __str__(self) -> str:
        files = "" if self.has_free_files else ", no further file can be created"
        return f"{self.free_bytes / 1e6:.1f} MB free, {self.needed_bytes / 1e6:.1f} MB needed{files}"


def space_of(run: Path) -> Space:
    """Return the space of a run folder's file system. May wait for a disk that hangs."""
    status = os.statvfs(run)
    sizes = [path.stat().st_size for path in (run / CHECKPOINTS).glob(CHECKPOINT_PATTERN)]
    return Space(
        free_bytes=status.f_bavail * status.f_frsize,
        total_bytes=status.f_blocks * status.f_frsize,
        checkpoint_bytes=max(sizes, default=0),
        has_free_files=status.f_files == 0 or status.f_favail > 0,
    )


def ended_by_full_disk(code: int, log_lines: Sequence[str], space: Space) -> bool:
    """Return whether a trainer ended because the disk of the run folder is full.

    Args:
        code: Exit code of the trainer; negative for a signal.
        log_lines: Last lines of its log.
        space: Space of the run folder just after the end. A writer that fails deletes its temporary file, so some space
            may be free again.
    """
    if any(STARVED_WORKER.search(line) for line in log_lines):  # /dev/shm is full
        return False
    if code == ExitCode.DISK_FULL:
        return True
    if code in (0, ExitCode.USAGE) or (code < 0 and -code != signal.SIGBUS):
        return False
    if any(NO_QUOTA.search(line) for line in log_lines):
        return True
    is_logged = any(NO_SPACE.search(line) for line in log_lines)
    limit_bytes = space.needed_bytes + space.checkpoint_bytes if is_logged else space.reserve_bytes
    return space.free_bytes < limit_bytes or not space.has_free_files


def pause_s(pauses: int, first_s: float, longest_s: float) -> float:
    """Return the seconds to wait for space after `pauses` earlier pauses: twice the previous pause, up to a limit."""
    return float(min(first_s * 2 ** min(pauses, 30), longest_s, LONGEST_PAUSE_S))
