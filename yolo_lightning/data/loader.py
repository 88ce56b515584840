"""Settings of the loader's worker processes, explained in docs/loader.md, and the loader of an evaluation.

Imported by workers, so imports are few.
"""

from collections.abc import Iterator
from typing import Any, Literal, TypeVar

import cv2
from torch.utils.data import DataLoader

from yolo_lightning.data.worker_processes import ForkServingContext, SpawningContext
from yolo_lightning.utils.activity import Activity, during, loading
from yolo_lightning.utils.choices import AUTO, check_range, settings_group
from yolo_lightning.utils.host import worker_count

T = TypeVar("T")
NumWorkers = int | Literal["auto"]


@settings_group("data.loader")
class LoaderSettings:
    """Settings of the loader's worker processes.

    Attributes:
        num_workers: Number of processes that prepare batches; with 0, the training process prepares them. `auto` is the
            number of available cores, at most 4.
        persistent_workers: Keep the training workers between epochs, which saves their start-up (2 s and more). If
            false, no worker idles during a validation, where the death of a worker would go unnoticed. Validation
            workers always end with the validation.
        prefetch_factor: Number of batches that each worker prepares in advance.
        multiprocessing_context: How workers start. `spawn` starts a new interpreter; `forkserver` forks a process that
            was spawned once and has imported torch. Neither inherits the state of the GPU. `fork` is not available,
            because it stalls ROCm's queues and can inherit held locks.
        pin_memory: Copy batches into page-locked memory; null does so if training runs on a GPU. Otherwise ROCm pins
            each pageable batch in place and stops the GPU's queues when the batch is unmapped.
    """

    num_workers: NumWorkers = AUTO
    persistent_workers: bool = True
    prefetch_factor: int = 2
    multiprocessing_context: Literal["spawn", "forkserver"] = "spawn"
    pin_memory: bool | None = None

    def __post_init__(self) -> None:
        if self.num_workers != AUTO:
            check_range("data.loader.num_workers", self.num_workers, ">= 0", "<= 1024")
        check_range("data.loader.prefetch_factor", self.prefetch_factor, ">= 1")

    def arguments(self, *, on_gpu: bool, persistent: bool) -> dict[str, Any]:
        """Return the arguments of `DataLoader`; `persistent` is False for evaluation."""
        num_workers = worker_count(self.num_workers)
        arguments: dict[str, Any] = {
            "num_workers": num_workers,
            "pin_memory": on_gpu if self.pin_memory is None else self.pin_memory,
        }
        if num_workers:
            context = SpawningContext if self.multiprocessing_context == "spawn" else ForkServingContext
            arguments |= {
                "multiprocessing_context": context(),
                "persistent_workers": persistent and self.persistent_workers,
                "prefetch_factor": self.prefetch_factor,
                "worker_init_fn": prepare_worker,
            }
        return arguments


class EvaluationLoader(DataLoader[T]):
    """DataLoader that reports the wait for a batch as the activity of the process."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        with during(Activity.LOAD):  # the start of the workers
            batches = super().__iter__()
        return loading(batches)


def prepare_worker(worker: int) -> None:
    """Disable the threads of OpenCV in a worker. The environment limits those of OpenMP and BLAS."""
    cv2.setNumThreads(0)


def describe(arguments: dict[str, Any]) -> str:
    pinned = "pinned" if arguments["pin_memory"] else "not pinned"
    if not arguments["num_workers"]:
        return f"no workers, {pinned}"
    number = arguments["num_workers"]
    workers = "worker" if number == 1 else "workers"
    lifetime = "persistent" if arguments["persistent_workers"] else "new every epoch"
    return (
        f"{number} {arguments['multiprocessing_context'].get_start_method()} {workers}, {lifetime}, prefetch "
        f"{arguments['prefetch_factor']}, {pinned}"
    )
