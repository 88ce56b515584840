"""Arguments of the loaders, the loader of an evaluation, and the preparation of a worker process.

Imported by workers, so imports are few.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TypeVar

import cv2
from torch.utils.data import DataLoader

from yolo_lightning.data.loader_settings import LoaderSettings
from yolo_lightning.data.worker_processes import ForkServingContext, SpawningContext
from yolo_lightning.utils.activity import Activity, during, loading
from yolo_lightning.utils.choices import AUTO
from yolo_lightning.utils.host import worker_count

T = TypeVar("T")

VALUES_WITHOUT_WORKERS = 200_000_000
"""Pixel values (pixels times channels) of an evaluation that one process reads faster than new workers start.

A process decodes and letterboxes this many in about 2.5 s (JPEG files of HIT-UAV, 8 to 13 ms per million); two or
more workers start in 2.5 to 6 s (docs/loader.md).
"""


class EvaluationLoader(DataLoader[T]):
    """DataLoader that reports the wait for a batch as the activity of the process."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        with during(Activity.LOAD):  # the start of the workers
            batches = super().__iter__()
        return loading(batches)


def evaluation_settings(settings: LoaderSettings, values: int) -> LoaderSettings:
    """Return the settings for an evaluation of `values` pixel values: `auto` means no workers for few values."""
    if settings.num_workers == AUTO and values <= VALUES_WITHOUT_WORKERS:
        return replace(settings, num_workers=0)
    return settings


def loader_arguments(settings: LoaderSettings, *, on_gpu: bool, persistent: bool) -> dict[str, Any]:
    """Return the arguments of `DataLoader`; `persistent` is False for evaluation."""
    num_workers = worker_count(settings.num_workers)
    arguments: dict[str, Any] = {
        "num_workers": num_workers,
        "pin_memory": on_gpu if settings.pin_memory is None else settings.pin_memory,
    }
    if num_workers:
        context = SpawningContext if settings.multiprocessing_context == "spawn" else ForkServingContext
        arguments |= {
            "multiprocessing_context": context(),
            "persistent_workers": persistent and settings.persistent_workers,
            "prefetch_factor": settings.prefetch_factor,
            "worker_init_fn": prepare_worker,
        }
    return arguments


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
