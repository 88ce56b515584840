"""Start of the supervisor of a fit, before torch is imported.

The process that the user starts becomes the supervisor.
"""

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from yolo_lightning.checkpoints import run_folder
from yolo_lightning.checkpoints.remote_folder import is_address
from yolo_lightning.commands.option_limits import resumes
from yolo_lightning.commands.unattended import detach
from yolo_lightning.options.run_spec import RunSpec
from yolo_lightning.supervision import become_supervisor, in_use, is_supervised, reserve
from yolo_lightning.supervision.job import job
from yolo_lightning.utils.distributed import launch_id
from yolo_lightning.utils.json_record import read_json
from yolo_lightning.utils.moment import parse_moment
from yolo_lightning.utils.run_files import BEST_CHECKPOINT, CHECKPOINTS, FINISHED_FILE, has_checkpoint

MAX_EPOCHS = 100
"""Default of `trainer.max_epochs`."""

DEADLINE_TOLERANCE_S = 1.0


def start_supervisor(spec: RunSpec) -> None:
    """Become the supervisor of a fit if the options, which `resolve` has checked, require one."""
    if spec.command != "fit" or spec.only_prints or is_supervised() or launch_id() is not None:
        return
    if spec.given.get("supervision.enabled") is True or spec.given.get("detach") is True:
        supervise_fit(spec)


def supervise_fit(spec: RunSpec, folder: Path | None = None) -> NoReturn:
    """Select the run folder and become the supervisor of a fit.

    Args:
        spec: Options of the fit.
        folder: Run folder of a service. The fit begins at the newest checkpoint of this folder; the deadline may have
            passed.

    Raises:
        SystemExit: With code 0, if the run to resume is finished.
        UserError: If there is no run to resume, or the run folder cannot be written.
    """
    options = spec.given
    is_service = folder is not None
    checkpoint: Path | None = None
    if folder is None:
        folder, checkpoint = folder_of(options)
    is_old = is_service or resumes(options)
    if is_old:
        line = finished_line(folder, options)
        if line is not None:
            print(line, file=sys.stderr)
            raise SystemExit(0)
    while not (is_old or has_checkpoint(folder) or reserved(folder)):
        folder, checkpoint = folder_of(options)
    run_folder.prepare(folder)
    if not is_service:
        run_folder.forget_loggers(folder)
    if not in_use(folder):  # otherwise the supervisor refuses the folder
        spec.write(folder, checkpoint)
    supervised_job = job(folder, options)
    if is_service:
        supervised_job = replace(supervised_job, is_service=True)
        if has_checkpoint(folder):
            supervised_job = replace(supervised_job, command=supervised_job.restart_command)
    elif options.get("detach") is True:
        detach(folder, supervised_job)
    become_supervisor(folder, supervised_job)


def reserved(folder: Path) -> bool:
    """Create and reserve the folder of a new run; return False if another process uses the folder."""
    run_folder.prepare(folder)
    return reserve(folder)


def folder_of(options: Mapping[str, Any]) -> tuple[Path, Path | None]:
    """Return the run folder of a fit, and the checkpoint to resume from if the options name one."""
    base = run_folder.configured_folder(str(options.get("trainer.default_root_dir", run_folder.DEFAULT_RUN)))
    mirror = options.get("mirror")
    if resumes(options):
        return run_folder.folder_to_resume(base, mirror), None
    checkpoint = None
    ckpt_path = options.get("ckpt_path")
    if ckpt_path is not None and not is_address(str(ckpt_path)):
        checkpoint = Path(str(ckpt_path))
    runs = run_folder.runs(base)
    if ckpt_path == "best" and runs:
        checkpoint = runs[0] / CHECKPOINTS / BEST_CHECKPOINT
    return run_folder.folder_to_fit(base, checkpoint, mirror, in_use), checkpoint


def finished_line(folder: Path, options: Mapping[str, Any]) -> str | None:
    """Return the line that reports that a run is finished with these options, or None if there is more to train."""
    finish_by = options.get("finish_by")
    max_hours = options.get("max_hours")
    max_epochs = options.get("trainer.max_epochs", MAX_EPOCHS)
    deadline_s: float | None = None
    try:
        record = read_json(folder / FINISHED_FILE)
        done = int(record["epochs"])
        if finish_by is not None:
            deadline_s = parse_moment("finish_by", str(finish_by)).timestamp()
        elif max_hours is not None:
            deadline_s = record["began_s"] + 3600 * float(max_hours)
        is_over = deadline_s is not None and deadline_s <= record["deadline_s"] + DEADLINE_TOLERANCE_S
    except (OSError, ValueError, TypeError, KeyError):
        return None
    if is_over:
        return f"{folder}: the training is finished. To train longer, set a later deadline."
    if deadline_s is not None or not isinstance(max_epochs, int) or done < max_epochs:
        return None
    return (
        f"{folder}: the training is finished, {done} of {max_epochs} epochs are done. "
        f"To train longer, set --trainer.max_epochs to {done + 1} or more."
    )
