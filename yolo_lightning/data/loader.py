"""How worker processes are used. A worker imports this file, so it imports no more than a worker needs.

docs/loader.md holds the reasons at length.
"""

import os
from dataclasses import dataclass
from typing import Any, Literal

import cv2
import torch

from yolo_lightning.data.worker_processes import THREADS_VARIABLE, ForkServingContext, SpawningContext


@dataclass(frozen=True)
class LoaderSettings:
    """How worker processes are used.

    Attributes:
        workers: Processes that prepare batches; 0 prepares them in the training process, which nothing can hang then.
        persistent_workers: Keep the training workers from epoch to epoch, which saves their start (2 s and more). Else
            none of them idles through a validation, where one that died would be noticed only afterwards.
            Validation workers always end.
        prefetch_factor: Batches each worker prepares ahead.
        start_method: How a worker starts. `spawn` begins with an empty interpreter; `forkserver` copies a process that
            was started so and has imported torch, once for all workers. Neither inherits the GPU's state, whenever it
            starts. Never fork: it stalls ROCm's queues and can inherit held locks.
        worker_threads: OpenMP and BLAS threads of each worker, in its environment before torch is loaded.
        pin_memory: Copy batches into page-locked memory; null does so exactly when training on a GPU. ROCm pins every
            pageable batch in place otherwise, and stops the GPU's queues when the batch is unmapped.
        timeout_s: Seconds to wait for a worker's batch before an error; 0 waits for ever. It ends the run, it does not
            mend it, and it takes slow storage for a hang; the stall detector watches the whole loop instead.
    """

    workers: int = 4
    persistent_workers: bool = True
    prefetch_factor: int = 2
    start_method: Literal["spawn", "forkserver"] = "spawn"
    worker_threads: int = 1
    pin_memory: bool | None = None
    timeout_s: float = 0.0

    def __post_init__(self) -> None:
        for name, least in (("workers", 0), ("prefetch_factor", 1), ("worker_threads", 1), ("timeout_s", 0)):
            if not getattr(self, name) >= least:
                raise ValueError(f"loader.{name} is {getattr(self, name)}, allowed are {least} and more")
        if self.start_method not in ("spawn", "forkserver"):
            raise ValueError(f"loader.start_method is {self.start_method!r}, allowed are spawn and forkserver")

    def arguments(self, *, on_gpu: bool, persistent: bool) -> dict[str, Any]:
        """The `DataLoader` arguments these settings stand for."""
        arguments: dict[str, Any] = {
            "num_workers": self.workers,
            "pin_memory": on_gpu if self.pin_memory is None else self.pin_memory,
        }
        if self.workers:
            context = SpawningContext if self.start_method == "spawn" else ForkServingContext
            arguments |= {
                "multiprocessing_context": context(self.worker_threads),
                "persistent_workers": persistent and self.persistent_workers,
                "prefetch_factor": self.prefetch_factor,
                "timeout": self.timeout_s,
                "worker_init_fn": prepare_worker,
            }
        return arguments


def prepare_worker(worker: int) -> None:
    """Keep a loader worker to its own core: OpenCV would start a thread per core otherwise.

    torch is told again because the DataLoader has just set it to one thread.
    """
    cv2.setNumThreads(0)
    torch.set_num_threads(int(os.environ.get(THREADS_VARIABLE, 1)))


def describe(arguments: dict[str, Any]) -> str:
    """Loader arguments in one line for the log."""
    pinned = "batches in pinned memory" if arguments["pin_memory"] else "batches in pageable memory"
    workers = arguments["num_workers"]
    if not workers:
        return f"no workers, the training process prepares batches; {pinned}"
    context = arguments["multiprocessing_context"]
    kept = "kept from epoch to epoch" if arguments["persistent_workers"] else "new every epoch"
    patience = f"an error after {arguments['timeout']:g} s without a batch" if arguments["timeout"] else "no timeout"
    threads, ahead = counted(context.threads, "thread"), counted(arguments["prefetch_factor"], "batch")
    return (
        f"{counted(workers, 'worker')} by {context.get_start_method()}, {kept}, {threads} each, {ahead} ahead each; "
        f"{pinned}; {patience}"
    )


def counted(number: int, thing: str) -> str:
    """`2 batches`, `1 thread`."""
    plural = thing + ("es" if thing.endswith("ch") else "s")
    return f"{number} {thing if number == 1 else plural}"
