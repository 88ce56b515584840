"""Checkpoint files: written atomically, with a checksum file."""

import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from hashlib import file_digest, sha256
from io import BytesIO
from pathlib import Path
from typing import Any

from yolo_lightning.errors import UserError
from yolo_lightning.utils.choices import checked_arguments
from yolo_lightning.utils.files import flush, replacing, write_json
from yolo_lightning.utils.json_record import read_record
from yolo_lightning.utils.rank_zero import rank_zero_warn
from yolo_lightning.utils.run_files import CHECKSUM_SUFFIX
from yolo_lightning.utils.suggestions import missing

STEP_NAME = re.compile(r"step-(\d+)\.ckpt")
"""File name of a step checkpoint; equals `run_files.STEP_CHECKPOINT`, as a test verifies."""

INPUT = "input"  # checkpoint key of the preprocessing of the training images, see `network_settings`
RECALIBRATED = "recalibrated"  # checkpoint key of a file of the command `recalibrate`: its origin
CONFIGURATION = "config"  # checkpoint key of the configuration of the run, without secrets


class NotSavedError(OSError):
    """Training is finished, but the last checkpoint could not be written."""


@dataclass(frozen=True, slots=True)
class Checksum:
    """Content of the checksum file of a checkpoint."""

    sha256: str  # digest of the checkpoint file
    bytes: int  # size of the checkpoint file
    epoch: int  # epoch in which the checkpoint was saved, from 0
    steps: int  # batches trained since training began; optimizer steps if the model does not store `steps`


def write_checkpoint(checkpoint: Mapping[str, Any], path: Path) -> None:
    """Write a checkpoint atomically: `path` is always absent, the old file, or the complete new file.

    The temporary file is in the same folder, because only a rename within one file system is atomic. `epoch` and
    `steps` (else Lightning's `global_step`) of the checkpoint, if present, are copied into the checksum file.
    """
    import torch  # only here and in `find_damage`: `monitor` reads checksum files without torch

    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        # To memory first: torch.save raises a RuntimeError on a full disk. Not by `torch.save`, which Ultralytics
        # patches: after a RuntimeError, such as torch's SIGCHLD handler raises for a dead loader worker, the patch
        # writes a second time into the same buffer, after the incomplete first attempt.
        buffer = BytesIO()
        torch.serialization.save(dict(checkpoint), buffer)
        content = buffer.getbuffer()
        temporary.write_bytes(content)
        steps = checkpoint.get("steps", checkpoint.get("global_step", 0))
        checksum = Checksum(sha256(content).hexdigest(), len(content), int(checkpoint.get("epoch", 0)), int(steps))
        flush(temporary)
        # A file without a checksum file is valid if it can be loaded; with an outdated one it would be rejected.
        checksum_path(path).unlink(missing_ok=True)
    write_json(checksum_path(path), asdict(checksum), indent=None)


def link_checkpoint(source: Path, target: Path) -> None:
    """Make `target` a hard link to the checkpoint `source`, or a copy if the file system has no hard links."""
    checksum_path(target).unlink(missing_ok=True)
    for original, name in ((source, target), (checksum_path(source), checksum_path(target))):
        if name != target and not original.is_file():  # the checksum file is optional
            continue
        with replacing(name) as temporary:
            try:
                os.link(original, temporary)
            except OSError:
                shutil.copyfile(original, temporary)


def remove_checkpoint(path: Path) -> None:
    path.unlink(missing_ok=True)
    checksum_path(path).unlink(missing_ok=True)


@checked_arguments()
def find_damage(path: str | Path) -> str | None:
    """Return why a checkpoint cannot be used, or None if it is undamaged.

    torch.load detects a truncated file but not a changed byte.
    """
    path = Path(path)
    if not path.is_file():
        return "it is a folder, not a file" if path.is_dir() else f"it {missing(path).rstrip('.')}"
    checksum = read_checksum(path)
    if checksum is None:
        if checksum_path(path).exists():
            rank_zero_warn(f"{checksum_path(path)} is damaged: the content of the checkpoint is loaded, not compared")
        from yolo_lightning.checkpoints.torch_archive import load_dictionary

        try:
            content = load_dictionary(path, "meta")
        except ValueError as error:
            return f"it {str(error).removeprefix(f'checkpoint {path} ')}"
        return None if "state_dict" in content else "it is not a checkpoint: it has no key 'state_dict'"
    if path.stat().st_size != checksum.bytes:
        return f"it has {path.stat().st_size:,} bytes instead of {checksum.bytes:,}"
    with path.open("rb") as file:
        if file_digest(file, "sha256").hexdigest() != checksum.sha256:
            return "its content does not match its checksum"
    return None


def require_whole(path: Path, what: str = "checkpoint") -> None:
    """Raise a UserError if a checkpoint is damaged or missing; `what` names the file in the message."""
    damage = find_damage(path)
    if damage is not None:
        raise UserError(f"{what} {path} cannot be used: {damage}")


def newest_checkpoint(folder: Path) -> tuple[Path | None, dict[Path, str]]:
    """Return the newest undamaged checkpoint in a folder, and the reasons why newer ones cannot be used."""
    damaged: dict[Path, str] = {}
    for path in sorted(folder.glob("*.ckpt"), key=training_age, reverse=True):
        damage = find_damage(path)
        if damage is None:
            return path, damaged
        damaged[path] = damage
    return None, damaged


def training_age(path: Path) -> tuple[int, str]:
    """Return the sort key of a checkpoint by age: the batches that the checkpoint was trained on, then the file name.

    No time of the file system is part of the key, because a clock can be set back. Of equally trained checkpoints
    `step-*.ckpt` is newer than `best.ckpt`, which is written before the epoch has ended: the names have this order.
    """
    return steps_trained(path), path.name


def steps_trained(path: Path) -> int:
    """Return the number of batches that a checkpoint was trained on; 0 if the number is unknown.

    The number is read from the checksum file, else from the name `step-<steps>.ckpt`, else from the checkpoint itself.
    """
    checksum = read_checksum(path)
    if checksum is not None:
        return checksum.steps
    name = STEP_NAME.fullmatch(path.name)
    if name is not None:
        return int(name[1])
    from yolo_lightning.checkpoints.torch_archive import load_dictionary

    try:
        return int(load_dictionary(path, "meta")["steps"])
    except (ValueError, KeyError, TypeError, OverflowError):
        return 0


def superseded(paths: Iterable[Path], newest: Path, keep: int, trusted_steps: int | None = None) -> list[Path]:
    """Return which of `paths`, the step checkpoints of a run, to delete after `newest` was written; `keep` remain.

    Checkpoints with more steps than `newest` are damaged or belong to an abandoned part of the run: training was
    resumed before them. They are deleted, too, because the next resume would choose one of them.

    With `trusted_steps`, after which every layer has passed a self-check, two more can remain: the newest checkpoint
    of at most so many steps, which no wrong result can have changed, and the next one, which replaces it later.
    """
    ordered = sorted(paths, key=training_age)
    behind = ordered.index(newest) + 1
    needed: list[Path] = []
    if trusted_steps is not None:
        trusted = [path for path in ordered[:behind] if steps_trained(path) <= trusted_steps]
        needed = ordered[:behind][max(0, len(trusted) - 1) : len(trusted) + 1]
    old = [path for path in ordered[: max(0, behind - keep)] if path not in needed]
    return old + ordered[behind:]


def read_checksum(path: Path) -> Checksum | None:
    return read_record(checksum_path(path), Checksum)


def checksum_path(path: Path) -> Path:
    return path.with_name(path.name + CHECKSUM_SUFFIX)
