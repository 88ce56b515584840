"""What the supervisor reads and clears in a run folder. Loads neither torch nor Lightning, as `run_folder` does."""

import json
import time
from pathlib import Path

from yolo_lightning.supervision.heartbeat import FINISHED_FILE, PROGRESS_FILE, stacks_path
from yolo_lightning.utils.files import first_free, flush, remove_leftovers

CHECKPOINTS_FOLDER = "checkpoints"
INCIDENTS_FOLDER = "incidents"
INCIDENT_FILE = "incident.json"
PROBE_FILE = ".probe-supervisor"
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


def incident_names(run: Path) -> set[str]:
    """Return the names of the folders of all earlier incidents."""
    folder = run / INCIDENTS_FOLDER
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def incident_folder(run: Path, taken: set[str]) -> Path:
    """Return a folder for a new incident, without a look at the disk, and add its name to `taken`."""
    base = run / INCIDENTS_FOLDER / time.strftime("%Y%m%d-%H%M%S")
    folder = first_free(base, is_taken=lambda path: path.name in taken)
    taken.add(folder.name)
    return folder


def is_finished(run: Path) -> bool:
    """Whether the trainer has said that all is trained."""
    return (run / FINISHED_FILE).is_file()


def clear_leftovers(run: Path) -> None:
    """Delete temporary files of a trainer that was killed. Call only when no trainer is left."""
    for folder in (run, run / CHECKPOINTS_FOLDER):
        remove_leftovers(folder)


def probe(run: Path) -> None:
    """Write a small file to the disk of the run folder; a disk that hangs does not return from this.

    Raises:
        OSError: If the disk answers with an error, for example because it is full.
    """
    path = run / PROBE_FILE
    try:
        path.write_bytes(b"probe")
        flush(path)
    finally:
        path.unlink(missing_ok=True)
