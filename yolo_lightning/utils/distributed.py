"""Distributed runs: torchrun's environment, and collective operations that Lightning's strategies do not have.

torch is imported by the collective operations only: the start of a supervised fit reads the environment without torch.
"""

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

LAUNCH_VARIABLE = "TORCHELASTIC_RUN_ID"
"""Environment variable with the id of the launch; torchrun sets it to the same value in all processes and restarts."""

RESTARTS_VARIABLE = "TORCHELASTIC_RESTART_COUNT"
MACHINES_VARIABLE = "GROUP_WORLD_SIZE"


def launch_id() -> str | None:
    """Return the id of torchrun's launch, or None if torchrun has not started this process."""
    return os.environ.get(LAUNCH_VARIABLE)


def restarts_are_unsafe() -> bool:
    """Whether processes that torchrun restarts may hang.

    torchrun uses one store for all restarts unless TORCH_DISABLE_SHARE_RDZV_TCP_STORE is set. PyTorch 2.15 does not
    separate the attempts in it, so that a restarted process sometimes waits for the address of a dead one. Delete this
    check when PyTorch separates the attempts.
    """
    may_restart = int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) > 0
    return may_restart and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def restarts() -> int:
    """Return the number of times that torchrun has restarted all processes."""
    return int(os.environ.get(RESTARTS_VARIABLE, "0"))


def machines_of_launch() -> int | None:
    """Return the number of torchrun agents that train together; None if torchrun has not started this process.

    After the loss of a machine the number is smaller than the maximum of `--nnodes`.
    """
    return int(os.environ[MACHINES_VARIABLE]) if launch_id() is not None and MACHINES_VARIABLE in os.environ else None


def rank_suffix(rank: int) -> str:
    """Return the suffix of file names of one rank: empty for the first rank."""
    return f"-rank{rank}" if rank else ""


def sum_over_ranks(tensor: "Tensor") -> "Tensor":
    """Replace a tensor by its sum over all ranks, without the barrier of Lightning's `reduce`; a collective call."""
    from torch import distributed as dist

    dist.all_reduce(tensor)
    return tensor


def gather(thing: Any) -> list[Any]:
    """Return the objects of all ranks in their order; a collective call.

    The objects are pickled; one large object is faster than many small ones.
    """
    from torch import distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return [thing]
    things = [None] * dist.get_world_size()
    dist.all_gather_object(things, thing)
    return things
