"""Status files of a run: `status.json`, written by training every few seconds, and `supervisor.json`; remaining time.

The heartbeat file contains the current phase; `status.json` contains values that take longer to compute.
"""

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path

from yolo_lightning.supervision.heartbeat import Phase
from yolo_lightning.supervision.watches import WatchFinding
from yolo_lightning.utils.files import write_json
from yolo_lightning.utils.json_record import read_record
from yolo_lightning.utils.moment import is_moment


@dataclass(frozen=True, slots=True)
class Scores:
    """Result of one validation."""

    epoch: int  # from 0
    values: dict[str, float | None]  # by logged name; None if not finite


@dataclass(frozen=True, slots=True)
class FitLength:
    """Length and validations of a fit."""

    epochs: int | None  # to train in total; None without a limit
    batches_per_epoch: int
    validate_every_epochs: int | None  # epochs between validations; the last epoch is always validated; None for none
    validations_per_epoch: int  # within a validated epoch
    last_epoch_batches: int | None = field(default=None, kw_only=True)  # of a partial last epoch; None if it is whole

    def batches_of(self, epoch: int) -> int:
        if self.last_epoch_batches is not None and epoch + 1 == self.epochs:
            return self.last_epoch_batches
        return self.batches_per_epoch

    def validations_left(self, epoch: int, steps: int) -> int:
        """Return the number of validations left in `epoch`, a running one included, `steps` steps before its end."""
        if not self.is_validated(epoch):
            return 0
        if self.validations_per_epoch <= 1:
            return 1
        between = max(1, self.batches_per_epoch // self.validations_per_epoch)
        return max(1, -(-steps // between))

    def steps_after(self, epoch: int) -> int:
        """Return the number of steps in the epochs after `epoch`; 0 for a fit without a limit."""
        epochs = (self.epochs or 0) - epoch - 1
        if epochs <= 0:
            return 0
        return (epochs - 1) * self.batches_per_epoch + self.batches_of(epoch + epochs)

    def validations_after(self, epoch: int) -> int:
        """Return the number of validations in the epochs after `epoch`; 0 for a fit without a limit."""
        next_epoch = epoch + 1
        end = self.epochs or 0
        every = self.validate_every_epochs
        if not every or next_epoch >= end:
            return 0
        # Not by counting: a damaged file can contain any number of epochs.
        validated = -(-end // every) - next_epoch // every
        return self.validations_per_epoch * validated

    def is_validated(self, epoch: int) -> bool:
        every = self.validate_every_epochs
        return every is not None and ((epoch + 1) % every == 0 or epoch + 1 == self.epochs)


@dataclass(frozen=True, slots=True)
class Remaining:
    """Estimated remaining time; None if unknown."""

    epoch_s: float | None = None  # until the end of the epoch with its validation
    run_s: float | None = None  # until the end of training with all validations that can be estimated
    unmeasured_validations: int = 0  # validations missing in `run_s`, because none has been timed yet


def remaining(
    length: FitLength,
    step_s: float | None,
    validation_s: float | None,
    epoch: int,
    batch: int,
    phase: Phase | None = None,
) -> Remaining:
    """Return the estimated remaining time of a fit after `batch` batches of `epoch`, from 0.

    After the last batch of an epoch, the validation of the epoch has ended only if the phase is `EPOCH_END`.

    Args:
        length: Length of the fit.
        step_s: Measured seconds per step; None until measured.
        validation_s: Measured seconds per validation; None until measured.
        epoch: Epoch of the fit.
        batch: Batches trained in the epoch.
        phase: Phase of the fit, if known.
    """
    if step_s is None or not length.batches_per_epoch:
        return Remaining()
    steps = max(0, length.batches_of(epoch) - batch)
    is_validation_done = phase is Phase.EPOCH_END and steps == 0
    validations = 0 if is_validation_done else length.validations_left(epoch, steps)
    is_measured = validation_s is not None
    validation_s = validation_s or 0.0
    epoch_s = steps * step_s + validations * validation_s if is_measured or not validations else None
    if length.epochs is None:
        return Remaining(epoch_s)
    steps += length.steps_after(epoch)
    validations += length.validations_after(epoch)
    run_s = steps * step_s + validations * validation_s
    return Remaining(epoch_s, run_s, unmeasured_validations=0 if is_measured else validations)


@dataclass(frozen=True, slots=True)
class Status(FitLength):
    """Content of the status file."""

    written_s: float  # wall clock, seconds since 1970
    interval_s: float  # minimum seconds between two writes
    process: int  # id of the trainer
    process_started_ticks: int  # clock ticks since boot; identifies the process together with its id
    host: str
    device: str  # name of the device in torch
    workers: int  # number of loader workers
    epoch: int  # from 0
    batch: int  # batches trained in this epoch
    step: int  # batches trained since training began, over all restarts
    step_s: float | None  # recent seconds per step, with the wait for the batch; None until measured
    fetch_share: float | None  # share of `step_s` spent waiting for the batch, 0 to 1; None until measured
    trained_s: float  # seconds of training over all restarts, with validations and checkpoints
    validation_s: float | None  # seconds per validation; None until measured
    losses: dict[str, float | None]  # of the last step, by logged name; None if not finite
    learning_rates: dict[str, float | None]  # by logged name
    scores: tuple[Scores, ...]  # of the last validations, oldest first
    best_map_50: float | None  # best mAP at IoU 0.5 so far; None before the first validation
    findings: tuple[WatchFinding, ...] = ()  # of the watches, ended ones included
    deadline_s: float | None = None  # seconds since 1970; None without a deadline
    deadline_problem: str = ""  # why the deadline cannot be met; empty if it can
    is_planned: bool = True  # whether the length of the training follows the deadline

    def not_finite(self) -> list[str]:
        return [name for name, value in self.losses.items() if value is None]


def write_status(status: Status, path: Path) -> None:
    """Replace the status file atomically, without fsync: a busy disk must not delay training."""
    write_json(path, asdict(status), indent=None, allow_nan=False, durable=False)


def read_status(path: Path) -> Status | None:
    """Return the content of a status file, or None if it is missing or damaged."""
    status = read_record(path, Status)
    if status is None or status.validations_per_epoch < 1 or min(status.epoch, status.batch, status.step) < 0:
        return None
    moments = [status.written_s, status.deadline_s]
    for finding in status.findings:
        moments += [finding.since_s, finding.until_s]
    if not all(is_moment(time_s) for time_s in moments if time_s is not None):
        return None
    every = status.validate_every_epochs
    if every is not None and every < 1:
        return None
    return status


def buffer_s(status: Status, left: Remaining, now_s: float) -> float | None:
    """Return the seconds from the estimated end of a run to its deadline, negative if late; None if unknown."""
    if status.deadline_s is None or left.run_s is None or left.unmeasured_validations:
        return None
    return status.deadline_s - now_s - left.run_s


class SupervisorState(StrEnum):
    """State of a running supervisor, or the way in which it ended."""

    RUNNING = "running"
    STALLED = "stalled"
    RESTARTING = "restarting"
    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    GAVE_UP = "gave up"
    NEEDS_REBOOT = "needs reboot"


@dataclass(frozen=True, slots=True)
class SupervisorStatus:
    """Content of `supervisor.json`, which is rewritten when the state changes."""

    state: SupervisorState
    since_s: float  # start of the state, seconds since 1970
    process: int  # process id of the supervisor
    process_started_ticks: int  # start of that process, clock ticks since boot
    host: str  # host name of the supervisor
    sentence: str = ""  # reason for the state; empty while training makes progress
    attempt: int = 1  # number of the attempt since the last checkpoint, from 1
    restarts: int = 0  # since the run began
    fallback_level: str = ""
    trainer: int = 0  # process id of the trainer; 0 if none runs

    @classmethod
    def read(cls, path: Path) -> "SupervisorStatus | None":
        status = read_record(path, cls)
        if status is None or not is_moment(status.since_s):
            return None
        return status
