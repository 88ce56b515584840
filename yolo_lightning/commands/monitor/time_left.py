"""Estimated remaining time of a run from the recent durations of steps and validations. Pure functions."""

from datetime import datetime

from yolo_lightning.commands.monitor.run_state import Remaining
from yolo_lightning.supervision.heartbeat import Phase
from yolo_lightning.supervision.run_status import Status


def remaining(status: Status, epoch: int, batch: int, phase: Phase | None) -> Remaining:
    """Return the estimated remaining time from a position of the training loop.

    Args:
        status: Measurements of the training.
        epoch: Epoch, from 0.
        batch: Batches trained in the epoch.
        phase: Phase of the loop. After the last batch of an epoch, its validation follows.
    """
    if status.step_s is None or not status.batches_per_epoch:
        return Remaining()
    steps = max(0, status.batches_per_epoch - batch)
    is_validation_done = phase is Phase.EPOCH_END and steps == 0
    validations = 0 if is_validation_done else status.validations_left(epoch, steps)
    is_measured = status.validation_s is not None
    validation_s = status.validation_s or 0.0
    epoch_s = steps * status.step_s + validations * validation_s if is_measured or not validations else None
    if status.epochs is None:
        return Remaining(epoch_s)
    steps += max(0, status.epochs - epoch - 1) * status.batches_per_epoch
    validations += status.validations_after(epoch)
    run_s = steps * status.step_s + validations * validation_s
    return Remaining(epoch_s, run_s, unmeasured_validations=0 if is_measured else validations)


def parse_deadline(text: str) -> datetime:
    """Return a date and time with time zone; a date alone means the end of that day, the default zone is local.

    Raises:
        ValueError: If `text` is not in ISO format.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"--deadline must be YYYY-MM-DD or YYYY-MM-DDTHH:MM, got {text!r}.") from error
    if len(text) == len("YYYY-MM-DD"):
        moment = moment.replace(hour=23, minute=59, second=59)
    return moment.astimezone()
