"""Selection and check of the checkpoints that are averaged, without torch."""

from collections.abc import Sequence
from pathlib import Path

from yolo_lightning.checkpoints.checkpoint_file import find_damage, training_age
from yolo_lightning.errors import UserError
from yolo_lightning.utils.run_files import STEP_CHECKPOINTS


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
