"""What the supervisor reads and clears in a run folder. Loads neither torch nor Lightning, as `run_folder` does."""

import json
import time
from pathlib import Path

from yolo_lightning.files import first_free
from yolo_lightning.progress import FINISHED_FILE, PROGRESS_FILE, stacks_path

CHECKPOINTS_FOLDER = "checkpoints"
INCIDENTS_FOLDER = "incidents"
INCIDENT_FILE = "incident.json"
CHECKPOINT_PATTERN = "*.ckpt"
SIDECAR_PATTERN = "step-*.ckpt.json"
WAITING_FOR_A_BATCH = "wait for a batch"
"""A test holds these equal to the names in `run_folder` and `checkpoint_file`."""


def has_checkpoint(run: Path) -> bool:
    """Whether there is something to resume from."""
    return any((run / CHECKPOINTS_FOLDER).glob(CHECKPOINT_PATTERN))


def saved_steps(run: Path) -> frozenset[int]:
    """Return the numbers of trained steps of all step checkpoints in a run folder.

    `best.ckpt` does not count: a run that dies after each validation would write it anew each time.
    """
    found = set()
    for path in (run / CHECKPOINTS_FOLDER).glob(SIDECAR_PATTERN):
        try:
            found.add(int(json.loads(path.read_text())["steps"]))
        except (OSError, ValueError, TypeError, KeyError):
            continue
    return frozenset(found)


def has_saved(before: frozenset[int], after: frozenset[int]) -> bool:
    """Return whether an attempt has saved a step that no checkpoint had before the attempt.

    A smaller number of steps counts too: training was resumed before a damaged checkpoint, which the save has replaced.
    """
    return not after <= before


def loader_stalls(run: Path, launch: str) -> int:
    """Attempts of torchrun's `launch` in which a process waited for a batch until its stall monitor ended it.

    Its own loader keeps it there, or a checkpoint after the step; where another process stalls, it waits in the step.
    """
    attempts = set()
    for path in (run / INCIDENTS_FOLDER).glob(f"*/{INCIDENT_FILE}"):
        try:
            report = json.loads(path.read_text())
        except (OSError, ValueError):
            continue
        if report.get("launch") == launch and report.get("phase") == WAITING_FOR_A_BATCH:
            attempts.add(report["attempt"])
    return len(attempts)


def clear(run: Path) -> None:
    """Remove what an earlier attempt has said about itself.

    Raises:
        OSError: If that fails; a finished marker that stays would end the run too early.
    """
    record = run / PROGRESS_FILE
    for path in (record, stacks_path(record), run / FINISHED_FILE):
        path.unlink(missing_ok=True)


def incident_folder(run: Path) -> Path:
    """A name that is free for what is about to be kept."""
    return first_free(run / INCIDENTS_FOLDER / time.strftime("%Y%m%d-%H%M%S"))
