"""The names inside a run folder, and which run folder a command means. Only this file knows them."""

import os
import re
from collections.abc import Collection
from pathlib import Path

from yolo_lightning.checkpoints.checkpoint_file import newest_checkpoint
from yolo_lightning.utils.files import DISK_FULL, first_free, replacing

DEFAULT_RUN = "runs/yolo"
CHECKPOINTS = "checkpoints"
BEST_CHECKPOINT = "best.ckpt"
LAST_CHECKPOINT = "last.ckpt"
AVERAGE_CHECKPOINT = "average.ckpt"
STEP_CHECKPOINT = "step-{steps:09d}.ckpt"
STEP_CHECKPOINTS = "step-*.ckpt"
METRICS = "metrics.csv"
RESULTS = "results.csv"
TENSORBOARD = "tensorboard"
INCIDENTS = "incidents"
SCORES = "test_scores.json"
CHALLENGE_SCORES = "scores.json"
PREDICTIONS = "predictions.json"
PREDICTIONS_ARCHIVE = "predictions.zip"
ENVIRONMENT = "environment.json"
REPORT = "report.html"
EVALUATIONS = "evaluations"
FRAMES = f"{EVALUATIONS}/frames"

LAUNCH = "launch"
"""Names the distributed launch that trained in the folder last."""

STARTED = "started"
"""Contains the number of the last fit in the folder: fits in a run folder and in its numbered siblings count up."""


def config_name(subcommand: str) -> str:
    """File that records the resolved configuration of a subcommand."""
    return "config.yaml" if subcommand == "fit" else f"config.{subcommand}.yaml"


def picture_name(stage: str) -> str:
    """File of the picture of predictions that `stage` draws."""
    return f"{stage}.png"


def evaluation_record(stage: str) -> str:
    """File that keeps all detections of an evaluation; `stage` is `val` or `test`."""
    return f"{EVALUATIONS}/{stage}.npz"


def prepare(folder: Path) -> None:
    """Make the run folder, and make sure that it can be written.

    Raises:
        ValueError: If it cannot.
        OSError: If the disk is full, which may change.
    """
    try:
        (folder / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe-{os.getpid()}"
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        if error.errno in DISK_FULL:
            raise
        raise ValueError(
            f"run folder {folder} cannot be written ({error.strerror}): choose another --trainer.default_root_dir"
        ) from error


def numbered(base: Path) -> re.Pattern[str]:
    """What the names of `base`, `base-2`, ... match."""
    return re.compile(re.escape(base.absolute().name) + r"(?:-(\d+))?")


def fresh_run(base: Path, taken: Collection[str] = ()) -> Path:
    """`base`, or the first of `base-2`, `base-3`, ... that holds no checkpoint: a new run never overwrites one.

    Args:
        base: Configured run folder.
        taken: Names that runs have elsewhere.
    """
    base = base.absolute() if not base.name else base
    return first_free(base, is_taken=lambda folder: has_checkpoint(folder) or folder.name in taken)


def note_launch(folder: Path, launch: str) -> None:
    """Let the processes of `launch` find the folder again, should they be started anew."""
    (folder / LAUNCH).write_text(launch + "\n")


def run_of_launch(base: Path, launch: str) -> Path | None:
    """The folder among `base`, `base-2`, ... that `launch` trained in last, if there is one."""
    base = base.absolute() if not base.name else base
    pattern = numbered(base)
    notes = [
        folder / LAUNCH
        for folder in (base.parent.iterdir() if base.parent.is_dir() else ())
        if pattern.fullmatch(folder.name) and (folder / LAUNCH).is_file()
    ]
    own = [note.parent for note in notes if note.read_text().strip() == launch]
    return max(own, key=start_order, default=None)


def note_start(folder: Path) -> None:
    """Record that a fit starts in `folder`, which makes it the newest of all runs with the same name before the number.

    The record is a number and no time, because a clock can be set back.

    Raises:
        OSError: If the record cannot be written.
    """
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    stem = re.escape(re.sub(r"(-\d+)+$", "", folder.name))
    siblings = [
        path for path in folder.parent.iterdir() if re.fullmatch(rf"{stem}(-\d+)*", path.name) and path != folder
    ]
    newest = max(map(start_number, siblings), default=0)
    if start_number(folder) <= newest:
        with replacing(folder / STARTED) as temporary:
            temporary.write_text(f"{newest + 1}\n")


def start_number(folder: Path) -> int:
    """Return the number of the last fit in a run folder, from 1; 0 if no number can be read."""
    try:
        return int((folder / STARTED).read_text())
    except (OSError, ValueError):
        return 0


def start_order(folder: Path) -> tuple[int, int]:
    """Return the sort key of a run folder by age: the number of its last fit, then the number in its name."""
    number = re.search(r"-(\d+)$", folder.name)
    return start_number(folder), int(number[1]) if number else 1


def has_checkpoint(folder: Path) -> bool:
    """Whether a run folder holds something to continue from."""
    return any((folder / CHECKPOINTS).glob("*.ckpt"))


def runs(base: Path) -> list[Path]:
    """Return those of `base`, `base-2`, ... that contain checkpoints, the run whose last fit has started last first."""
    base = base.absolute() if not base.name else base
    pattern = numbered(base)
    found = [
        folder
        for folder in (base.parent.iterdir() if base.parent.is_dir() else ())
        if pattern.fullmatch(folder.name) and has_checkpoint(folder)
    ]
    return sorted(found, key=start_order, reverse=True)


def checkpoint_to_resume(base: Path, *, exactly: bool = False) -> tuple[Path, dict[Path, str]]:
    """The checkpoint of the newest run that has trained longest, and why newer ones were passed over.

    Args:
        base: Configured run folder.
        exactly: Whether only `base` itself counts, not `base-2` and so on.

    Raises:
        ValueError: If no run exists, or the newest has no whole checkpoint.
    """
    folders = [folder for folder in runs(base) if folder == base or not exactly]
    if not folders:
        raise ValueError(f"nothing to resume: no run folder {base} or {base}-<n> holds a checkpoint")
    path, damaged = newest_checkpoint(folders[0] / CHECKPOINTS)
    if path is None:
        listed = "; ".join(f"{file}: {reason}" for file, reason in damaged.items())
        raise ValueError(f"nothing to resume: every checkpoint of {folders[0]} is damaged: {listed}")
    return path, damaged


def checkpoint_to_evaluate(base: Path) -> Path:
    """The best checkpoint of the newest run, or the one that has trained longest where none was scored.

    Raises:
        ValueError: If there is none.
    """
    folders = runs(base)
    if folders and (folders[0] / CHECKPOINTS / BEST_CHECKPOINT).is_file():
        return folders[0] / CHECKPOINTS / BEST_CHECKPOINT
    return checkpoint_to_resume(base)[0]


def run_of(checkpoint: Path) -> Path | None:
    """The run folder that a checkpoint lies in, or None for a file from elsewhere."""
    return checkpoint.parent.parent if checkpoint.parent.name == CHECKPOINTS else None
