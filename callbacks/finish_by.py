"""Callback that plans the length of a fit so that it ends shortly before a deadline."""

import math
import os
import time
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from yolo_lightning.callbacks.status_file import BLOCK_STEPS, BLOCKS, FitTimer, fit_plan, is_validation_of_fit
from yolo_lightning.errors import UserError
from yolo_lightning.supervision import is_supervised
from yolo_lightning.training.deadline import Measured, TrainingPlan, end_of, replan
from yolo_lightning.utils.choices import checked_arguments
from yolo_lightning.utils.json_record import converted
from yolo_lightning.utils.loop_position import end_epoch_after, is_last_epoch, schedule_position, schedule_step
from yolo_lightning.utils.moment import is_moment, moment, parse_moment
from yolo_lightning.utils.process_identity import started_s
from yolo_lightning.utils.wall_clock import WallClock

CHECK_STEPS = BLOCK_STEPS
"""Steps between two checks of the plan within an epoch."""

REST_PER_PACE = 8
"""The pace is that of the newest steps, as many as the planned rest divided by this number."""
FEWEST_BLOCKS = 3

LONGEST_STEP = 10.0
"""Duration of a step, as a multiple of the typical one, above which the rest counts as lost time."""

PRINTED_CHANGE = 0.05
"""Smallest relative change of the planned number of steps that is printed."""


