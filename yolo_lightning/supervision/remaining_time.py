"""Estimated remaining time of a run, from its status file."""

from dataclasses import dataclass

from yolo_lightning.supervision.heartbeat import Phase
from yolo_lightning.supervision.run_status import Status


@dataclass(frozen=True, slots=True)
class Remaining:
    """Estimated remaining time; None if unknown."""

    epoch_s: float | None = None  # until the end of the epoch with its validation
    run_s: float | None = None  # until the end of training with all validations that can be estimated
    unmeasured_validations: int = 0  # validations missing in `run_s`, because none has been timed yet


def remaining(status: Status, epoch: int, batch: int, phase: Phase | None) -> Remaining:
    """Return the estimated remaining time after `batch` batches of `epoch`, from 0, with the measurements in `status`.

    After the last batch of an epoch, the validation of the epoch has ended only if the phase is `EPOCH_END`.
    """
    if status.step_s is None or not status.batches_per_epoch:
        return Remaining()
    steps = max(0, status.batches_of(epoch) - batch)
    is_validation_done = phase is Phase.EPOCH_END and steps == 0
    validations = 0 if is_validation_done else status.validations_left(epoch, steps)
    is_measured = status.validation_s is not None
    validation_s = status.validation_s or 0.0
    epoch_s = steps * status.step_s + validations * validation_s if is_measured or not validations else None
    if status.epochs is None:
        return Remaining(epoch_s)
    steps += status.steps_after(epoch)
    validations += status.validations_after(epoch)
    run_s = steps * status.step_s + validations * validation_s
    return Remaining(epoch_s, run_s, unmeasured_validations=0 if is_measured else validations)


def buffer_s(status: Status, left: Remaining, now_s: float) -> float | None:
    """Return the seconds from the estimated end of a run to its deadline, negative if late; None if unknown."""
    if status.deadline_s is None or left.run_s is None or left.unmeasured_validations:
        return None
    return status.deadline_s - now_s - left.run_s
