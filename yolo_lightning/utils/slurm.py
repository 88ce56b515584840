"""Tasks of a SLURM job, and the requeue of the job before its time limit. Standard library only."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from yolo_lightning.errors import UserError
from yolo_lightning.utils.exit_codes import of_signal

REQUEUE_SIGNAL = signal.SIGUSR1
"""SLURM sends the signal to all tasks before the time limit, with `--signal=SIGUSR1@90`."""

REQUEUE_TIMEOUT_S = 60.0
INTERACTIVE_JOBS = ("bash", "interactive")  # names of SLURM jobs, as in Lightning's `SLURMEnvironment`


def is_slurm_task() -> bool:
    """Return whether srun, and not torchrun, has started this process as one of several tasks."""
    is_task = all(name in os.environ for name in ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID"))
    return is_task and _needs_srun()


def _needs_srun() -> bool:
    """Return whether srun must start the tasks of the job. Lightning ignores interactive jobs."""
    is_interactive = os.environ.get("SLURM_JOB_NAME") in INTERACTIVE_JOBS
    has_several_tasks = os.environ.get("SLURM_NTASKS", "1") != "1"
    return has_several_tasks and not is_interactive and "TORCHELASTIC_RUN_ID" not in os.environ


def require_whole_launch() -> None:
    """Refuse a job of several tasks whose processes srun has not started, or that Lightning cannot divide into nodes.

    Raises:
        UserError: If this process is no task of such a job, or the number of tasks per node is unknown.
    """
    if not _needs_srun():
        return
    tasks = os.environ["SLURM_NTASKS"]
    if not is_slurm_task():
        raise UserError(
            f"SLURM_NTASKS must be 1 in a process that srun has not started, got {tasks}. Start all tasks of the job "
            "with `srun python -m yolo_lightning ...`, or set SLURM_JOB_NAME=interactive to use this process alone"
        )
    if "SLURM_NTASKS_PER_NODE" not in os.environ:
        raise UserError(f"SLURM_NTASKS_PER_NODE must be set by --ntasks-per-node, got only --ntasks={tasks}")


@contextmanager
def requeued() -> Iterator[None]:
    """Requeue the SLURM job if its signal before the time limit has ended the block; the first task does so."""
    try:
        yield
    except SystemExit as end:
        if end.code == of_signal(REQUEUE_SIGNAL) and is_slurm_task():
            # The signal can reach this task after the agreed stop, and would kill the ending interpreter.
            signal.signal(REQUEUE_SIGNAL, signal.SIG_IGN)
            if os.environ["SLURM_PROCID"] == "0":
                _requeue(os.environ["SLURM_JOB_ID"])
        raise


def _requeue(job: str) -> None:
    command = ["scontrol", "requeue", job]
    try:
        subprocess.run(command, check=True, timeout=REQUEUE_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"error: the job is not requeued: {error}. Run: {shlex.join(command)}", file=sys.stderr, flush=True)
    else:
        print(f"SLURM job {job} is requeued", file=sys.stderr, flush=True)
