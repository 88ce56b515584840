"""Names of the files in a run folder, and operations on these files that need only the standard library."""

import time
from pathlib import Path

from yolo_lightning.utils.files import first_free, flush, remove_leftovers
from yolo_lightning.utils.json_record import read_json

CHECKPOINTS = "checkpoints"
BEST_CHECKPOINT = "best.ckpt"
LAST_CHECKPOINT = "last.ckpt"
AVERAGE_CHECKPOINT = "average.ckpt"
RECALIBRATED_CHECKPOINT = "recalibrated.ckpt"
STEP_CHECKPOINT = "step-{steps:09d}.ckpt"
STEP_CHECKPOINTS = "step-*.ckpt"
CHECKPOINT_PATTERN = "*.ckpt"
CHECKSUM_SUFFIX = ".json"
"""Suffix of the file beside a checkpoint that contains its checksum, epoch and steps."""

METRICS = "metrics.csv"
TENSORBOARD = "tensorboard"
SCORES = "test_scores.json"
CHALLENGE_SCORES = "scores.json"
PREDICTIONS = "predictions.json"
PREDICTIONS_ARCHIVE = "predictions.zip"
ENVIRONMENT = "environment.json"
REPORT = "report.html"
EVALUATIONS = "evaluations"
FRAMES = f"{EVALUATIONS}/frames"

INCIDENTS = "incidents"
INCIDENT_FILE = "incident.json"
STACKS_FILE = "stacks.txt"
HEARTBEAT_FILE = "heartbeat"
PHASE_TIMEOUTS_FILE = "phase_timeouts.json"
STATUS_FILE = "status.json"
LOCK_FILE = "run.lock"
LOG_FILE = "run.log"
STATE_FILE = "supervision.json"
SUPERVISOR_FILE = "supervisor.json"
SELF_CHECK_FILE = "self_check.json"

SELF_CHECK_FILE = "self_check.json"
"""Contains the step of the last passed self-check as `passed_step`."""

SUSPECT_SUFFIX = ".suspect"
"""Suffix of a checkpoint whose weights may be wrong: no self-check has passed since."""

FINISHED_FILE = "finished.json"
"""Exists after a complete fit. Exit code 0 alone does not prove that a fit is complete."""

TRAINED_FILE = "trained.json"
"""Exists from the last step until what follows (recalibration, best.pt, report) is done; then it becomes the above."""

LAUNCH = "launch"  # contains the id of the torchrun launch that trained in the folder last
STARTED = "started"
"""Contains the number of the last fit in the folder: fits in a run folder and in its numbered siblings count up."""

PROBE_FILE = ".probe-supervisor"


def config_name(subcommand: str) -> str:
    """Return the name of the file with the resolved configuration of a subcommand."""
    return "config.yaml" if subcommand == "fit" else f"config.{subcommand}.yaml"


def evaluation_record(stage: str) -> str:
    """Return the path of the file with all detections of an evaluation; `stage` is `val` or `test`."""
    return f"{EVALUATIONS}/{stage}.npz"


def stacks_path(heartbeat: Path) -> Path:
    """Return the path of the file beside a heartbeat file that receives the stacks of the trainer."""
    return heartbeat.with_name(f"{heartbeat.name}.stacks")


def has_checkpoint(run: Path) -> bool:
    return any((run / CHECKPOINTS).glob(CHECKPOINT_PATTERN))


def saved_steps(run: Path) -> frozenset[int]:
    """Return the numbers of trained steps of all step checkpoints in a run folder.

    `best.ckpt` does not count: a run that crashes after each validation would write `best.ckpt` again in each attempt.
    """
    found = set()
    for path in (run / CHECKPOINTS).glob(STEP_CHECKPOINTS + CHECKSUM_SUFFIX):
        try:
            found.add(int(read_json(path)["steps"]))
        except (OSError, ValueError, TypeError, KeyError, OverflowError):
            continue
    return frozenset(found)


def set_aside_suspects(run: Path) -> list[str]:
    """Rename the checkpoints of more steps than the last passed self-check, so that none is resumed; return the names.

    Without a passed self-check, all checkpoints are renamed.
    """
    try:
        passed = int(read_json(run / SELF_CHECK_FILE)["passed_step"])
    except (OSError, ValueError, TypeError, KeyError, OverflowError):
        passed = 0
    names = []
    for path in sorted((run / CHECKPOINTS).glob(CHECKPOINT_PATTERN)):
        checksum = path.with_name(path.name + CHECKSUM_SUFFIX)
        try:
            is_trusted = int(read_json(checksum)["steps"]) <= passed
        except (OSError, ValueError, TypeError, KeyError, OverflowError):
            is_trusted = False
        if not is_trusted:
            path.rename(path.with_name(path.name + SUSPECT_SUFFIX))
            checksum.unlink(missing_ok=True)
            names.append(path.name)
    return names


def has_saved(before: frozenset[int], after: frozenset[int]) -> bool:
    """Return whether an attempt has saved a step that had no checkpoint before the attempt.

    A smaller number of steps counts too: training was resumed before a damaged checkpoint, which the save has replaced.
    """
    return not after <= before


def clear(run: Path) -> None:
    """Delete heartbeat, stacks and finished marker of an earlier attempt.

    Raises:
        OSError: If a file cannot be deleted. A remaining finished marker would end the run too early.
    """
    heartbeat = run / HEARTBEAT_FILE
    for path in (heartbeat, stacks_path(heartbeat), run / FINISHED_FILE):
        path.unlink(missing_ok=True)


def incident_names(run: Path) -> set[str]:
    folder = run / INCIDENTS
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def incident_folder(run: Path, taken: set[str], suffix: str = "") -> Path:
    """Return a path for a new incident that is not in `taken`, without disk access; add its name to `taken`."""
    base = run / INCIDENTS / time.strftime("%Y%m%d-%H%M%S")
    folder = first_free(base, suffix, is_taken=lambda path: path.name in taken)
    taken.add(folder.name)
    return folder


def is_finished(run: Path) -> bool:
    return (run / FINISHED_FILE).is_file()


def epochs_trained(run: Path, steps: int, max_epochs: int) -> int | None:
    """Return the epochs of a fit that has trained its last step, `steps`, but has not finished; None for others."""
    try:
        found = read_json(run / TRAINED_FILE)
        is_same = (found["steps"], found["max_epochs"]) == (steps, max_epochs)
        return int(found["epochs"]) if is_same else None
    except (OSError, ValueError, TypeError, KeyError, OverflowError):
        return None


def clear_leftovers(run: Path) -> None:
    """Delete temporary files of a killed trainer, which can be as large as a checkpoint, before the next attempt."""
    for folder in (run, run / CHECKPOINTS):
        remove_leftovers(folder)


def probe(run: Path) -> None:
    """Write a small file to the disk of the run folder. The call blocks while the disk hangs."""
    path = run / PROBE_FILE
    path.unlink(missing_ok=True)  # can be a FIFO
    try:
        path.write_bytes(b"probe")
        flush(path)
    finally:
        path.unlink(missing_ok=True)
