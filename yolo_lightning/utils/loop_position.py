"""Where a fit stands. Only this file knows how to ask the Trainer.

Two numbers answer two questions, and agree as long as every epoch has as many batches as the others. When a run is
resumed with another batch size, the count goes on and the place is found anew.
"""

from lightning.pytorch import Trainer


def steps_begun(trainer: Trainer) -> int:
    """Batches begun since training began, over all restarts: the one at hand counts. It never falls.

    The number that checkpoints, metrics rows and the heartbeat bear.
    """
    return int(trainer.fit_loop.total_batch_idx) + 1


def is_last_epoch(trainer: Trainer) -> bool:
    """Whether the current epoch is the last that the fit will train."""
    return trainer.max_epochs is not None and trainer.current_epoch == trainer.max_epochs - 1


def epochs_trained(trainer: Trainer) -> int:
    """Return the number of epochs whose batches have all been trained.

    After a checkpoint saved at the end of an epoch is restored, `trainer.current_epoch` is still that epoch.
    """
    return int(trainer.fit_loop.epoch_progress.current.processed)  # type: ignore[attr-defined]


def recount(trainer: Trainer, batches: int) -> None:
    """Let the Trainer take `batches` for those done in the epoch that it resumes; the count since the start stays.

    With another batch size, the rest of an epoch is another number of batches, and the Trainer, which knows an epoch
    by its number of them, must not end it early or late.
    """
    progress = trainer.fit_loop.epoch_loop.batch_progress.current
    shift = batches - progress.processed  # type: ignore[attr-defined]
    for name in ("ready", "started", "processed", "completed"):
        setattr(progress, name, getattr(progress, name) + shift)


def place_in_schedule(trainer: Trainer, batches: int) -> int:
    """Batches from the beginning to after `batches` of the current epoch, had all epochs been as long as this one.

    What the schedules follow, which count in epochs.
    """
    return trainer.current_epoch * int(trainer.num_training_batches) + batches
