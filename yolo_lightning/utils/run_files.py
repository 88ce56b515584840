"""Names of the files in a run folder, and reading of its state. Standard library only."""

import time
from pathlib import Path

from yolo_lightning.utils.files import first_free
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
LOGGERS = "loggers.json"
TENSORBOARD = "tensorboard"
SCORES = "test_scores.json"
CHALLENGE_SCORES = "scores.json"
PREDICTIONS = "predictions.json"
PREDICTIONS_ARCHIVE = "predictions.zip"
ENVIRONMENT = "environment.json"
TRAINING_IMAGES = "training images"  # entry of the environment file
REPORT = "report.html"
COMPARISON = "comparison.html"
EVALUATIONS = "evaluations"
FRAMES = f"{EVALUATIONS}/frames"
EPOCHS = "epochs"  # folder in `FRAMES` with a picture of each validation of the fit

INCIDENTS = "incidents"
INCIDENT_FILE = "incident.json"
STACKS_FILE = "stacks.txt"
FAILURE_FILE = "failure.json"
TRACEBACK_FILE = "traceback.txt"
HEARTBEAT_FILE = "heartbeat"
RANKS = "ranks"  # folder with the status of each rank
PHASE_TIMEOUTS_FILE = "phase_timeouts.json"
STATUS_FILE = "status.json"
LOCK_FILE = "run.lock"
LOG_FILE = "run.log"
STATE_FILE = "supervision.json"
SUPERVISOR_FILE = "supervisor.json"
SPEC_FILE = "spec.json"  # options of a fit, without those that select its start
SELF_CHECK_FILE = "self_check.json"
"""Contains the step of the last passed self-check of each layer, see `suspect_checkpoints`."""


FINISHED_FILE = "finished.json"
"""Exists after a complete fit. Exit code 0 alone does not prove that a fit is complete."""

TRAINED_FILE = "trained.json"
"""Exists from the last step until what follows (best.pt, report) is done; then it becomes the above."""

LAUNCH = "launch.json"  # id of the torchrun launch that trained in the folder last, and token of its last attempt
STARTED = "started"
"""Contains the number of the last fit in the folder: fits in a run folder and in its numbered siblings count up."""


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
    return any((run / CHECKPOINTS).rglob(CHECKPOINT_PATTERN))


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
        trained = read_json(run / TRAINED_FILE)
        if trained["steps"] != steps or trained["max_epochs"] != max_epochs:
            return None
        return int(trained["epochs"])
    except (OSError, ValueError, TypeError, KeyError, OverflowError):
        return None


def steps_in(checksum: Path) -> int | None:
    """Return the number of trained steps in the checksum file of a checkpoint, or None if it is unknown."""
    try:
        return int(read_json(checksum)["steps"])
    except (OSError, ValueError, TypeError, KeyError, OverflowError):
        return None
