from collections.abc import Iterator

import pytest

from yolo_lightning.utils import activity
from yolo_lightning.utils.activity import Activity, current, during, enter, loading, number_from_device


@pytest.fixture
def reported() -> Iterator[list[Activity]]:
    """Activities in the order of their reports."""
    activities: list[Activity] = []
    activity.report_to(activities.append)
    yield activities
    activity.report_to(None)


def test_nested_activities_return_to_the_outer_one(reported: list[Activity]) -> None:
    with during(Activity.FORWARD):
        assert number_from_device(2.5) == 2.5
    assert reported == [Activity.FORWARD, Activity.DEVICE_WAIT, Activity.FORWARD, Activity.NONE]


def test_the_same_activity_within_itself_is_not_reported_again(reported: list[Activity]) -> None:
    with during(Activity.DEVICE_WAIT):
        assert number_from_device(2.5) == 2.5
        enter(Activity.DEVICE_WAIT)
    assert reported == [Activity.DEVICE_WAIT, Activity.DEVICE_WAIT, Activity.NONE]


def test_an_exception_keeps_the_activity_in_which_it_was_raised() -> None:
    enter(Activity.NONE)
    with pytest.raises(RuntimeError), during(Activity.FORWARD), during(Activity.DEVICE_WAIT):
        raise RuntimeError
    assert current() is Activity.DEVICE_WAIT


def test_only_the_wait_for_a_batch_is_loading() -> None:
    def batches() -> Iterator[Activity]:
        yield current()
        yield current()

    enter(Activity.NONE)
    seen = [(inside, current()) for inside in loading(batches())]
    assert seen == [(Activity.LOAD, Activity.NONE)] * 2
    assert current() is Activity.NONE
