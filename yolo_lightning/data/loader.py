"""How worker processes are used. A worker imports this file, so it imports no more than a worker needs."""

from dataclasses import dataclass
from typing import Any, Literal

import cv2
import torch


@dataclass(frozen=True)
class LoaderSettings:
    """How worker processes are used.

    Attributes:
        workers: Processes that prepare batches; 0 prepares them in the training process.
        persistent_workers: Keep the training workers from epoch to epoch. Validation workers always end.
        prefetch_factor: Batches each worker prepares ahead.
        start_method: How a worker starts. Never fork: a forked child stalls ROCm's queues and can inherit held locks.
        pin_memory: Copy batches into page-locked memory; null does so exactly when training on a GPU.
        timeout_s: Seconds to wait for a worker's batch before an error; 0 waits for ever (the stall detector does not).
    """

    workers: int = 4
    persistent_workers: bool = True
    prefetch_factor: int = 2
    start_method: Literal["spawn", "forkserver"] = "spawn"
    pin_memory: bool | None = None
    timeout_s: float = 0.0

    def __post_init__(self) -> None:
        for name, least in (("workers", 0), ("prefetch_factor", 1), ("timeout_s", 0)):
            if getattr(self, name) < least:
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
            arguments |= {
                "multiprocessing_context": self.start_method,
                "persistent_workers": persistent and self.persistent_workers,
                "prefetch_factor": self.prefetch_factor,
                "timeout": self.timeout_s,
                "worker_init_fn": prepare_worker,
            }
        return arguments


def prepare_worker(worker: int) -> None:
    """Keep a loader worker to its own core: OpenCV and torch would each start a thread per core otherwise."""
    cv2.setNumThreads(0)
    torch.set_num_threads(1)


def describe(arguments: dict[str, Any]) -> str:
    """Loader arguments in one line for the log."""
    shown = {name: value for name, value in arguments.items() if name != "worker_init_fn"}
    return ", ".join(f"{name} {value}" for name, value in shown.items())
