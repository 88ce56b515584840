"""Activity of the training process within the phase of its heartbeat.

The training loop states what it begins: it waits for a batch, computes, waits for the device, writes a file. A hang is
classified by the activity in which it occurs, not by names of functions. Standard library only.
"""

from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from types import TracebackType
from typing import SupportsFloat, TypeVar

T = TypeVar("T")

PATIENCE_VARIABLE = "YOLO_LIGHTNING_PATIENCE_S"
"""Environment variable with the seconds that the training process waits in `WAIT`; set by the supervisor."""


class Activity(IntEnum):
    """What the training process does. The numbers are part of the format of the heartbeat file."""

    NONE = 0  # anything that has no number of its own
    LOAD = 1  # waits for a batch of the loader
    FORWARD = 2
    BACKWARD = 3
    DEVICE_WAIT = 4  # reads a value from the device, or copies to the device: waits for all earlier work of the device
    OPTIMIZER = 5
    WRITE = 6  # writes a file
    WAIT = 7  # waits on purpose until something outside of the process is available, and repeats its heartbeat
    EXCHANGE = 8  # waits for other ranks in a collective operation
    UNKNOWN = 9  # not in a file: the heartbeat cannot be read, and the process has continued since the last one

    @property
    def label(self) -> str:
        """Name in messages and reports, for example `device wait`; empty for `NONE`."""
        return self.name.lower().replace("_", " ") if self else ""


_current = Activity.NONE
_report: Callable[[Activity], None] | None = None


def report_to(report: Callable[[Activity], None] | None) -> None:
    """Call `report` with each activity from now on; None reports nothing."""
    global _report
    _report = report


def current() -> Activity:
    """Return the activity of this process."""
    return _current


def note(activity: Activity) -> None:
    """Set the activity without a report, for the writer of the report."""
    global _current
    _current = activity


def enter(activity: Activity) -> None:
    """Report the start of an activity, or of the next item in the same activity."""
    global _current
    _current = activity
    if _report is not None:
        _report(activity)


class during:
    """Context of an activity: the previous activity follows, except after an exception, whose record names this one.

    Within the same activity it reports nothing: a report takes microseconds, because its code has left the processor's
    cache since the last one.
    """

    __slots__ = ("activity", "before")

    def __init__(self, activity: Activity) -> None:
        self.activity = activity

    def __enter__(self) -> None:
        self.before = _current
        if self.activity is not _current:
            enter(self.activity)

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if error is None and self.before is not _current:
            enter(self.before)


def number_from_device(value: SupportsFloat) -> float:
    """Return the value of a 0-d tensor, for which the process waits until the device has computed the tensor."""
    with during(Activity.DEVICE_WAIT):
        return float(value)


def loading(batches: Iterable[T]) -> Iterator[T]:
    """Yield the batches; the activity is `LOAD` while the next one is awaited."""
    iterator = iter(batches)
    while True:
        try:
            with during(Activity.LOAD):
                batch = next(iterator)
        except StopIteration:
            enter(Activity.NONE)
            return
        yield batch
