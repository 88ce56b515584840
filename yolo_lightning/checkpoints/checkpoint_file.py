"""Checkpoint files that are whole or not there, and that say so: written aside, flushed, renamed, with a checksum."""

import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from hashlib import file_digest, sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import torch

from yolo_lightning.utils.files import flush, replacing, write_json
from yolo_lightning.utils.run_files import CHECKSUM_SUFFIX

STEP_NAME = re.compile(r"step-(\d+)\.ckpt")
"""Name of a checkpoint that is numbered by its steps; a test compares the pattern with `run_files.STEP_CHECKPOINT`."""


class NotSavedError(OSError):
    """All steps are trained, but the last checkpoint could not be written."""


INPUT = "input"
"""Key of a checkpoint: how the images were prepared that the network was trained on, see `network_settings`."""
CONFIGURATION = "config"
"""Key of a checkpoint: the configuration of its run, without secrets and places."""


@dataclass(frozen=True, slots=True)
class Checksum:
    """What the sidecar of a checkpoint records.

    Attributes:
        sha256: Of the checkpoint file.
        bytes: Its length.
        epoch: Epoch it was saved in, from 0.
        steps: Batches trained on since training began.
    """

    sha256: str
    bytes: int
    epoch: int
    steps: int


def write_checkpoint(checkpoint: Mapping[str, Any], path: Path) -> None:
    """Save `checkpoint` so that `path` is at any moment absent, the old file, or the whole new one.

    The temporary file lies in the same folder, as only a rename within one file system is atomic.

    Args:
        checkpoint: Tensors and plain Python; `epoch` and `steps` are copied into the sidecar where present.
        path: The file to write.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        # Into memory first: torch.save answers a full disk with a RuntimeError. Not by `torch.save`, which Ultralytics
        # replaces: its function answers a RuntimeError, such as the SIGCHLD handler of torch raises for a dead loader
        # worker, by a second attempt into the same buffer, behind the torn first one.
        buffer = BytesIO()
        torch.serialization.save(dict(checkpoint), buffer)
        content = buffer.getbuffer()
        temporary.write_bytes(content)
        checksum = Checksum(
            sha256(content).hexdigest(), len(content), int(checkpoint.get("epoch", 0)), int(checkpoint.get("steps", 0))
        )
        flush(temporary)
        # Without sidecar a file counts as whole if it loads; with a stale one it would be refused.
        checksum_path(path).unlink(missing_ok=True)
    write_json(checksum_path(path), asdict(checksum), indent=None)


def link_checkpoint(source: Path, target: Path) -> None:
    """Make `target` another name of the checkpoint `source`; a copy where the file system has no hard links."""
    checksum_path(target).unlink(missing_ok=True)
    for original, name in ((source, target), (checksum_path(source), checksum_path(target))):
        if name != target and not original.is_file():  # a sidecar is no must
            continue
        with replacing(name) as temporary:
            try:
                os.link(original, temporary)
            except OSError:
                shutil.copyfile(original, temporary)


def remove_checkpoint(path: Path) -> None:
    """Delete a checkpoint with its sidecar."""
    path.unlink(missing_ok=True)
    checksum_path(path).unlink(missing_ok=True)


def find_damage(path: Path) -> str | None:
    """Why the checkpoint cannot be used, or None if it is whole.

    torch.load notices a truncated file but not a changed byte, hence the checksum.
    """
    if not path.is_file():
        return "it does not exist"
    checksum = read_checksum(path)
    if checksum is None:
        try:
            content = torch.load(path, map_location="meta", weights_only=True)
        except Exception as error:
            return f"it cannot be loaded ({type(error).__name__})"
        return None if isinstance(content, dict) and "state_dict" in content else "it is no checkpoint"
    if path.stat().st_size != checksum.bytes:
        return f"it has {path.stat().st_size:,} bytes instead of {checksum.bytes:,}"
    with path.open("rb") as file:
        if file_digest(file, "sha256").hexdigest() != checksum.sha256:
            return "its content does not match its checksum"
    return None


def require_whole(path: Path, what: str = "checkpoint") -> None:
    """Refuse a checkpoint that cannot be used.

    Raises:
        ValueError: If it is damaged or missing; the message calls it `what`.
    """
    damage = find_damage(path)
    if damage is not None:
        raise ValueError(f"{what} {path} cannot be used: {damage}")


def newest_checkpoint(folder: Path) -> tuple[Path | None, dict[Path, str]]:
    """The whole checkpoint in `folder` that has trained longest, and why newer ones were passed over."""
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

    The number is read from the sidecar, else from the name `step-<steps>.ckpt`, else from the checkpoint itself.
    """
    checksum = read_checksum(path)
    if checksum is not None:
        return checksum.steps
    name = STEP_NAME.fullmatch(path.name)
    if name is not None:
        return int(name[1])
    try:
        return int(torch.load(path, map_location="meta", weights_only=True)["steps"])
    except Exception:  # torch.load raises errors of many types on a damaged file
        return 0


def superseded(paths: Iterable[Path], newest: Path, keep: int) -> list[Path]:
    """Return the checkpoints to delete after `newest` was written.

    Training was resumed before the checkpoints of more steps than `newest`: they are damaged, or belong to an abandoned
    part of the run. They must not remain, because the next resume would choose one of them.

    Args:
        paths: All step checkpoints of the run, `newest` included.
        newest: The checkpoint that was written just now.
        keep: Number of checkpoints that remain, at least 1.
    """
    ordered = sorted(paths, key=training_age)
    behind = ordered.index(newest) + 1
    return ordered[: max(0, behind - keep)] + ordered[behind:]


def read_checksum(path: Path) -> Checksum | None:
    """The sidecar of a checkpoint, or None if there is none that can be read."""
    try:
        return Checksum(**json.loads(checksum_path(path).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def checksum_path(path: Path) -> Path:
    """Where the sidecar of a checkpoint lies."""
    return path.with_name(path.name + CHECKSUM_SUFFIX)
