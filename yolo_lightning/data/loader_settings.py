"""Settings of the loader's worker processes, explained in docs/loader.md."""

from typing import Literal

from yolo_lightning.utils.choices import AUTO, settings_group

NumWorkers = int | Literal["auto"]


@settings_group("data.loader", num_workers=">= 0, <= 1024", prefetch_factor=">= 1")
class LoaderSettings:
    """Settings of the loader's worker processes.

    Attributes:
        num_workers: Number of processes that prepare batches; with 0, the training process prepares them. `auto` is the
            number of available cores, at most 4, and 0 for the evaluation of a small split.
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
