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

from yolo_lightning.checkpoints.torch_archive import archive_damage, outline
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
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        content, checksum = serialized(checkpoint)
        temporary.write_bytes(content)
        flush(temporary)
        # A file without a checksum file is valid if it can be loaded; with an outdated one it would be rejected.
        checksum_path(path).unlink(missing_ok=True)
    write_json(checksum_path(path), asdict(checksum), indent=None)


def serialized(checkpoint: Mapping[str, Any]) -> tuple[memoryview, Checksum]:
    """Return the content of the file of a checkpoint, and that of its checksum file."""
    import torch  # only here: `monitor` reads checksum files without torch

    # To memory first: torch.save raises a RuntimeError on a full disk. Not by `torch.save`, which Ultralytics
    # patches: after a RuntimeError, such as torch's SIGCHLD handler raises for a dead loader worker, the patch
    # writes a second time into the same buffer, after the incomplete first attempt.
    buffer = BytesIO()
    torch.serialization.save(dict(checkpoint), buffer)
    content = buffer.getbuffer()
    steps = checkpoint.get("steps", checkpoint.get("global_step", 0))
    return content, Checksum(sha256(content).hexdigest(), len(content), int(checkpoint.get("epoch", 0)), int(steps))


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
    """Return why a checkpoint cannot be used, or None if it is undamaged: its bytes are those that were written.

    torch.load detects a truncated file but not a changed byte. The checksum file decides; the checksums within the
    archive decide where there is no checksum file, or where it belongs to another file: Lightning replaces `last.ckpt`
    by a link, and users copy checkpoints.
    """
    path = Path(path)
    if path.is_dir():
        return "it is a folder, not a file"
    if not path.is_file():
        return f"it {missing(path).rstrip('.')}"
    if _has_checksum(path):
        return None
    checksum = read_checksum(path)
    damage = archive_damage(path, must_have_checksums=checksum is not None)
    if damage is not None and checksum is not None:
        if path.stat().st_size != checksum.bytes:
            return f"it has {path.stat().st_size:,} bytes instead of {checksum.bytes:,}"
        return "its content does not match its checksum"
    if damage is not None:
        return f"it cannot be loaded: {damage}"
    if checksum is not None:
        rank_zero_warn(f"{checksum_path(path)} belongs to another file: the checksums within the checkpoint are right")
    elif checksum_path(path).exists():
        rank_zero_warn(f"{checksum_path(path)} is damaged: the checksums within the checkpoint are used")
    try:
        content = outline(path)
    except ValueError as error:
        return f"it {str(error).removeprefix(f'checkpoint {path} ')}"
    if "state_dict" not in content:
        return "it is not a checkpoint: it has no key 'state_dict'"
    return None


def _has_checksum(path: Path) -> bool:
    """Whether the checksum file of a checkpoint, or that of the file to which a link leads, has its checksum."""
    checksums = [checksum for checksum in map(read_checksum, {path, path.resolve()}) if checksum is not None]
    if all(checksum.bytes != path.stat().st_size for checksum in checksums):
        return False
    with path.open("rb") as file:
        digest = file_digest(file, "sha256").hexdigest()
    return any(checksum.sha256 == digest for checksum in checksums)


def require_whole(path: Path, what: str = "checkpoint") -> None:
    """Raise a UserError if a checkpoint is damaged or missing; `what` names the file in the message."""
    damage = find_damage(path)
    if damage is not None:
        raise UserError(f"{what} {path} cannot be used: {damage}")


def newest_checkpoint(folder: Path, *, resumable: bool = False) -> tuple[Path | None, dict[Path, str]]:
    """Return the newest undamaged checkpoint in a folder, and the reasons why newer ones cannot be used.

    A slash in the file name of a `ModelCheckpoint`, as in `{val/loss}`, makes a folder, in which is searched, too. With
    `resumable`, files that `ModelCheckpoint(save_weights_only=True)` has saved cannot be used, either.
    """
    damaged: dict[Path, str] = {}
    ages = {path: training_age(path) for path in folder.rglob("*.ckpt")}
    while ages:
        path = max(ages, key=ages.__getitem__)
        damage = find_damage(path)
        if damage is not None:
            damaged[path] = damage
            del ages[path]
            continue
        # The steps of a checksum file that belongs to another file are those of the other file.
        age = ages[path]
        if not _has_checksum(path):
            age = (steps_in_content(path), *age[1:])
        if age < ages[path]:
            ages[path] = age
        elif resumable and contains_only_weights(path):
            damaged[path] = "it contains weights only"
            del ages[path]
        else:
            return path, damaged
    return None, damaged


def contains_only_weights(path: Path) -> bool:
    """Whether a checkpoint of Lightning has no state of a training, as with `ModelCheckpoint(save_weights_only=True)`.

    An unreadable file does not count.
    """
    try:
        content = outline(path)
    except (OSError, ValueError):
        return False
    return "state_dict" in content and not content.keys() & {"optimizer_states", "callbacks"}


def training_age(path: Path) -> tuple[int, bool, str]:
    """Return the sort key of a checkpoint by age: the batches that the checkpoint was trained on, then the file name.

    No time of the file system is part of the key, because a clock can be set back. Of equally trained checkpoints
    `step-*.ckpt` of `LastCheckpoint` is newer than those of other callbacks, which are written before the epoch has
    ended.
    """
    return steps_trained(path), STEP_NAME.fullmatch(path.name) is not None, path.name


def steps_trained(path: Path) -> int:
    """Return the number of batches that a checkpoint was trained on; 0 if the number is unknown.

    The number is read from the checksum file, else from the name `step-<steps>.ckpt`, else from the checkpoint itself.
    """
    checksum = read_checksum(path.resolve())
    if checksum is not None:
        return checksum.steps
    name = STEP_NAME.fullmatch(path.name)
    if name is not None:
        return int(name[1])
    return steps_in_content(path)


def steps_in_content(path: Path) -> int:
    """Return the steps in a checkpoint: batches, or Lightning's optimizer steps; 0 if the number is unknown."""
    try:
        content = outline(path)
        key = "steps" if "steps" in content else "global_step"
        return int(content[key])
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return 0


def superseded(paths: Iterable[Path], newest: Path, keep: int, trusted_steps: int | None) -> list[Path]:
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
