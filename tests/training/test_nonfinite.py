"""What follows when losses or gradients are not finite."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yolo_lightning.training.nonfinite import NonFiniteAction, NonFiniteGuard, Patience, Source, Tally, judge

LOSS, GRADIENT = Source.LOSS, Source.GRADIENT
PATIENCE = Patience(in_a_row=3, rollbacks=2, factor=0.5)
EVENTS = st.lists(st.tuples(st.sampled_from(Source), st.booleans()), max_size=60)


def verdicts(events: list[tuple[Source, bool]], patience: Patience = PATIENCE) -> list[NonFiniteAction]:
    tally, found = Tally(), []
    for source, is_finite in events:
        tally, verdict = judge(tally, source, is_finite, patience)
        found.append(verdict)
    return found


@pytest.mark.parametrize("source", Source)
def test_goes_back_after_so_many_in_a_row(source: Source) -> None:
    assert verdicts([(source, False)] * 3) == [NonFiniteAction.GO_ON, NonFiniteAction.GO_ON, NonFiniteAction.GO_BACK]


@pytest.mark.parametrize("source", Source)
def test_a_finite_one_begins_the_row_anew(source: Source) -> None:
    events = [(source, False)] * 2 + [(source, True)] + [(source, False)] * 2
    assert verdicts(events) == [NonFiniteAction.GO_ON] * 5


def test_finite_losses_do_not_hide_gradients_that_are_not() -> None:
    events = [(LOSS, True), (GRADIENT, False)] * 3
    assert verdicts(events)[-1] is NonFiniteAction.GO_BACK


def test_finite_gradients_do_not_hide_losses_that_are_not() -> None:
    assert verdicts([(LOSS, False), (LOSS, False), (GRADIENT, True), (LOSS, False)])[-1] is NonFiniteAction.GO_BACK


def test_gives_up_when_going_back_did_not_help() -> None:
    found = verdicts([(LOSS, False)] * 9)
    assert [place for place, verdict in enumerate(found) if verdict is not NonFiniteAction.GO_ON] == [2, 5, 8]
    assert found[-1] is NonFiniteAction.GIVE_UP


def test_no_rollback_allowed_gives_up_at_once() -> None:
    assert verdicts([(LOSS, False)], Patience(1, 0)) == [NonFiniteAction.GIVE_UP]


@given(EVENTS)
def test_what_is_not_finite_is_counted_once(events: list[tuple[Source, bool]]) -> None:
    tally = Tally()
    for source, is_finite in events:
        tally, _ = judge(tally, source, is_finite, PATIENCE)
    assert tally.skipped == sum(not is_finite for _, is_finite in events)


@given(EVENTS)
def test_never_goes_back_more_often_than_allowed(events: list[tuple[Source, bool]]) -> None:
    assert verdicts(events).count(NonFiniteAction.GO_BACK) <= PATIENCE.rollbacks


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"in_a_row": 0}, "max_consecutive_nonfinite is 0, allowed are 1 and more"),
        ({"rollbacks": -1}, "max_rollbacks is -1, allowed are 0 and more"),
        ({"factor": 0.0}, "rollback_lr_factor is 0.0, allowed are values above 0 up to 1"),
        ({"factor": 1.5}, "rollback_lr_factor is 1.5"),
        ({"factor": math.nan}, "rollback_lr_factor is nan"),
    ],
)
def test_limits_out_of_range_are_refused(values: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Patience(**values)  # type: ignore[arg-type]


def test_log_names_images_values_and_count() -> None:
    guard = NonFiniteGuard(PATIENCE)
    with pytest.warns(
        UserWarning, match=r"step 7: the loss is not finite \(box nan, cls 0\.25\); images a, b: left out"
    ):
        guard.see_loss(False, ("a", "b"), 7, {"box": math.nan, "cls": 0.25})
    assert guard.tally.skipped == 1


def test_log_names_all_images_of_a_gradient_since_the_last_update() -> None:
    guard = NonFiniteGuard(PATIENCE)
    guard.see_loss(True, ("before",), 1, {})
    guard.see_gradient(True, 1)
    guard.see_loss(True, ("a", "b"), 2, {})
    guard.see_loss(True, ("c",), 3, {})
    with pytest.warns(UserWarning, match=r"step 3: the summed gradient is not finite; images a, b, c: left out"):
        guard.see_gradient(False, 3)


@pytest.mark.filterwarnings("ignore:step")
def test_learning_rate_falls_with_each_rollback_also_after_a_restart() -> None:
    guard = NonFiniteGuard(PATIENCE)
    factors = []
    for step in range(6):
        guard.see_loss(False, (), step, {})
        factors.append(guard.learning_rate_factor)
    assert factors == [1.0, 1.0, 0.5, 0.5, 0.5, 0.25]
    again = NonFiniteGuard(PATIENCE)
    again.load(guard.state())
    assert (again.tally, again.learning_rate_factor) == (guard.tally, 0.25)


@pytest.mark.filterwarnings("ignore:step")
def test_giving_up_names_images_and_what_to_do() -> None:
    guard = NonFiniteGuard(Patience(1, 1))
    guard.see_loss(False, ("a",), 1, {})
    with pytest.raises(ValueError, match=r"images b: that is 1 in a row.*1 times.*lower model\.lr0"):
        guard.see_loss(False, ("b",), 2, {})
