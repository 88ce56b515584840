"""Start of the supervisor of a fit, before torch is imported.

The process that the user starts becomes the supervisor. Its training process parses and checks the command line.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from yolo_lightning.checkpoints import run_folder
from yolo_lightning.checkpoints.remote_folder import is_address
from yolo_lightning.commands.option_layers import NO_TRAINING, given_options
from yolo_lightning.commands.option_limits import DEADLINE_OPTIONS, resumes
from yolo_lightning.commands.unattended import detach
from yolo_lightning.errors import UserError
from yolo_lightning.supervision import SuperviseSettings, become_supervisor, in_use, is_supervised, reserve
from yolo_lightning.supervision.job import job
from yolo_lightning.utils.distributed import launch_id
from yolo_lightning.utils.host import worker_count
from yolo_lightning.utils.json_record import read_json
from yolo_lightning.utils.moment import parse_moment
from yolo_lightning.utils.run_files import BEST_CHECKPOINT, CHECKPOINTS, FINISHED_FILE, has_checkpoint
from yolo_lightning.utils.yaml_file import nested

MAX_EPOCHS = 100
"""Default of `trainer.max_epochs`."""

DEADLINE_TOLERANCE_S = 1.0


def start_supervisor(words: Sequence[str]) -> None:
    """Become the supervisor of a fit if the options require one.

    If a configuration file cannot be read, the parser of the training reports why.

    Args:
        words: Command line, from the subcommand on.
    """
    if words[:1] != ["fit"]:
        return
    try:
        options = given_options(words, os.environ).all
    except (OSError, UserError):  # the parser of the subcommand reports the error
        return
    if needs_supervisor(words, options):
        supervise_fit(words, options)


def needs_supervisor(words: Sequence[str], options: Mapping[str, Any]) -> bool:
    """Return whether the process of a command line must become the supervisor of a fit.

    Args:
        words: Command line, from the subcommand on.
        options: Options of the command line by full name.
    """
    if is_supervised() or launch_id() is not None or any(word.startswith(NO_TRAINING) for word in words):
        return False
    return words[:1] == ["fit"] and True in (options.get("supervision.enabled"), options.get("detach"))


def supervise_fit(words: Sequence[str], options: Mapping[str, Any], folder: Path | None = None) -> NoReturn:
    """Select the run folder and become the supervisor of a fit; see `needs_supervisor` for the arguments.

    In `folder`, which a service passes, the fit begins at the newest checkpoint; its deadline may have passed.

    Raises:
        SystemExit: With code 0, if the run to resume is finished.
        UserError: If there is no run to resume, or the run folder cannot be written.
    """
    is_given, checkpoint = folder is not None, None
    if folder is None:
        folder, checkpoint = folder_of(options)
    if (is_given or resumes(options)) and (line := finished_line(folder, options)) is not None:
        print(line, file=sys.stderr)
        raise SystemExit(0)
    while not (is_given or resumes(options) or has_checkpoint(folder) or reserved(folder)):
        folder, checkpoint = folder_of(options)
    run_folder.prepare(folder)
    if not is_given:
        run_folder.forget_loggers(folder)
    if checkpoint is not None:
        words = [*words, f"--ckpt_path={checkpoint}"]
    workers = options.get("data.loader.num_workers", "auto")
    number = worker_count(workers) if isinstance(workers, int | str) else 0  # the training process refuses other types
    settings, on_gpu = supervise_settings(options), options.get("trainer.accelerator", "auto") != "cpu"
    made = job(words, folder, workers=number, settings=settings, on_gpu=on_gpu, options=options)
    if is_given:
        command = made.restart_command if has_checkpoint(folder) else made.command
        made = replace(made, command=command, is_service=True)
    if options.get("detach") is True and not is_given:
        detach(folder, made)
    become_supervisor(folder, made)


def reserved(folder: Path) -> bool:
    """Create and reserve the folder of a new run; return False if another process uses the folder."""
    run_folder.prepare(folder)
    return reserve(folder)


def folder_of(options: Mapping[str, Any]) -> tuple[Path, Path | None]:
    """Return the run folder of a fit, and the checkpoint to resume from if the options name one."""
    base = run_folder.configured_folder(str(options.get("trainer.default_root_dir", run_folder.DEFAULT_RUN)))
    mirror, ckpt_path = options.get("mirror"), options.get("ckpt_path")
    if resumes(options):
        return run_folder.folder_to_resume(base, mirror), None
    checkpoint = None if ckpt_path is None or is_address(str(ckpt_path)) else Path(str(ckpt_path))
    if ckpt_path == "best" and (runs := run_folder.runs(base)):
        checkpoint = runs[0] / CHECKPOINTS / BEST_CHECKPOINT
    return run_folder.folder_to_fit(base, checkpoint, mirror, in_use), checkpoint


def finished_line(folder: Path, options: Mapping[str, Any]) -> str | None:
    """Return the line that reports that a run is finished with these options, or None if there is more to train."""
    finish_by, hours = (options.get(name) for name in DEADLINE_OPTIONS)
    max_epochs = options.get("trainer.max_epochs", MAX_EPOCHS)
    try:
        found = read_json(folder / FINISHED_FILE)
        done = int(found["epochs"])
        if finish_by is not None or hours is not None:
            by_hours_s = found["began_s"] + 3600 * float(hours or 0)
            until_s = by_hours_s if finish_by is None else parse_moment("finish_by", str(finish_by)).timestamp()
            is_met = until_s <= found["deadline_s"] + DEADLINE_TOLERANCE_S
            return f"{folder}: the training is finished. To train longer, set a later deadline." if is_met else None
    except (OSError, ValueError, TypeError, KeyError):
        return None
    if not isinstance(max_epochs, int) or done < max_epochs:
        return None
    return (
        f"{folder}: the training is finished, {done} of {max_epochs} epochs are done. "
        f"To train longer, set --trainer.max_epochs to {done + 1} or more."
    )


def supervise_settings(options: Mapping[str, Any]) -> SuperviseSettings:
    """Return the settings `supervision.*`; raise a UserError for a wrong value."""
    prefix = "supervision."
    values = {key.removeprefix(prefix): value for key, value in options.items() if key.startswith(prefix)}
    return SuperviseSettings(**nested(values))
