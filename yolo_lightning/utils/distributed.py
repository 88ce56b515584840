"""Distributed runs: torchrun's environment, and collective operations that Lightning's strategies do not have.

torch is imported by the collective operations only: the start of a supervised fit reads the environment without torch.
"""

import os
import socket
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from yolo_lightning.errors import UserError
from yolo_lightning.utils.activity import Activity, during
from yolo_lightning.utils.slurm import is_slurm_task

if TYPE_CHECKING:
    from torch import Tensor

LAUNCH_VARIABLE = "TORCHELASTIC_RUN_ID"
"""Environment variable with the id of the launch; torchrun sets it to the same value in all processes and restarts."""

NO_LAUNCH_ID = "none"
"""Id of all launches with torchrun's static rendezvous and without --rdzv-id."""

MACHINES_VARIABLE = "GROUP_WORLD_SIZE"


def launch_id() -> str | None:
    """Return the id of the launch by torchrun or by srun with several tasks, or None for another process.

    The id is equal after a restart: SLURM runs a requeued job again with its id and numbers its steps from 0.
    """
    if is_slurm_task():
        return f"slurm-{os.environ['SLURM_JOB_ID']}-{os.environ['SLURM_STEP_ID']}"
    return os.environ.get(LAUNCH_VARIABLE)


def may_restart() -> bool:
    """Return whether torchrun restarts the processes after a failure."""
    return int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) > 0


def uses_agent_store() -> bool:
    """Return whether torchrun uses one store for all restarts.

    It does so with the rendezvous `static`, torchrun's default, and without TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1.
    PyTorch 2.15 does not separate the attempts in it, so that a restarted process sometimes waits for the address of a
    dead one. Delete the check that calls this function when PyTorch separates the attempts.
    """
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def machines_of_launch() -> int | None:
    """Return the number of torchrun agents that train together; None if torchrun has not started this process.

    After the loss of a machine the number is smaller than the maximum of `--nnodes`.
    """
    if LAUNCH_VARIABLE not in os.environ or MACHINES_VARIABLE not in os.environ:
        return None
    return int(os.environ[MACHINES_VARIABLE])


def rank_suffix(rank: int) -> str:
    """Return the suffix of file names of one rank: empty for the first rank."""
    return f"-rank{rank}" if rank else ""


def line_prefix(rank: int) -> str:
    """Return the begin of each line that a rank prints: `[rank 1, node2] `; empty for the first rank."""
    return f"[rank {rank}, {socket.gethostname()}] " if rank else ""


def sum_over_ranks(tensor: "Tensor") -> "Tensor":
    """Replace a tensor by its sum over all ranks, without the barrier of Lightning's `reduce`; a collective call."""
    from torch import distributed as dist

    with during(Activity.EXCHANGE):
        dist.all_reduce(tensor)
    return tensor


def broadcast_of_first_rank(tensor: "Tensor") -> "Tensor":
    """Replace a tensor by that of the first rank; a collective call."""
    from torch import distributed as dist

    with during(Activity.EXCHANGE):
        dist.broadcast(tensor, src=0)
    return tensor


def gather(thing: Any) -> list[Any]:
    """Return the objects of all ranks in their order; a collective call.

    The objects are pickled; one large object is faster than many small ones.
    """
    from torch import distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return [thing]
    things = [None] * dist.get_world_size()
    with during(Activity.EXCHANGE):
        dist.all_gather_object(things, thing)
    return things


def disagreement(reports: Sequence[tuple[str, Mapping[str, Any]]]) -> str | None:
    """Return a line that names the first fact of a rank that differs from that of the first rank, or None.

    Args:
        reports: Host and facts of each rank, in the order of the ranks.
    """
    first_host, expected = reports[0]
    for rank, (host, facts) in enumerate(reports[1:], start=1):
        for name in sorted(expected.keys() | facts.keys()):
            if facts.get(name) != expected.get(name):
                value = f"{facts.get(name)!r} on rank {rank} (host {host})"
                first_value = f"{expected.get(name)!r} on rank 0 (host {first_host})"
                return f"the ranks differ in {name}: {value}, {first_value}. All ranks end."
    return None


def check_agreement(facts: Mapping[str, Any]) -> None:
    """Raise a UserError in all ranks if a fact of a rank differs from that of the first rank; a collective call."""
    difference = disagreement(gather((socket.gethostname(), facts)))
    if difference is not None:
        raise UserError(difference)
