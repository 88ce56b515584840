"""What training says about itself every few seconds: rates, losses, scores, and where it stands. Standard library only.

The progress record tells at any moment what the loop does; this file beside it holds what takes longer to say.
"""

import json
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from yolo_lightning.utils.files import TEMPORARY_PREFIX

STATUS_FILE = "status.json"


@dataclass(frozen=True, slots=True)
class Scores:
    """What one validation found.

    Attributes:
        epoch: From 0.
        values: By logged name; null where a value is not finite.
    """

    epoch: int
    values: dict[str, float | None]


@dataclass(frozen=True, slots=True)
class Status:
    """One state of the file.

    Attributes:
        written_s: Wall clock, seconds since 1970.
        interval_s: Seconds between two writings, at least.
        process: Id of the trainer.
        process_started_ticks: When it was started, clock ticks since boot; tells it from a later one of the same id.
        host: Its machine.
        device: What it computes on, as torch names it.
        workers: Loader workers of the training.
        epoch: From 0.
        epochs: To be trained in all; None for no end.
        batch: Batches trained in this epoch.
        batches_per_epoch: Batches of one epoch.
        step: Batches trained since training began, over all restarts.
        step_s: Seconds that a step takes lately, the wait for its batch included; None until measured.
        fetch_share: Share of that spent waiting for the batch, 0 to 1; None until measured.
        trained_s: Seconds of training over all restarts, validations and checkpoints included.
        validation_s: Seconds that a validation takes; None until measured.
        validate_every_epochs: A validation comes after every so many epochs, and after the last; None for none.
        validations_per_epoch: Validations within such an epoch.
        losses: The last step's, by logged name; null where one is not finite.
        learning_rates: By logged name.
        scores: Of the last validations, oldest first.
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
        """Names of the losses that are infinite or no number."""
        return [name for name, value in self.losses.items() if value is None]


@dataclass(frozen=True, slots=True)
class FitPlan:
    """Length of a fit, and when it validates; attributes as in `Status`."""

    epochs: int | None
    batches_per_epoch: int
    validate_every_epochs: int | None
    validations_per_epoch: int


def validations_left(plan: Status | FitPlan, epoch: int, steps: int) -> int:
    """Return the number of validations to come in `epoch`, `steps` steps before its end; one that goes on counts."""
    if not is_validated(plan, epoch):
        return 0
    between = max(1, plan.batches_per_epoch // plan.validations_per_epoch)
    return max(1, -(-steps // between)) if plan.validations_per_epoch > 1 else 1


def validations_after(plan: Status | FitPlan, epoch: int) -> int:
    """Return the number of validations in the epochs after `epoch`; 0 for a fit without end."""
    later = range(epoch + 1, plan.epochs or 0)
    return plan.validations_per_epoch * sum(is_validated(plan, number) for number in later)


def is_validated(plan: Status | FitPlan, epoch: int) -> bool:
    """Return whether there are validations in an epoch."""
    every = plan.validate_every_epochs
    return every is not None and ((epoch + 1) % every == 0 or epoch + 1 == plan.epochs)


def write_status(status: Status, path: Path) -> None:
    """Put a whole file in the place of the one before.

    It is not flushed to the disk: a busy disk must not hold up training, and a power cut leaves nothing to look at.

    Raises:
        OSError: If it cannot be written; the one before stays.
    """
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{os.getpid()}-{path.name}.part")
    try:
        temporary.write_text(json.dumps(asdict(status), allow_nan=False) + "\n")
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_status(path: Path) -> Status | None:
    """The file's content; None if there is none, or none that can be understood."""
    try:
        content = json.loads(path.read_text())
        content["scores"] = tuple(Scores(**one) for one in content["scores"])
        return Status(**{field.name: content[field.name] for field in fields(Status)})
    except (OSError, ValueError, TypeError, KeyError):
        return None