class FinishBy(FitTimer):
    """Ends a fit shortly before a deadline, with the last learning rate, a validation and all checkpoints.

    `trainer.max_epochs` is the length of the fit until steps have been timed. Then the rest is planned in steps, so
    that the last epoch can be partial. The plan is checked every `CHECK_STEPS` steps, at the end of each epoch and
    after each restart. Checkpoints contain the plan, and `YOLOModule.plan` determines the learning rate.

    Args:
        finish_by: Deadline as YYYY-MM-DDTHH:MM, local time or with zone.
        max_hours: Hours from the first start of the run to the deadline, > 0; restarts do not change the deadline.
        reserved_evaluations: Time that is reserved for work after the fit, as a multiple of the time of a validation.
    """

    @checked_arguments(max_hours="> 0, <= 1000000", reserved_evaluations=">= 0")
    def __init__(
        self, finish_by: str | None = None, max_hours: float | None = None, reserved_evaluations: int = 1
    ) -> None:
        super().__init__()
        if (finish_by is None) == (max_hours is None):
            raise UserError(f"either finish_by or max_hours must be set, got {finish_by!r} and {max_hours}")
        self._moment = None if finish_by is None else parse_moment("finish_by", finish_by)
        self._text = finish_by
        self._hours, self._reserved = max_hours, reserved_evaluations
        self._clock = WallClock()
        self.plan: TrainingPlan | None = None
        self._step_s: float | None = None
        self._epoch_end_s = self._progress_s = 0.0
        self._epoch_has_ended = False
        self._printed_steps = 0
        self._val_check_batch: int | float | None = None

    def state_dict(self) -> dict[str, Any]:
        plan = None if self.plan is None else asdict(self.plan)
        durations = {"step_s": self._step_s, "epoch_end_s": self._epoch_end_s, "progress_s": self._progress_s}
        return (
            super().state_dict()
            | durations
            | {"plan": plan, "deadline_text": self._text, "clock": self._clock.state_dict()}
        )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._step_s, self._epoch_end_s = state_dict["step_s"], state_dict["epoch_end_s"]
        self._progress_s = state_dict["progress_s"]
        self.plan = None if state_dict["plan"] is None else saved_plan(state_dict["plan"])
        self._clock.load_state_dict(state_dict["clock"])
        if self.plan is not None and self._text is not None and self._text == state_dict["deadline_text"]:
            # The zone in which the text was first read remains, whatever the zone of this process is.
            self._moment = datetime.fromtimestamp(self.plan.deadline_s, UTC)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Use the plan of the checkpoint; another deadline replaces its schedule."""
        if self.plan is None:
            return
        epochs, deadline_s = self.plan.epochs, self._deadline_s(self.plan.began_s)
        if deadline_s != self.plan.deadline_s:
            epochs += deadline_s > self.plan.deadline_s  # a finished fit continues
            self.plan = replace(self.plan, deadline_s=deadline_s, since_step=0, since_progress=0.0)
        trainer.fit_loop.max_epochs = epochs
        setattr(pl_module, "plan", self.plan)  # noqa: B010 - any LightningModule

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        per_epoch = int(trainer.num_training_batches)
        if self.plan is None:
            assert trainer.max_epochs is not None
            began_s = trainer.strategy.broadcast(started_s(os.getppid() if is_supervised() else os.getpid()))
            self.plan = TrainingPlan(trainer.max_epochs * per_epoch, per_epoch, began_s, self._deadline_s(began_s))
        elif self.plan.steps_per_epoch != per_epoch:
            self.plan = self.plan.resized(per_epoch)
        self._check(trainer, pl_module, schedule_position(trainer))

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._epoch_has_ended:
            self._epoch_end_s, self._epoch_has_ended = time.monotonic() - self._waiting_since_s, False
            self._progress_s += self._epoch_end_s
        super().on_train_epoch_start(trainer, pl_module)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Set the end of the epoch, and let a validation follow the last batch of a partial epoch."""
        super().on_train_batch_start(trainer, pl_module, batch, batch_idx)
        self._limit_epoch(trainer)
        is_partial = trainer.is_last_batch and batch_idx + 1 < trainer.num_training_batches
        if is_partial and trainer.val_check_batch is not None:
            self._val_check_batch, trainer.val_check_batch = trainer.val_check_batch, 1

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        typical = self.pace.typical()
        longest_s = LONGEST_STEP * (typical[0] if typical is not None else self._step_s or math.inf)
        self._progress_s += min(time.monotonic() - self._waiting_since_s, longest_s)
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        if (batch_idx + 1) % CHECK_STEPS == 0 and not trainer.is_last_batch:
            self._check(trainer, pl_module, schedule_step(trainer, batch_idx + 1))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_validation_end(trainer, pl_module)
        if is_validation_of_fit(trainer):
            self._progress_s += self.validation_s or 0.0

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._epoch_has_ended = True
        if not is_last_epoch(trainer):
            self._check(trainer, pl_module, schedule_step(trainer, int(trainer.num_training_batches)))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._val_check_batch is not None:
            trainer.val_check_batch, self._val_check_batch = self._val_check_batch, None

    def _deadline_s(self, began_s: float) -> float:
        return began_s + 3600 * (self._hours or 0.0) if self._moment is None else self._moment.timestamp()

    def _check(self, trainer: Trainer, pl_module: LightningModule, step: int) -> None:
        """Plan the rest again after `step` steps if a step has been timed; the first rank decides."""
        assert self.plan is not None
        rest = (self.plan.steps - step) // (REST_PER_PACE * BLOCK_STEPS)
        typical = self.pace.typical(newest=max(FEWEST_BLOCKS, min(rest, BLOCKS)))
        if typical is not None and (self._step_s is None or self.pace.timed_steps >= BLOCK_STEPS):
            self._step_s = typical[0]
        before = self.plan
        if self._step_s is not None:
            measured = self._measured(trainer, before, step)
            self.plan = trainer.strategy.broadcast(replan(before, measured))
            if abs(self.plan.steps - self._printed_steps) > PRINTED_CHANGE * self._printed_steps:
                self._printed_steps = self.plan.steps
                rank_zero_info(describe(self.plan, end_of(self.plan, measured, self.plan.steps)))
            if self.plan.problem and not before.problem:
                rank_zero_warn(f"the deadline cannot be met: {self.plan.problem}")
        setattr(pl_module, "plan", self.plan)  # noqa: B010 - any LightningModule
        trainer.fit_loop.max_epochs = self.plan.epochs
        self._limit_epoch(trainer)

    def _measured(self, trainer: Trainer, plan: TrainingPlan, step: int) -> Measured:
        assert self._step_s is not None
        validation_s, fit, now_s = self.validation_s, fit_plan(trainer), self._clock.now_s()
        if validation_s is None:
            batches = (
                [one for one in trainer.num_val_batches if math.isfinite(one)] if trainer.enable_validation else []
            )
            validation_s = sum(batches) * self._step_s
        per_epoch = fit.validations_per_epoch / (fit.validate_every_epochs or math.inf)
        return Measured(
            now_s=now_s,
            step=step,
            step_s=self._step_s,
            epoch_s=validation_s * per_epoch + self._epoch_end_s,
            closing_s=validation_s * (1 + self._reserved) + self._epoch_end_s,
            lost_s=now_s - plan.began_s - self._progress_s,
            smallest_step=step + (1 if step % plan.steps_per_epoch or plan.steps_per_epoch == 1 else 2),
        )

    def _limit_epoch(self, trainer: Trainer) -> None:
        assert self.plan is not None
        end_epoch_after(trainer, self.plan.last_epoch_steps if is_last_epoch(trainer) else self.plan.steps_per_epoch)


def saved_plan(state: Any) -> TrainingPlan:
    """Return the plan in the state of a checkpoint; raise a UserError if someone has changed its values."""
    try:
        plan: TrainingPlan = converted(state, TrainingPlan)
    except ValueError as error:
        raise UserError(
            f"the plan of FinishBy in the checkpoint cannot be used: {error}; use another checkpoint"
        ) from error
    is_usable = plan.steps >= 1 and plan.steps_per_epoch >= 1 and plan.since_step >= 0 and 0 <= plan.since_progress <= 1
    if not is_usable or not is_moment(plan.began_s) or not is_moment(plan.deadline_s):
        raise UserError(f"the plan of FinishBy in the checkpoint is impossible: {plan}; use another checkpoint")
    return plan


def describe(plan: TrainingPlan, end_s: float) -> str:
    deadline, end = (moment(one, time.time()) for one in (plan.deadline_s, end_s))
    epochs = f"{plan.steps / plan.steps_per_epoch:.2f} epochs"
    return f"deadline {deadline}: planned {plan.steps:,} steps ({epochs}), ends about {end}"
