"""End of a fit that has not finished: one line with the command that resumes it, and an exit code."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from lightning.pytorch import Trainer
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch.distributed import DistNetworkError, DistStoreError

from yolo_lightning.checkpoints.checkpoint_file import NotSavedError, newest_checkpoint, read_checksum
from yolo_lightning.supervision.job import fit_command
from yolo_lightning.supervision.trainer import is_supervised
from yolo_lightning.utils.distributed import launch_id
from yolo_lightning.utils.exit_codes import ExitCode, of_signal
from yolo_lightning.utils.files import DISK_FULL, with_place
from yolo_lightning.utils.loop_position import steps_begun
from yolo_lightning.utils.run_files import CHECKPOINTS
from yolo_lightning.utils.slurm import is_slurm_task
from yolo_lightning.utils.stop_signals import pasteable, request


@contextmanager
def reported(trainer: Trainer) -> Iterator[None]:
    """Report why a fit that runs in this block ends early, if a stop signal or a full disk is the reason.

    Raises:
        SystemExit: With 128 + signal number, `ExitCode.DISK_FULL` or `ExitCode.NOT_SAVED`.
    """
    number: int | None
    try:
        yield
        number = request.number  # also if received after the last step
    except SIGTERMException:
        number = request.number or signal.SIGTERM
    except OSError as error:
        reason = with_place(error)
        if isinstance(error, NotSavedError):
            reason = f"the last checkpoint could not be saved: {reason}"
        if error.errno in DISK_FULL:
            end(trainer, f"error: disk full: {reason}; the fit ended", ExitCode.DISK_FULL)
        if isinstance(error, NotSavedError):
            end(trainer, f"error: {reason}; the fit ended", ExitCode.NOT_SAVED)
        raise
    if number is not None:
        end(trainer, f"stopped by {signal.Signals(number).name}", of_signal(number))


@contextmanager
def missing_process_reported() -> Iterator[None]:
    """Report a rank that is missing, or has ended, in a block in which the ranks form their group.

    Raises:
        SystemExit: With code 1.
    """
    try:
        yield
    except (DistStoreError, DistNetworkError) as error:
        raise SystemExit(
            f"error: a process is missing or has ended: {error} Time limit: see configs/engine/ddp.yaml."
        ) from None


def end(trainer: Trainer, reason: str, code: int) -> NoReturn:
    """Print the reason, the step and how to resume on the first rank, and exit."""
    if trainer.is_global_zero:
        steps = steps_begun(trainer)
        hint = "the fit had finished"
        if not trainer.state.finished:
            hint = _hint_to_resume(Path(trainer.default_root_dir), steps)
        print(f"{reason} after step {steps}; {hint}", file=sys.stderr, flush=True)
    raise SystemExit(code)


def _hint_to_resume(folder: Path, steps: int) -> str:
    """Return the newest checkpoint of a fit of `steps` steps, and the command that resumes this checkpoint."""
    newest, _ = newest_checkpoint(folder / CHECKPOINTS)
    if newest is None:
        return "nothing is saved: start again"
    checksum = read_checksum(newest)
    saved = checksum.steps if checksum is not None else steps
    progress = f"saved up to step {saved}; " if saved < steps else ""
    if is_supervised():  # the supervisor prints the command
        return f"{progress}saved in {newest}"
    if is_slurm_task():
        return f"{progress}saved in {newest}; the requeued job resumes the run"
    command = fit_command(folder, resume=True)
    if launch_id() is not None:
        return f"{progress}resume with: your torchrun command with: {pasteable(command[1:])}"
    return f"{progress}resume with: {pasteable(command)}"
