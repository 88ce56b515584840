"""Tasks of a SLURM job on this machine: the variables of srun, and a stand-in for `scontrol`."""

import os
import socket
from pathlib import Path

JOB = {
    **{"SLURM_JOB_ID": "71", "SLURM_STEP_ID": "0", "SLURM_JOB_NAME": "train", "SLURM_NODELIST": "127.0.0.1"},
    **{"SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "2", "SLURM_NNODES": "1", "SLURM_NODEID": "0"},
}


def write_scontrol(folder: Path) -> None:
    """Write a stand-in for `scontrol` that appends its arguments to the file `requeued` of the working folder."""
    scontrol = folder / "scontrol"
    scontrol.write_text('#!/bin/sh\necho "$@" >> requeued\n')
    scontrol.chmod(0o755)


def job_variables(folder: Path) -> dict[str, str]:
    """Return the variables of all tasks of one start of the job: `scontrol` is found in `folder`, the port is free."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return JOB | {"PATH": f"{folder}:{os.environ['PATH']}", "MASTER_PORT": str(port)}


def task_variables(task: int) -> dict[str, str]:
    """Return the variables of one task."""
    return {"SLURM_PROCID": str(task), "SLURM_LOCALID": str(task)}
