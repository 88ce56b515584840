"""Progress of a supervised run between two attempts: new checkpoints, or steps of the heartbeat."""

import glob
import os
from pathlib import Path

from yolo_lightning.supervision.heartbeat import Heartbeat
from yolo_lightning.supervision.job import Job
from yolo_lightning.utils import run_files


def saved_marks(run: Path, job: Job) -> frozenset[int]:
    """Return one number per checkpoint: trained steps for a fit, the time of the last change for another command."""
    if not job.any_command:
        return run_files.saved_steps(run)
    found = set()
    for name in glob.glob(job.checkpoints, recursive=True) if job.checkpoints else ():
        try:
            found.add(os.stat(name).st_mtime_ns)
        except OSError:  # replaced meanwhile
            continue
    return frozenset(found)


def can_resume(run: Path, job: Job, furthest_step: int) -> bool:
    """Return whether the next attempt uses the restart command; `furthest_step` is the largest of any heartbeat."""
    if not job.any_command:
        return run_files.has_checkpoint(run)
    return bool(saved_marks(run, job)) if job.checkpoints else furthest_step > 0


def has_progressed(
    job: Job, before: frozenset[int], after: frozenset[int], heartbeat: Heartbeat | None, furthest_step: int
) -> bool:
    """Return whether an attempt got further than the earlier ones, whose largest step is `furthest_step`."""
    if job.any_command and not job.checkpoints:
        return heartbeat is not None and heartbeat.step > furthest_step
    return run_files.has_saved(before, after)
