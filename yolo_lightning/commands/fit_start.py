"""Start of a fit, before torch is imported: the run folder, the checkpoint, and the supervisor.

The process that the user starts becomes the supervisor. Without a supervisor, the trainer chooses the run here, too.
"""

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from yolo_lightning.checkpoints import run_folder
from yolo_lightning.checkpoints.remote_folder import is_remote, local_checkpoint
from yolo_lightning.checkpoints.resume import checked
from yolo_lightning.commands.trainer_limits import check_deadline_of_new_run, resumes
from yolo_lightning.commands.unattended import unattended
from yolo_lightning.options.command_names import PROGRAM
from yolo_lightning.options.run_spec import RunSpec
from yolo_lightning.supervision.job import Job, become_supervisor, job, start_detached
from yolo_lightning.supervision.run_lock import in_use, reserve
from yolo_lightning.supervision.trainer import is_supervised
from yolo_lightning.utils.distributed import NO_LAUNCH_ID, launch_id
from yolo_lightning.utils.json_record import read_json
from yolo_lightning.utils.moment import parse_moment
from yolo_lightning.utils.run_files import FINISHED_FILE, LOG_FILE, has_checkpoint

MAX_EPOCHS = 100
"""Default of `trainer.max_epochs`."""

DEADLINE_TOLERANCE_S = 1.0
FIRST_BATCH_WAIT_S = 120.0


@dataclass(frozen=True, slots=True)
class ChosenRun:
    """Run folder of a fit, and where the fit begins."""

    folder: Path
    checkpoint: str | None = None  # file or address at which the fit begins
    resumes: bool = False  # whether the fit begins at the newest checkpoint of the folder
    is_restart: bool = False  # whether the launch of this process has started the run before
    is_new: bool = False  # whether this process has to reserve the folder


def choose_run(options: Mapping[str, Any]) -> ChosenRun:
    """Return the run folder of a fit, which need not exist, and where the fit begins.

    Args:
        options: Options that the user has set, or all options, by full name.

    Raises:
        UserError: If there is no run to resume, or the folder or the checkpoint cannot be used.
    """
    base = run_folder.configured_folder(options.get("trainer.default_root_dir"))
    mirror = options.get("mirror")
    checkpoint = options.get("ckpt_path")
    if is_supervised():  # the supervisor has chosen the folder
        return ChosenRun(base, checkpoint, resumes(options))
    launch = launch_id()
    # A launch has one run: torchrun, or one of its agents, has been restarted. The number of restarts that an agent
    # counts is not read: the agent of a machine that returns begins with 0.
    restarted = None
    if launch not in (None, NO_LAUNCH_ID):
        restarted = run_folder.run_of_launch(base, launch)
    if restarted is not None and has_checkpoint(restarted):
        return ChosenRun(restarted, resumes=True, is_restart=True)
    if resumes(options):
        return ChosenRun(run_folder.folder_to_resume(base, mirror), resumes=True)
    if checkpoint == "best":
        checkpoint = str(checked(checkpoint, base))
    if restarted is not None:
        return ChosenRun(restarted, checkpoint, is_restart=True)
    if launch is not None:
        check_deadline_of_new_run(options)
    file = None  # of a remote checkpoint, which belongs to no run of this machine
    if checkpoint is not None and not is_remote(checkpoint):
        file = local_checkpoint(checkpoint)
    folder = run_folder.folder_to_fit(base, file, mirror, in_use)
    return ChosenRun(folder, checkpoint, is_new=not has_checkpoint(folder))


def reserve_run(options: Mapping[str, Any]) -> ChosenRun:
    """Return the chosen run; the folder of a new run exists and is reserved for this process."""
    chosen = choose_run(options)
    while chosen.is_new:
        run_folder.prepare(chosen.folder)
        if reserve(chosen.folder):
            break
        chosen = choose_run(options)  # another process uses the folder
    return chosen


def start_supervisor(spec: RunSpec) -> None:
    """Become the supervisor of a fit if the options, which `resolve` has checked, require one."""
    if spec.command != "fit" or spec.only_prints or is_supervised() or launch_id() is not None:
        return
    options = spec.given
    if options.get("supervision.enabled") is True or options.get("detach") is True:
        supervise_fit(spec, reserve_run(options))


def supervise_fit(spec: RunSpec, chosen: ChosenRun, *, is_service: bool = False) -> NoReturn:
    """Become the supervisor of a fit.

    Args:
        spec: Options of the fit.
        chosen: Run folder, reserved for this process if it is new.
        is_service: Whether no person has started the fit. The folder may contain no checkpoint yet.

    Raises:
        SystemExit: With code 0, if the run to resume is finished.
        UserError: If the run folder cannot be written.
    """
    options = spec.given
    folder = chosen.folder
    if chosen.resumes:
        line = finished_line(folder, options)
        if line is not None:
            print(line, file=sys.stderr)
            raise SystemExit(0)
    run_folder.prepare(folder)
    if not is_service:
        run_folder.forget_loggers(folder)
    if not in_use(folder):  # otherwise the supervisor refuses the folder
        spec.write(folder, chosen.checkpoint)
    supervised_job = job(folder, options)
    if is_service:
        supervised_job = replace(supervised_job, is_service=True)
        if has_checkpoint(folder):
            supervised_job = replace(supervised_job, command=supervised_job.restart_command)
    elif options.get("detach") is True:
        detach(folder, supervised_job)
    become_supervisor(folder, supervised_job)


def detach(run: Path, supervised_job: Job) -> NoReturn:
    """Start the supervisor of a fit in a session of its own, and end this process.

    Raises:
        SystemExit: With code 0 if the supervisor runs, else with its exit code.
    """
    process, code = start_detached(run, supervised_job, FIRST_BATCH_WAIT_S)
    if code is not None:
        raise SystemExit(code if code >= 0 else 1)
    folder = shlex.quote(str(run))
    print(f"\nDetached: process {process} trains in {run}; output: {run / LOG_FILE}")
    print(f"  {PROGRAM} monitor {folder}\n  {PROGRAM} stop {folder}")
    print("\n".join(unattended(run, supervised_job.settings, has_service=False)))
    raise SystemExit(0)


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
