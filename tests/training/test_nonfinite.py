"""Reactions to non-finite losses and gradients: skipped batches, roll-back, end of the fit."""

import math

import pytest
from hypothesis import given, strategies as st

from yolo_lightning.training.guard_settings import GuardSettings
from yolo_lightning.training.nonfinite import NonFiniteError, NonFiniteGuard

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
    guard = limited_guard()
    decisions = []
    try:
        for source, is_finite in events:
            is_loss = source == LOSS
            decisions.append(guard.check_loss(is_finite, (), 1, {}) if is_loss else guard.check_gradient(is_finite, 1))
    except NonFiniteError:
        pass
    return decisions


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([(LOSS, False)] * 3, [False, False, True]),
        ([(GRADIENT, False)] * 3, [False, False, True]),
        ([(LOSS, False)] * 2 + [(LOSS, True)] + [(LOSS, False)] * 2, [False] * 5),
        ([(GRADIENT, False)] * 2 + [(GRADIENT, True)] + [(GRADIENT, False)] * 2, [False] * 5),
        ([(LOSS, True), (GRADIENT, False)] * 3, [False] * 5 + [True]),
        ([(LOSS, False), (LOSS, False), (GRADIENT, True), (LOSS, False)], [False] * 3 + [True]),
        ([(LOSS, False)] * 12, [False, False, True, False, False]),
        ([(LOSS, True), (GRADIENT, False)] * 12, [False] * 5 + [True] + [False] * 5),
        (([(LOSS, False)] * 3 + [(LOSS, True)]) * 4, [False, False, True, False] * 2 + [False, False]),
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


def roll_back_once(guard: NonFiniteGuard) -> None:
    for step in range(3):
        guard.check_loss(False, (), step, {})
    guard.check_loss(True, (), 3, {})


def test_learning_rate_falls_with_each_rollback_also_after_a_restart() -> None:
    guard = limited_guard()
    factors = []
    for _ in range(2):
        roll_back_once(guard)
        factors.append(guard.learning_rate_factor)
    assert factors == [0.5, 0.25]
    again = limited_guard()
    again.load_state_dict(guard.state_dict())
    assert (again.tally, again.learning_rate_factor) == (guard.tally, 0.25)


def test_another_computation_restores_the_learning_rate_and_the_number_of_rollbacks() -> None:
    guard = limited_guard()
    guard.computation = "native, cpu"
    roll_back_once(guard)
    assert guard.learning_rate_factor == 0.5
    lowered = limited_guard()
    lowered.computation = "gemm, cpu"
    lowered.load_state_dict(guard.state_dict())
    assert (lowered.learning_rate_factor, lowered.tally.rollbacks, lowered.tally.skipped) == (1.0, 0, 3)
    of_older_version = {name: value for name, value in guard.state_dict().items() if name != "computation"}
    lowered.load_state_dict(of_older_version)
    assert lowered.learning_rate_factor == 0.5


def test_mixed_precision_ends_before_the_learning_rate_is_lowered() -> None:
    guard = limited_guard()
    guard.lowers_precision = True
    roll_back_once(guard)
    assert guard.learning_rate_factor == 1.0
    with pytest.raises(NonFiniteError, match="after 1 rollbacks"):
        roll_back_once(guard)


@pytest.mark.parametrize(
    ("settings", "failures", "message"),
    [
        (GuardSettings(1, 0), 1, r"images 0: 1 consecutive .* after 0 rollbacks \(model\.guard\.max_rollbacks\)"),
        (GuardSettings(1, 3), 2, r"images 1: 2 consecutive .* none of them finite since the last rollback.*\.lr0"),
    ],
)
def test_error_names_images_and_cause(settings: GuardSettings, failures: int, message: str) -> None:
    guard = NonFiniteGuard(settings)
    for step in range(failures - 1):
        guard.check_loss(False, (str(step),), step, {})
    with pytest.raises(NonFiniteError, match=message):
        guard.check_loss(False, (str(failures - 1),), failures, {})
