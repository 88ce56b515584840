"""`python -m yolo_lightning average RUN`: averages of checkpoints of one run or of several."""

from collections.abc import Sequence
from pathlib import Path

from yolo_lightning.checkpoints.checkpoint_file import find_damage, training_age, write_checkpoint
from yolo_lightning.checkpoints.remote_folder import local_checkpoint
from yolo_lightning.commands.console import check_writable, writing
from yolo_lightning.errors import UserError
from yolo_lightning.utils.paths import real_path, user_path
from yolo_lightning.utils.run_files import AVERAGE_CHECKPOINT, CHECKPOINTS, STEP_CHECKPOINTS


def average(
    run: str,
    *,
    last: int = 3,
    checkpoints: list[str] | None = None,
    output: str | None = None,
) -> None:
    """Average the weights of the newest checkpoints of a run, for `test`, `predict`, `export` and `--model.weights`.

    Args:
        run: Run folder.
        last: Number of the newest `step-*.ckpt` checkpoints to average, >= 2.
        checkpoints: Checkpoints to average instead, such as `a.ckpt b.ckpt`: names in the checkpoint
            folder of the run, paths, or addresses.
        output: File to write, with the suffix .ckpt; null: `average.ckpt` in the checkpoint folder of the run.

    Raises:
        UserError: If a checkpoint cannot be used, the networks differ, or an option is invalid.
    """
    if last < 2:
        raise UserError(f"last must be >= 2, got {last}.")
    folder = user_path(run) / CHECKPOINTS
    if not folder.is_dir():
        raise UserError(f"run must be a run folder with a folder {CHECKPOINTS}, got {run}.")
    target = user_path(output) if output else folder / AVERAGE_CHECKPOINT
    check_writable(target, ".ckpt")
    try:
        if checkpoints:  # names that exist in `folder` refer to that folder
            files = [folder / name if (folder / name).is_file() else local_checkpoint(name) for name in checkpoints]
        else:
            files = newest_steps(folder, last)
        if real_path(target) in [real_path(file) for file in files]:
            raise UserError(f"output must differ from the checkpoints to average, got {target}.")
        check_files(files)
        from yolo_lightning.checkpoints.averaging import AVERAGED, average_checkpoints  # imports torch

        content = average_checkpoints(files)
    except FileNotFoundError as error:
        raise UserError(
            f"{error.filename} was deleted while it was read: a running fit keeps only its newest checkpoints."
        ) from error
    with writing(target):
        write_checkpoint(content, target)
    print(f"{target}: average of {', '.join(content[AVERAGED])}")


def newest_steps(folder: Path, count: int) -> list[Path]:
    """Return the `count` newest `step-*.ckpt` of a folder, oldest first; `last.ckpt` and `best.ckpt` are copies."""
    checkpoints = sorted(folder.glob(STEP_CHECKPOINTS), key=training_age)
    if len(checkpoints) < count:
        raise UserError(
            f"last must not exceed the {len(checkpoints)} {STEP_CHECKPOINTS} in {folder}, got {count}; `keep` of "
            "LastCheckpoint sets how many a fit keeps"
        )
    return checkpoints[-count:]


def check_files(files: Sequence[Path]) -> None:
    """Raise a UserError for fewer than two files, or for files that are damaged or do not exist."""
    if len(files) < 2:
        raise UserError(f"checkpoints must name 2 or more files, got {len(files)}")
    damages = {file: find_damage(file) for file in files}
    damaged = [f"{file}: {damage}" for file, damage in damages.items() if damage is not None]
    if damaged:
        raise UserError(f"damaged checkpoints cannot be averaged: {'; '.join(damaged)}")
