"""Status file of a run: speed, losses, scores and position, written by training every few seconds.

The heartbeat file contains the current phase; the status file contains values that take longer to compute.
"""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from yolo_lightning.utils.files import replacing


@dataclass(frozen=True, slots=True)
class Scores:
    """Result of one validation."""

    epoch: int  # from 0
    values: dict[str, float | None]  # by logged name; None if not finite


@dataclass(frozen=True, slots=True)
class Status:
    """Content of the status file.

    Attributes:
        written_s: Wall clock, seconds since 1970.
        interval_s: Minimum seconds between two writes.
        process: Id of the trainer.
        process_started_ticks: Start time in clock ticks since boot; identifies the process together with its id.
        host: Host name of the machine.
        device: Name of the device in torch.
        workers: Number of loader workers.
        epoch: Epoch, from 0.
        epochs: Epochs to train in total; None without a limit.
        batch: Batches trained in this epoch.
        batches_per_epoch: Batches of one epoch.
        step: Batches trained since training began, over all restarts.
        step_s: Seconds per step, recently, with the wait for the batch; None until measured.
        fetch_share: Share of `step_s` spent waiting for the batch, 0 to 1; None until measured.
        trained_s: Seconds of training over all restarts, with validations and checkpoints.
        validation_s: Seconds per validation; None until measured.
        validate_every_epochs: Epochs between validations; the last epoch is always validated. None for no validation.
        validations_per_epoch: Validations within a validated epoch.
        losses: Losses of the last step by logged name; None if not finite.
        learning_rates: Learning rates by logged name.
        scores: Results of the last validations, oldest first.
        best_map_50: Best mAP at IoU 0.5 so far; None before the first validation.
    """

    written_s: float
    interval_s: float
    process: int
    process_started_ticks: int
    host: str
    device: str
    workers: int
    epoch: int
    epochs: int | None
    batch: int
    batches_per_epoch: int
    step: int
    step_s: float | None
    fetch_share: float | None
    trained_s: float
    validation_s: float | None
    validate_every_epochs: int | None
    validations_per_epoch: int
    losses: dict[str, float | None]
    learning_rates: dict[str, float | None]
    scores: tuple[Scores, ...]
    best_map_50: float | None

    def not_finite(self) -> list[str]:
        """Return the names of the losses that are infinite or NaN."""
        return [name for name, value in self.losses.items() if value is None]


@dataclass(frozen=True, slots=True)
class FitPlan:
    """Length and validations of a fit; attributes as in `Status`."""

    epochs: int | None
    batches_per_epoch: int
    validate_every_epochs: int | None
    validations_per_epoch: int


def validations_left(plan: Status | FitPlan, epoch: int, steps: int) -> int:
    """Return the number of validations left in `epoch`, a running one included, `steps` steps before its end."""
    if not is_validated(plan, epoch):
        return 0
    between = max(1, plan.batches_per_epoch // plan.validations_per_epoch)
    return max(1, -(-steps // between)) if plan.validations_per_epoch > 1 else 1


def validations_after(plan: Status | FitPlan, epoch: int) -> int:
    """Return the number of validations in the epochs after `epoch`; 0 for a fit without a limit."""
    later = range(epoch + 1, plan.epochs or 0)
    return plan.validations_per_epoch * sum(is_validated(plan, number) for number in later)


def is_validated(plan: Status | FitPlan, epoch: int) -> bool:
    """Return whether an epoch has validations."""
    every = plan.validate_every_epochs
    return every is not None and ((epoch + 1) % every == 0 or epoch + 1 == plan.epochs)


def write_status(status: Status, path: Path) -> None:
    """Replace the status file atomically, without fsync: a busy disk must not delay training.

    Raises:
        OSError: If the file cannot be written; the old file remains.
    """
    with replacing(path, durable=False) as temporary:
        temporary.write_text(json.dumps(asdict(status), allow_nan=False) + "\n")


def read_status(path: Path) -> Status | None:
    """Return the content of a status file, or None if it is missing or damaged."""
    try:
        content = json.loads(path.read_text())
        content["scores"] = tuple(Scores(**one) for one in content["scores"])
        return Status(**{field.name: content[field.name] for field in fields(Status)})
    except (OSError, ValueError, TypeError, KeyError):
        return None
