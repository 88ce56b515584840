"""Callback that sets the length of a fit so that it ends shortly before a deadline."""

import math
import os
import time
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from yolo_lightning.callbacks.fit_timer import BLOCK_STEPS, BLOCKS, FitTimer, TimedCallback
from yolo_lightning.errors import UserError
from yolo_lightning.supervision.run_status import FitLength
from yolo_lightning.supervision.trainer import is_supervised
from yolo_lightning.training.deadline import MAX_HOURS_LIMITS, DeadlineSchedule, Measured, end_of, rescheduled
from yolo_lightning.utils.activity import Activity, during
from yolo_lightning.utils.choices import check_state, checked_arguments
from yolo_lightning.utils.json_record import converted
from yolo_lightning.utils.loop_position import (
    batches_per_epoch,
    begins_anew,
    end_epoch_after,
    is_last_epoch,
    is_validation_of_fit,
    require_epoch_length,
    schedule_position,
    schedule_step,
    steps_begun,
    validate_after_batch,
    validation_interval_s,
)
from yolo_lightning.utils.moment import is_moment, moment, parse_moment
from yolo_lightning.utils.process_identity import started_s
from yolo_lightning.utils.trainer_callbacks import callbacks_of
from yolo_lightning.utils.wall_clock import WallClock

CHECK_STEPS = BLOCK_STEPS
"""Steps between two checks of the schedule within an epoch."""

REST_PER_PACE = 8
"""The pace is that of the newest steps, as many as the rest of the training divided by this number."""
FEWEST_BLOCKS = 3

LONGEST_STEP = 10.0
"""Duration of a step, as a multiple of the typical one, above which the rest counts as lost time."""

PRINTED_CHANGE = 0.05
"""Smallest relative change of the number of steps that is printed."""

CLOSING_VALIDATIONS = 2
"""Validations for which time is reserved after the last step: the last one, and as much for a test afterwards."""


