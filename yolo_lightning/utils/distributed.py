"""What the processes of a distributed run tell each other, beyond what Lightning's strategies do for them."""

import os
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

LAUNCH_VARIABLE = "TORCHELASTIC_RUN_ID"
"""Names the launch that this process belongs to; torchrun sets it, the same for all processes and all restarts."""

RESTARTS_VARIABLE = "TORCHELASTIC_RESTART_COUNT"
MACHINES_VARIABLE = "GROUP_WORLD_SIZE"


def launch_id() -> str | None:
    """Name of torchrun's launch, or None where something else has started this process."""
    return os.environ.get(LAUNCH_VARIABLE)


def restarts_are_unsafe() -> bool:
    """Whether torchrun may restart processes that then read in its store where their dead predecessors listened.

    It keeps one store over all restarts unless told otherwise, and PyTorch 2.15 tells the attempts apart no more, so
    that a restarted group sometimes waits for ever. May go when PyTorch does.
    """
    may_restart = int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) > 0
    return may_restart and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def restarts() -> int:
    """How often torchrun has started all processes again after one of them had ended."""
    return int(os.environ.get(RESTARTS_VARIABLE, "0"))


def machines_of_launch() -> int | None:
    """How many of torchrun's agents train together: after the loss of one, fewer than `--nnodes` once allowed.

    None where something else has started this process.
    """
    return int(os.environ[MACHINES_VARIABLE]) if launch_id() is not None and MACHINES_VARIABLE in os.environ else None


def rank_suffix(rank: int) -> str:
    """What names of files of one process end with: nothing for the first process."""
    return f"-rank{rank}" if rank else ""


def gather(tensor: Tensor, group: Any = None) -> list[Tensor]:
    """The tensor of every process, in the order of their ranks, on the device of this one's.

    All must have as many dimensions, and be of one size in all but the first. They travel as bytes, since neither NCCL
    nor Gloo carries every dtype (int16, for one), and over the GPU where the process group lives there. A collective
    call.

    Args:
        tensor: `(N, ...)` of any dtype and device; N may differ between the processes.
        group: The process group; None is all.
    """
    device = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend(group) == "nccl" else "cpu"
    count = torch.tensor([len(tensor)], device=device)
    counts = [torch.empty_like(count) for _ in range(dist.get_world_size(group))]
    dist.all_gather(counts, count, group)
    lengths = [int(one) for one in counts]
    row_bytes = tensor.element_size() * int(torch.Size(tensor.shape[1:]).numel())
    own = torch.zeros(max(lengths) * row_bytes, dtype=torch.uint8, device=device)
    own[: tensor.numel() * tensor.element_size()] = tensor.contiguous().view(-1).view(torch.uint8).to(device)
    padded = [torch.empty_like(own) for _ in lengths]
    dist.all_gather(padded, own, group)
    return [
        content[: length * row_bytes].to(tensor.device).view(tensor.dtype).view(length, *tensor.shape[1:])
        for content, length in zip(padded, lengths, strict=True)
    ]


def gather_on_first(thing: Any) -> list[Any] | None:
    """What each process holds, in the order of their ranks, in the first; None in the others. A collective call.

    Args:
        thing: Anything that can be pickled. One large thing travels better than many small ones.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return [thing]
    is_first = dist.get_rank() == 0
    things = [None] * dist.get_world_size() if is_first else None
    dist.gather_object(thing, things, dst=0)
    return things
