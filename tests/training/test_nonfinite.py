"""Reactions to non-finite losses and gradients: skipped batches, roll-back, end of the fit."""

import math

import pytest
from hypothesis import given, strategies as st

from yolo_lightning.training.nonfinite import GuardSettings, NonFiniteGuard

pytestmark = pytest.mark.filterwarnings("ignore:step")

LOSS, GRADIENT = "loss", "gradient"
MAX_ROLLBACKS = 2
EVENTS = st.lists(st.tuples(st.sampled_from((LOSS, GRADIENT)), st.booleans()), max_size=60)


def limited_guard() -> NonFiniteGuard:
    return NonFiniteGuard(
        GuardSettings(max_consecutive_nonfinite=3, max_rollbacks=MAX_ROLLBACKS, rollback_lr_factor=0.5)
    )


def rollbacks(events: list[tuple[str, bool]]) -> list[bool]:
    """Return whether each event restores a checkpoint; the event that ends the training is left out."""
    guard, found = limited_guard(), []
    try:
        for source, is_finite in events:
            is_loss = source == LOSS
            found.append(guard.check_loss(is_finite, (), 1, {}) if is_loss else guard.check_gradient(is_finite, 1))
    except ValueError:
        pass
    return found


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([(LOSS, False)] * 3, [False, False, True]),
        ([(GRADIENT, False)] * 3, [False, False, True]),
        ([(LOSS, False)] * 2 + [(LOSS, True)] + [(LOSS, False)] * 2, [False] * 5),
        ([(GRADIENT, False)] * 2 + [(GRADIENT, True)] + [(GRADIENT, False)] * 2, [False] * 5),
        ([(LOSS, True), (GRADIENT, False)] * 3, [False] * 5 + [True]),
        ([(LOSS, False), (LOSS, False), (GRADIENT, True), (LOSS, False)], [False] * 3 + [True]),
        ([(LOSS, False)] * 12, [False, False, True, False, False, True, False, False]),
    ],
)
def test_rollback_follows_three_consecutive_values_of_one_kind(
    events: list[tuple[str, bool]], expected: list[bool]
) -> None:
    assert rollbacks(events) == expected


@given(EVENTS)
def test_never_rolls_back_more_often_than_allowed(events: list[tuple[str, bool]]) -> None:
    assert sum(rollbacks(events)) <= MAX_ROLLBACKS


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_consecutive_nonfinite": 0}, "model.guard.max_consecutive_nonfinite must be >= 1, got 0"),
        ({"max_rollbacks": -1}, "model.guard.max_rollbacks must be >= 0, got -1"),
        ({"rollback_lr_factor": 0.0}, "model.guard.rollback_lr_factor must be > 0 and <= 1, got 0.0"),
        ({"rollback_lr_factor": 1.5}, "model.guard.rollback_lr_factor must be .*, got 1.5"),
        ({"max_oom_splits": -1}, "model.guard.max_oom_splits must be >= 0, got -1"),
        ({"rollback_lr_factor": math.nan}, "model.guard.rollback_lr_factor must be .*, got nan"),
    ],
)
def test_limits_out_of_range_are_refused(values: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GuardSettings(**values)  # type: ignore[arg-type]


def test_log_names_images_values_and_count() -> None:
    guard = limited_guard()
    with pytest.warns(UserWarning, match=r"the loss is not finite \(box nan, cls 0\.25\); images a, b: skipped"):
        guard.check_loss(False, ("a", "b"), 7, {"box": math.nan, "cls": 0.25})
    assert guard.tally.skipped == 1


def test_log_names_all_images_of_a_gradient_since_the_last_update() -> None:
    guard = limited_guard()
    guard.check_loss(True, ("before",), 1, {})
    guard.check_gradient(True, 1)
    guard.check_loss(True, ("a", "b"), 2, {})
    guard.check_loss(True, ("c",), 3, {})
    with pytest.warns(UserWarning, match=r"step 3: the summed gradient is not finite; images a, b, c: skipped"):
        guard.check_gradient(False, 3)


def test_learning_rate_falls_with_each_rollback_also_after_a_restart() -> None:
    guard = limited_guard()
    factors = []
    for step in range(6):
        guard.check_loss(False, (), step, {})
        factors.append(guard.learning_rate_factor)
    assert factors == [1.0, 1.0, 0.5, 0.5, 0.5, 0.25]
    again = limited_guard()
    again.load_state_dict(guard.state_dict())
    assert (again.tally, again.learning_rate_factor) == (guard.tally, 0.25)


def test_giving_up_names_images_and_what_to_do() -> None:
    guard = NonFiniteGuard(GuardSettings(1, 1))
    guard.check_loss(False, ("a",), 1, {})
    with pytest.raises(
        ValueError, match=r"images b: 1 consecutive non-finite values after 1 rollbacks.*model\.recipe\.lr0"
    ):
        guard.check_loss(False, ("b",), 2, {})
