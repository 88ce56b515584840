"""Length of a training that ends shortly before a deadline, in steps; pure functions of measured times.

A schedule is kept while its predicted end is close enough to the deadline, so that a training that is killed and
resumed at once follows the same schedule. Otherwise the length of the rest is chosen again. The learning rate decreases
from its present value to its last value over the new rest, without a jump.
"""

from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import Self

MAX_HOURS_LIMITS = "> 0, <= 1000000"  # of `max_hours`

AIM = 0.01
"""Time before the deadline at which the training ends, as a share of the time from the first start to the deadline."""

KEPT = 0.006
"""Deviation of the predicted end from `AIM` at which a schedule is kept, as a share of the same time."""


@dataclass(frozen=True, slots=True)
class DeadlineSchedule:
    """Length of a training with a deadline, and the progress of its learning rate."""

    steps: int  # of the whole training
    steps_per_epoch: int
    began_s: float  # first start of the training, seconds since 1970
    deadline_s: float  # seconds since 1970
    since_step: int = 0  # step at which the length was chosen
    since_progress: float = 0.0  # progress of the learning rate at that step, 0 to 1
    problem: str = ""  # why the deadline cannot be met; empty if it can

    @property
    def epochs(self) -> int:
        """Number of epochs; the last one can be partial."""
        return -(-self.steps // self.steps_per_epoch)

    @property
    def last_epoch_steps(self) -> int:
        return self.steps - (self.epochs - 1) * self.steps_per_epoch

    def progress(self, step: int) -> float:
        """Return the progress of the learning rate at `step`, from 0; it is 1 at the last step."""
        if step >= self.steps - 1:
            return 1.0
        done = (step - self.since_step) / max(1, self.steps - 1 - self.since_step)
        return self.since_progress + (1 - self.since_progress) * max(done, 0.0)

    def resized(self, steps_per_epoch: int) -> Self:
        """Return the schedule of the same number of epochs for another number of steps per epoch."""
        steps = round(self.steps * steps_per_epoch / self.steps_per_epoch)
        since_step = round(self.since_step * steps_per_epoch / self.steps_per_epoch)
        return replace(self, steps=max(1, steps), since_step=since_step, steps_per_epoch=steps_per_epoch)


@dataclass(frozen=True, slots=True)
class Measured:
    """Position of a training, and measured times; moments in seconds since 1970, durations in seconds."""

    now_s: float
    step: int  # trained steps
    step_s: float  # with the wait for the batch
    epoch_s: float  # at the end of an epoch, besides the steps: validation and checkpoint
    closing_s: float  # after the last step: last validation, checkpoint and what is reserved for later work
    lost_s: float  # since the first start without progress: starts, repeated steps, pauses, stalls
    smallest_step: int  # first step after which the training can end


def end_of(schedule: DeadlineSchedule, measured: Measured, steps: int) -> float:
    """Return the predicted end of a training of `steps` steps, seconds since 1970.

    Time is lost at half of the rate of the time so far at most: one pause early in a training is no rate.
    """
    epoch_ends = (steps - 1) // schedule.steps_per_epoch - measured.step // schedule.steps_per_epoch
    rest_s = (steps - measured.step) * measured.step_s + max(0, epoch_ends) * measured.epoch_s
    whole_s = measured.now_s - schedule.began_s + max(0.0, schedule.deadline_s - schedule.began_s)
    loss = max(0.0, measured.lost_s) / whole_s if whole_s > 0 else 0.0
    return measured.now_s + rest_s * (1 + loss) + measured.closing_s


def rescheduled(schedule: DeadlineSchedule, measured: Measured) -> DeadlineSchedule:
    """Return the schedule if its predicted end is close to the deadline, else that of the steps that fit."""
    smallest_step = measured.smallest_step
    whole_s = schedule.deadline_s - schedule.began_s
    aim_s = schedule.deadline_s - AIM * whole_s
    deviation_s = abs(end_of(schedule, measured, schedule.steps) - aim_s)
    if schedule.steps < smallest_step or deviation_s > KEPT * whole_s:
        largest_step = smallest_step + int(max(0.0, schedule.deadline_s - measured.now_s) / measured.step_s)
        candidates = range(smallest_step, largest_step + 1)
        fitting = bisect_right(candidates, aim_s, key=lambda steps: end_of(schedule, measured, steps))
        steps = smallest_step + max(0, fitting - 1)
        if steps % schedule.steps_per_epoch == 1 and steps > smallest_step:
            steps -= 1  # Lightning needs a second batch to end an epoch early
        if steps != schedule.steps:
            progress = schedule.progress(measured.step)
            schedule = replace(schedule, steps=steps, since_step=measured.step, since_progress=progress)
    return replace(schedule, problem=_problem(schedule, measured))


def _problem(schedule: DeadlineSchedule, measured: Measured) -> str:
    """Return why the deadline cannot be met; empty if it can."""
    late_s = end_of(schedule, measured, schedule.steps) - schedule.deadline_s
    if late_s <= 0:
        return ""
    return (
        f"training ends as early as possible, about {late_s:.0f} s too late: "
        f"{schedule.deadline_s - measured.now_s:.0f} s are left, a step takes {measured.step_s:.3g} s, validation and "
        f"other work after the last step {measured.closing_s:.0f} s; starts, repeated steps, pauses and stalls took "
        f"{max(0.0, measured.lost_s):.0f} s"
    )