class FinishBy(TimedCallback):
    """Ends a fit shortly before a deadline, with the last learning rate, a validation and all checkpoints.

    `trainer.max_epochs` is the length of the fit until steps have been timed. Then the rest is scheduled in steps, so
    that the last epoch can be partial. The schedule is checked every `CHECK_STEPS` steps, at the end of each epoch and
    after each restart. Checkpoints contain the schedule, which determines the learning rate of `YOLOModule`.

    Args:
        finish_by: Deadline as YYYY-MM-DDTHH:MM, local time or with zone.
        max_hours: Hours from the first start of the run to the deadline, > 0; restarts do not change the deadline.
    """

    @checked_arguments(max_hours=MAX_HOURS_LIMITS)
    def __init__(self, finish_by: str | None = None, max_hours: float | None = None) -> None:
        super().__init__()
        if (finish_by is None) == (max_hours is None):
            raise UserError(f"either finish_by or max_hours must be set, got {finish_by!r} and {max_hours}")
        self.schedule: DeadlineSchedule | None = None
        """Schedule of this fit; None before the first step, without a checkpoint."""
        self._moment = None if finish_by is None else parse_moment("finish_by", finish_by)
        self._deadline_text = finish_by
        self._configured_moment = self._moment
        self._max_hours = max_hours
        self._clock = WallClock()
        self._step_s: float | None = None
        self._epoch_end_s = 0.0
        self._progress_s = 0.0
        self._longest_step_s = math.inf
        self._epoch_has_ended = False
        self._printed_steps = 0
        self._val_check_batch: int | float | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if begins_anew(trainer, stage):
            self.schedule = None
            self._moment = self._configured_moment
            self._step_s = None
            self._epoch_end_s = 0.0
            self._progress_s = 0.0
            self._epoch_has_ended = False
            self._printed_steps = 0

    def state_dict(self) -> dict[str, Any]:
        return {
            "step_s": self._step_s,
            "epoch_end_s": self._epoch_end_s,
            "progress_s": self._progress_s,
            "plan": None if self.schedule is None else asdict(self.schedule),
            "deadline_text": self._deadline_text,
            "clock": self._clock.state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        check_state(self, state_dict, self.state_dict())
        self._step_s = state_dict["step_s"]
        self._epoch_end_s = state_dict["epoch_end_s"]
        self._progress_s = state_dict["progress_s"]
        self._clock.load_state_dict(state_dict["clock"])
        if state_dict["plan"] is None:
            self.schedule = None
            return
        self.schedule = saved_schedule(state_dict["plan"])
        if self._deadline_text is not None and self._deadline_text == state_dict["deadline_text"]:
            # The zone in which the text was first read remains, whatever the zone of this process is.
            self._moment = datetime.fromtimestamp(self.schedule.deadline_s, UTC)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Use the schedule of the checkpoint; with another deadline, its learning rate is scheduled again."""
        if self.schedule is None:
            return
        epochs = self.schedule.epochs
        deadline_s = self._deadline_s(self.schedule.began_s)
        if deadline_s > self.schedule.deadline_s:
            epochs += 1  # a finished fit continues
        if deadline_s != self.schedule.deadline_s:
            self.schedule = replace(self.schedule, deadline_s=deadline_s, since_step=0, since_progress=0.0)
        trainer.fit_loop.max_epochs = epochs

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        per_epoch = require_epoch_length(trainer, "finish_by and max_hours need")
        if self.schedule is None:
            assert trainer.max_epochs is not None
            process = os.getppid() if is_supervised() else os.getpid()
            began_s = trainer.strategy.broadcast(started_s(process))
            deadline_s = self._deadline_s(began_s)
            self.schedule = DeadlineSchedule(trainer.max_epochs * per_epoch, per_epoch, began_s, deadline_s)
        elif self.schedule.steps_per_epoch != per_epoch:
            self.schedule = self.schedule.resized(per_epoch)
        self._check(trainer, schedule_position(trainer))

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._epoch_has_ended:
            self._epoch_has_ended = False
            self._epoch_end_s = self.timer.epoch_end_s
            self._progress_s += self._epoch_end_s

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Set the end of the epoch, and let a validation follow the last batch of the fit."""
        typical = self.timer.pace.typical()  # of the earlier steps
        typical_s = self._step_s or math.inf
        if typical is not None:
            typical_s = typical.step_s
        self._longest_step_s = LONGEST_STEP * typical_s
        self._limit_epoch(trainer)
        if trainer.is_last_batch and is_last_epoch(trainer):
            self._val_check_batch = validate_after_batch(trainer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._progress_s += min(self.timer.step_with_wait_s, self._longest_step_s)
        if (batch_idx + 1) % CHECK_STEPS == 0 and not trainer.is_last_batch:
            self._check(trainer, schedule_step(trainer, batch_idx + 1))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if is_validation_of_fit(trainer):
            self._progress_s += self.timer.validation_s or 0.0

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._epoch_has_ended = True
        if not is_last_epoch(trainer):
            self._check(trainer, schedule_step(trainer, int(trainer.num_training_batches)))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._val_check_batch is not None:
            trainer.val_check_batch = self._val_check_batch
            self._val_check_batch = None

    def _deadline_s(self, began_s: float) -> float:
        if self._moment is not None:
            return self._moment.timestamp()
        assert self._max_hours is not None
        return began_s + 3600 * self._max_hours

    def _check(self, trainer: Trainer, step: int) -> None:
        """Schedule the rest again after `step` steps if a step has been timed; the first rank decides."""
        assert self.schedule is not None
        pace = self.timer.pace
        rest_blocks = (self.schedule.steps - step) // (REST_PER_PACE * BLOCK_STEPS)
        typical = pace.typical(newest=max(FEWEST_BLOCKS, min(rest_blocks, BLOCKS)))
        if typical is not None and (self._step_s is None or pace.timed_steps >= BLOCK_STEPS):
            self._step_s = typical.step_s
        if self._step_s is not None:
            before = self.schedule
            measured = self._measured(trainer, before, step, self._step_s)
            with during(Activity.EXCHANGE):
                self.schedule = trainer.strategy.broadcast(rescheduled(before, measured))
            if abs(self.schedule.steps - self._printed_steps) > PRINTED_CHANGE * self._printed_steps:
                self._printed_steps = self.schedule.steps
                rank_zero_info(describe(self.schedule, end_of(self.schedule, measured, self.schedule.steps)))
            if self.schedule.problem and not before.problem:
                rank_zero_warn(f"the deadline cannot be met: {self.schedule.problem}")
        trainer.fit_loop.max_epochs = self.schedule.epochs
        self._limit_epoch(trainer)

    def _measured(self, trainer: Trainer, schedule: DeadlineSchedule, step: int, step_s: float) -> Measured:
        now_s = self._clock.now_s()
        validation_s = self.timer.validation_s
        if not trainer.enable_validation:
            validation_s = validation_s or 0.0
        if validation_s is None:  # a validation batch is assumed to take as long as a step
            validation_s = sum(count for count in trainer.num_val_batches if math.isfinite(count)) * step_s
        length = fit_length(trainer)
        per_epoch = length.validations_per_epoch / (length.validate_every_epochs or math.inf)
        can_end_at_once = step % schedule.steps_per_epoch > 0 or schedule.steps_per_epoch == 1
        return Measured(
            now_s=now_s,
            step=step,
            step_s=step_s,
            epoch_s=validation_s * per_epoch + self._epoch_end_s,
            closing_s=validation_s * CLOSING_VALIDATIONS + self._epoch_end_s,
            lost_s=now_s - schedule.began_s - self._progress_s,
            smallest_step=step + 1 if can_end_at_once else step + 2,
        )

    def _limit_epoch(self, trainer: Trainer) -> None:
        assert self.schedule is not None
        steps = self.schedule.steps_per_epoch
        if is_last_epoch(trainer):
            steps = self.schedule.last_epoch_steps
        end_epoch_after(trainer, steps)


def deadline_schedule(trainer: Trainer) -> DeadlineSchedule | None:
    """Return the schedule of the callback `FinishBy`; None without the callback."""
    for callback in callbacks_of(trainer, FinishBy):
        return callback.schedule
    return None


def fit_length(trainer: Trainer) -> FitLength:
    """Return the length of the fit and its validations from the configuration of the Trainer."""
    per_epoch = batches_per_epoch(trainer)
    schedule = deadline_schedule(trainer)
    has_limit = trainer.max_epochs is not None and trainer.max_epochs > 0
    between = trainer.val_check_batch or _batches_in(trainer, validation_interval_s(trainer)) or per_epoch
    validation_batches = max(1, int(min(between, per_epoch)))
    every = trainer.check_val_every_n_epoch or 1
    if 0 < per_epoch < between < math.inf:
        every = max(every, int(between // per_epoch))
    epochs = trainer.max_epochs if has_limit else None
    last_epoch_batches = None if schedule is None else schedule.last_epoch_steps
    batches = _batches_of_max_steps(trainer)
    if batches is not None and per_epoch and (epochs is None or batches < epochs * per_epoch):
        epochs = -(-batches // per_epoch)
        last_epoch_batches = batches - (epochs - 1) * per_epoch
    return FitLength(
        epochs=epochs,
        batches_per_epoch=per_epoch,
        validate_every_epochs=every if trainer.enable_validation else None,
        validations_per_epoch=max(1, per_epoch // validation_batches),
        last_epoch_batches=last_epoch_batches,
    )


def _batches_of_max_steps(trainer: Trainer) -> int | None:
    """Return the number of batches until `trainer.max_steps`, from those per optimizer step so far; None without it."""
    if trainer.max_steps < 1:
        return None
    per_step = float(trainer.accumulate_grad_batches)
    if trainer.global_step:
        per_step = steps_begun(trainer) / trainer.global_step
    return max(1, round(trainer.max_steps * per_step))


def _batches_in(trainer: Trainer, seconds: float | None) -> float | None:
    """Return how many batches are trained in a time; None if the time is None, or before a step has been timed."""
    for timer in callbacks_of(trainer, FitTimer):
        typical = timer.pace.typical()
        if seconds is not None and typical is not None:
            return seconds / typical.step_s
    return None


def saved_schedule(state: Any) -> DeadlineSchedule:
    """Return the schedule in the state of a checkpoint; raise a UserError if someone has changed its values."""
    try:
        schedule: DeadlineSchedule = converted(state, DeadlineSchedule)
    except ValueError as error:
        raise UserError(
            f"the plan of FinishBy in the checkpoint cannot be used: {error}; use another checkpoint"
        ) from error
    has_steps = schedule.steps >= 1 and schedule.steps_per_epoch >= 1 and schedule.since_step >= 0
    has_moments = is_moment(schedule.began_s) and is_moment(schedule.deadline_s)
    if not has_steps or not has_moments or not 0 <= schedule.since_progress <= 1:
        raise UserError(f"the plan of FinishBy in the checkpoint is impossible: {schedule}; use another checkpoint")
    return schedule


def describe(schedule: DeadlineSchedule, end_s: float) -> str:
    now_s = time.time()
    epochs = f"{schedule.steps / schedule.steps_per_epoch:.2f} epochs"
    return (
        f"deadline {moment(schedule.deadline_s, now_s)}: planned {schedule.steps:,} steps ({epochs}), "
        f"ends about {moment(end_s, now_s)}"
    )
