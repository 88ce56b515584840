"""The plan of the rest of a training is a function of its position and of measured times."""

from dataclasses import replace
from itertools import pairwise

import pytest

from yolo_lightning.training.deadline import DeadlineSchedule, Measured, end_of, rescheduled

PLAN = DeadlineSchedule(steps=1000, steps_per_epoch=300, began_s=0.0, deadline_s=10_000.0)


def test_learning_rate_continues_from_its_value_and_reaches_the_end() -> None:
    measured = Measured(4000.0, 400, 10.0, 100.0, 200.0, 0.0, 401)
    shorter = rescheduled(PLAN, measured)
    assert shorter.steps < 1000
    assert shorter.progress(400) == PLAN.progress(400)
    assert shorter.progress(shorter.steps - 1) == 1.0
    assert all(earlier <= later for earlier, later in pairwise(map(shorter.progress, range(400, 1000))))


@pytest.mark.parametrize("step_s", [1.0, 5.0, 10.0])
def test_planned_steps_are_the_most_that_fit(step_s: float) -> None:
    measured = Measured(4000.0, 400, step_s, 100.0, 200.0, 500.0, 401)
    steps = rescheduled(PLAN, measured).steps
    assert end_of(PLAN, measured, steps) <= 9900.0
    assert end_of(PLAN, measured, steps + 2) > 9900.0


def test_last_epoch_has_two_steps_at_least() -> None:
    for now_s in range(4000, 9000, 10):
        plan = rescheduled(PLAN, Measured(float(now_s), 400, 10.0, 100.0, 200.0, 0.0, 401))
        assert plan.last_epoch_steps >= 2


def test_plan_for_another_batch_size_has_the_same_epochs() -> None:
    assert PLAN.resized(150).steps == 500
    assert PLAN.resized(150).epochs == PLAN.epochs


def test_a_plan_is_kept_after_a_short_interruption() -> None:
    """The resumed training begins 2 steps and 30 s behind, of 10,000 s."""
    measured = Measured(4000.0, 400, 10.0, 100.0, 200.0, 0.0, 401)
    plan = rescheduled(PLAN, measured)
    assert rescheduled(plan, replace(measured, now_s=4030.0, step=398)) == plan
    assert rescheduled(plan, replace(measured, now_s=4200.0, step=395)).steps < plan.steps


def test_lost_time_shortens_the_plan() -> None:
    measured = Measured(4000.0, 400, 10.0, 100.0, 200.0, 0.0, 401)
    assert rescheduled(PLAN, replace(measured, lost_s=1000.0)).steps < rescheduled(PLAN, measured).steps


def test_a_deadline_that_cannot_be_met_leaves_one_step_and_a_reason() -> None:
    plan = rescheduled(PLAN, Measured(9900.0, 400, 10.0, 100.0, 200.0, 3000.0, 401))
    assert plan.steps == 401
    assert plan.problem.startswith("training ends as early as possible, about 112 s too late: 100 s are left")


def test_the_only_step_that_is_left_has_the_last_learning_rate() -> None:
    plan = rescheduled(PLAN, Measured(9900.0, 400, 10.0, 100.0, 200.0, 3000.0, 401))
    assert plan.progress(399) < 1
    assert plan.progress(plan.steps - 1) == 1.0
