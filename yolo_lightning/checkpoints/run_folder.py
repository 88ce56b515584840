"""Selection of a run folder: a new one for a new run, the newest one for a resume or an evaluation.

Imports neither torch nor Lightning: the supervisor of a fit selects the folder.
"""

import os
import re
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryFile

from yolo_lightning.checkpoints.checkpoint_file import contains_only_weights, find_damage, steps_trained
from yolo_lightning.checkpoints.remote_folder import RemoteFolder, is_address, local_path
from yolo_lightning.errors import UserError
from yolo_lightning.utils.addresses import redacted
from yolo_lightning.utils.files import DISK_FULL, first_free, replacing, temporary_prefix, write_json
from yolo_lightning.utils.json_record import read_record
from yolo_lightning.utils.paths import real_path, user_path
from yolo_lightning.utils.plain_text import UNSAFE
from yolo_lightning.utils.regular_files import read_regular
from yolo_lightning.utils.run_files import (
    CHECKPOINTS,
    LAUNCH,
    LOCK_FILE,
    LOGGERS,
    STARTED,
    config_name,
    has_checkpoint,
)
from yolo_lightning.utils.suggestions import did_you_mean

DEFAULT_RUN = "runs/yolo"
NOTHING_TO_RESUME = (
    "nothing to resume: no run folder {base} or {base}-<n> contains a checkpoint. Without --resume, a new run starts."
)
LONGEST_NOTE = 1000  # bytes
LOOK_AGAIN_S = 0.1


def configured_folder(text: str | None) -> Path:
    """Return the value of `trainer.default_root_dir` as a path, by default `DEFAULT_RUN`.

    The home folder replaces `~`, as in Lightning's Trainer: supervisor and trainer must use one folder.

    Raises:
        UserError: If the value is an address or a file.
    """
    if text is None:
        text = DEFAULT_RUN
    if is_address(text):
        raise UserError(
            f"trainer.default_root_dir must be a local folder, got {text}. "
            "Use --mirror or the callback CheckpointMirror to copy the checkpoints to an address."
        )
    folder = user_path(local_path(text))
    _check_name(folder)
    for path in (folder, *folder.parents):
        if os.path.exists(path) and not os.path.isdir(path):
            raise UserError(f"trainer.default_root_dir must be a folder, got the file {path}.")
    return folder


def _check_name(folder: Path) -> None:
    """Raise a UserError for control characters, which could add lines to logs, systemd units and scripts."""
    if UNSAFE.search(str(folder)):
        raise UserError(
            f"trainer.default_root_dir must not contain control characters, got {str(folder)!r}: rename the folder"
        )


