"""How long a run still takes: steps and validations to come, each with what it has taken lately."""

from datetime import datetime

from yolo_lightning.commands.monitor.run_state import Remaining
from yolo_lightning.supervision.heartbeat import Phase
from yolo_lightning.supervision.run_status import Status, validations_after, validations_left


def remaining(status: Status, epoch: int, batch: int, phase: Phase | None) -> Remaining:
    """What is left, from the place that the loop has reached.

    Args:
        status: What training has measured.
        epoch: From 0.
        batch: Batches trained in it.
        phase: What the loop does; what comes after an epoch's last batch begins with its validation.
    """
    if status.step_s is None or not status.batches_per_epoch:
        return Remaining()
    steps = max(0, status.batches_per_epoch - batch)
    ends_epoch = phase is Phase.EPOCH_END and steps == 0  # its validation is done
    here = 0 if ends_epoch else validations_left(status, epoch, steps)
    epoch_s = steps * status.step_s + here * (status.validation_s or 0.0)
    if status.epochs is None:
        return Remaining(epoch_s if here == 0 or status.validation_s is not None else None)
    validations = here + validations_after(status, epoch)
    later_steps = max(0, status.epochs - epoch - 1) * status.batches_per_epoch
    run_s = (steps + later_steps) * status.step_s + validations * (status.validation_s or 0.0)
    return Remaining(
        epoch_s=epoch_s if here == 0 or status.validation_s is not None else None,
        run_s=run_s,
        unmeasured_validations=0 if status.validation_s is not None else validations,
    )


def parse_deadline(text: str) -> datetime:
    """A date, or a date and a time; a date alone means its end, a time without zone the local one.

    Raises:
        ValueError: If it is neither.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"deadline is {text!r}, allowed are YYYY-MM-DD and YYYY-MM-DDTHH:MM") from error
    if len(text) == len("YYYY-MM-DD"):
        moment = moment.replace(hour=23, minute=59, second=59)
    return moment.astimezone()