def prepare(folder: Path) -> None:
    """Create a run folder and check that it is writable; a full disk, which can be temporary, raises an OSError."""
    _check_name(folder)
    try:
        (folder / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
        # A unique name: all ranks check the folder at once, and ranks in two containers can have the same process id.
        with TemporaryFile(dir=folder, prefix=temporary_prefix()):
            pass
    except OSError as error:
        if error.errno in DISK_FULL:
            raise
        raise UserError(
            f"run folder {folder} cannot be written ({error.strerror}): choose another --trainer.default_root_dir"
        ) from error


def forget_loggers(folder: Path) -> None:
    """Delete the record of the loggers if the run that has begun in a folder ended before its first checkpoint."""
    if not has_checkpoint(folder):
        (folder / LOGGERS).unlink(missing_ok=True)


def remove_unused(folder: Path) -> None:
    """Remove the folder of a run that has failed before anything but its lock was written."""
    with suppress(OSError):
        if sorted(path.name for path in folder.iterdir()) == [CHECKPOINTS, LOCK_FILE]:
            (folder / CHECKPOINTS).rmdir()  # raises an OSError if there is a checkpoint
            (folder / LOCK_FILE).unlink()
            folder.rmdir()


def numbered(base: Path) -> re.Pattern[str]:
    """Return the pattern of the names `base`, `base-2`, ..., with the number as group 1."""
    return re.compile(re.escape(base.absolute().name) + r"(?:-(\d+))?")


def _numbered_folders(base: Path) -> list[Path]:
    """Return the existing folders among `base`, `base-2`, ..., in no particular order."""
    parent = _named(base).parent
    if not parent.is_dir():
        return []
    pattern = numbered(base)
    return [folder for folder in parent.iterdir() if pattern.fullmatch(folder.name)]


def _named(base: Path) -> Path:
    """Return a path with a name, which `.` has not."""
    if not base.name:
        return base.absolute()
    return base


def fresh_run(base: Path, taken: Collection[str] = (), in_use: Callable[[Path], bool] | None = None) -> Path:
    """Return the first of `base`, `base-2`, ... that has no checkpoint, is not in use, and is not named in `taken`."""

    def is_taken(folder: Path) -> bool:
        return has_checkpoint(folder) or folder.name in taken or (in_use is not None and in_use(folder))

    return first_free(_named(base), is_taken=is_taken)


@dataclass(frozen=True, slots=True)
class LaunchRecord:
    """Start of all ranks by a launcher, which the first rank records in the run folder."""

    id: str  # of torchrun's launch, equal after a restart
    attempt: str  # token of this start of the ranks


def note_launch(folder: Path, launch: LaunchRecord) -> None:
    """Record a start of all ranks in a run folder, for `run_of_launch` and for a check that the folder is shared."""
    write_json(folder / LAUNCH, asdict(launch))


def read_launch(folder: Path) -> LaunchRecord | None:
    """Return the last start of all ranks in a run folder, or None."""
    return read_record(folder / LAUNCH, LaunchRecord)


def run_of_launch(base: Path, launch_id: str) -> Path | None:
    """Return the folder among `base`, `base-2`, ... in which a launch trained last, or None."""
    folders = []
    for folder in _numbered_folders(base):
        launch = read_launch(folder)
        if launch is not None and launch.id == launch_id:
            folders.append(folder)
    return max(folders, key=_start_order, default=None)


def has_launch(folder: Path, launch: LaunchRecord, patience_s: float) -> bool:
    """Return whether a run folder is the one in which the first rank has recorded `launch`.

    A network file system can show a new file to other hosts with a delay, at most `patience_s` seconds.
    """
    until_s = time.monotonic() + patience_s
    while read_launch(folder) != launch:
        if time.monotonic() >= until_s:
            return False
        time.sleep(LOOK_AGAIN_S)
    return True


def note_start(folder: Path) -> None:
    """Record that a fit starts in `folder`, which makes it the newest of all runs with the same name before the number.

    The record is a number and no time, because a clock can be set back.
    """
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    siblings = re.compile(re.escape(re.sub(r"(-\d+)+$", "", folder.name)) + r"(-\d+)*")
    other_runs = (path for path in folder.parent.iterdir() if siblings.fullmatch(path.name) and path != folder)
    newest = max(map(_start_number, other_runs), default=0)
    if _start_number(folder) <= newest:
        with replacing(folder / STARTED) as temporary:
            temporary.write_text(f"{newest + 1}\n")


def _start_number(folder: Path) -> int:
    """Return the number of the last fit in a run folder, from 1; 0 if no number can be read."""
    try:
        return int(read_regular(folder / STARTED, LONGEST_NOTE))
    except (OSError, ValueError):
        return 0


def _start_order(folder: Path) -> tuple[int, int]:
    """Return the sort key of a run folder by age: the number of its last fit, then the number in its name."""
    number = re.search(r"-(\d+)$", folder.name)
    return _start_number(folder), int(number[1]) if number else 1


def runs(base: Path) -> list[Path]:
    """Return the folders with checkpoints among `base`, `base-2`, ..., by the start of the last fit, newest first."""
    return sorted(filter(has_checkpoint, _numbered_folders(base)), key=_start_order, reverse=True)


def meant_run(base: Path) -> str:
    """Return the end of the error for a folder without a run: the run that contains it, if it is a part of one."""
    for folder in base.parents:
        if folder.name and has_checkpoint(folder):
            return did_you_mean([str(folder)])
    return "."


def run_of(checkpoint: Path) -> Path | None:
    """Return the run folder that contains a checkpoint, or None for a file outside of a run folder."""
    if checkpoint.parent.name != CHECKPOINTS:
        return None
    return checkpoint.parent.parent


def configuration_of(checkpoint: Path) -> Path | None:
    """Return the configuration file of the fit that has written a checkpoint, or None if there is no such file."""
    run = run_of(checkpoint)
    if run is None or not (run / config_name("fit")).is_file():
        return None
    return run / config_name("fit")


def mirrored_runs(base: Path, mirror: str | None) -> list[str]:
    """Return the names of the runs `base`, `base-2`, ... with checkpoints in a mirror, the highest number first.

    Raises:
        UserError: If the storage cannot be read.
    """
    if mirror is None:
        return []
    pattern = numbered(base)
    remote = RemoteFolder(mirror)
    numbers: dict[str, int] = {}
    try:
        for name in remote.names():
            match = pattern.fullmatch(name)
            if match and remote.folder(name).complete():
                numbers[name] = int(match[1] or 1)
    except OSError as error:
        raise UserError(f"mirror {redacted(mirror)} cannot be read: {error}") from error
    return sorted(numbers, key=numbers.__getitem__, reverse=True)


def folder_to_fit(
    base: Path, checkpoint: Path | None, mirror: str | None = None, in_use: Callable[[Path], bool] | None = None
) -> Path:
    """Return the run folder of the checkpoint, or a fresh one, without checkpoints here or in the mirror.

    A fresh folder is used for a new run, a checkpoint from elsewhere, and a checkpoint that is not the newest of its
    run, whose later checkpoints are kept. A fresh folder is not `in_use` by another process.
    """
    folder = run_of(checkpoint) if checkpoint is not None else None
    if checkpoint is not None and folder is not None and real_path(folder) in map(real_path, runs(base)):
        steps = steps_trained(checkpoint)
        later = [path for path in checkpoint.parent.glob("*.ckpt") if steps_trained(path) > steps]
        if all(find_damage(path) is not None or contains_only_weights(path) for path in later):
            return folder
    return fresh_run(base, mirrored_runs(base, mirror), in_use)


def folder_to_resume(base: Path, mirror: str | None = None) -> Path:
    """Return the newest run folder among `base`, `base-2`, ...; without one, the folder of the newest mirrored run.

    Raises:
        UserError: If there is no run to resume.
    """
    folders = runs(base)
    if folders:
        return folders[0]
    names = mirrored_runs(base, mirror)
    if names:
        return base.absolute().with_name(names[0])
    raise UserError(NOTHING_TO_RESUME.format(base=base))
