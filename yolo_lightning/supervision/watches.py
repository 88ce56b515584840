"""Watches over minutes of a run: temperature, growth of memory and disk usage, speed, wait for data, loss.

Each watch is a function of a series of readings. A finding begins at a strict limit and ends at a looser one, so that a
value near a limit does not cause a series of findings.
"""

from collections import deque
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median

from yolo_lightning.utils.sensors import Capacity

MAX_TEMPERATURE_C = 80.0
MINUTE_S = 60.0
HOT_S = 300.0  # a GPU is too hot after this time above the limit
COOL_S = 60.0  # and cool again after this time without a reading above the limit

LEAST_READINGS = 3  # of the temperature, within `HOT_S`
MINUTES_KEPT = 2880  # minutes of training, two days
RECENT = 10  # minutes of training that are judged
LEAST_EARLIER = 20  # number of earlier minutes with which they are compared
HOUR_MINUTES = 60
SLOWER = 0.7  # share of the run's median of steps per second
SLOWER_ENDS = 0.8
WAIT = 0.3  # share of waiting for data
WAIT_RISE = 0.2  # over the median of the run
WAIT_ENDS = 0.8  # share of the limit
DIVERGED = 1.5  # loss as a multiple of the median of the last epochs
DIVERGED_ENDS = 1.25
EPOCHS = 5  # last epochs whose losses are compared
WINDOWS = (24, 60, 360)  # minutes
PARTS = 6
LEAST_RISES = 3
"""A window is divided into parts; the lowest usage of a part never falls, and rises at least so many times."""

AHEAD = 2.0
"""A growth counts if the capacity is full within this multiple of the time over which the growth was observed."""

ENDED_KEPT = 20
HOT = "GPU too hot"
Verdict = tuple[str, float]
"""Sentence of a watch that has found something, and the age of the finding in seconds."""


@dataclass(frozen=True, slots=True)
class WatchFinding:
    """What a watch has found."""

    watch: str  # name of the watch
    sentence: str  # with the measured numbers
    since_s: float  # seconds since 1970
    until_s: float | None = None  # seconds since 1970; None while the finding lasts

    @property
    def is_alarm(self) -> bool:
        return self.until_s is None


@dataclass(frozen=True, slots=True)
class Minute:
    """Means over a minute of training, or over one step that takes longer."""

    epoch: int  # from 0
    step_s: float  # seconds per step, with the wait for the batch
    fetch_share: float  # share of `step_s` spent waiting for the batch
    loss: float | None  # None if no finite loss was logged


@dataclass(frozen=True, slots=True)
class Reading:
    """Readings of a run at one moment. Steps and seconds are sums since the process began to train."""

    now_s: float  # monotonic clock
    epoch: int
    steps: int
    fetch_s: float  # wait for batches
    step_s: float  # computation of steps
    loss: float | None
    temperature_c: float | None = None  # of the hottest GPU
    usage: Mapping[str, Capacity] = field(default_factory=dict)  # by name of a watch


class RunWatches:
    """The series of a run and the findings in them."""

    def __init__(self, max_temperature_c: float = MAX_TEMPERATURE_C) -> None:
        self.max_temperature_c = max_temperature_c
        self.minutes: deque[Minute] = deque(maxlen=MINUTES_KEPT)
        self.findings: tuple[WatchFinding, ...] = ()  # by their begin, ended ones included
        self._temperatures: deque[tuple[float, float]] = deque()
        self._usage: dict[str, deque[int]] = {}  # lowest usage of each minute, bytes
        self._losses: list[float] = []
        self._began: Reading | None = None  # first reading of the current minute
        self._judged_s = float("-inf")

    def is_hot(self) -> bool:
        """Return whether a GPU is too hot at the moment."""
        return any(finding.watch == HOT and finding.is_alarm for finding in self.findings)

    def observe(self, reading: Reading, wall_s: float) -> None:
        """Add a reading, and judge all series once a minute; `wall_s` is the wall clock, seconds since 1970."""
        begins_minute = reading.now_s >= self._judged_s + MINUTE_S
        self._add_training(reading)
        self._add_machine(reading, begins_minute)
        if not begins_minute:
            return
        self._judged_s = reading.now_s
        lasting = {finding.watch: finding for finding in self.findings if finding.is_alarm}
        verdicts = self._judged(reading, lasting)
        ended = [finding for finding in self.findings if not finding.is_alarm]
        ended += [replace(finding, until_s=wall_s) for watch, finding in lasting.items() if watch not in verdicts]
        alarms = []
        for watch, (sentence, age_s) in verdicts.items():
            since_s = lasting[watch].since_s if watch in lasting else wall_s - age_s
            alarms.append(WatchFinding(watch, sentence, since_s))
        self.findings = (*ended[-ENDED_KEPT:], *sorted(alarms, key=lambda alarm: alarm.since_s))

    def _add_training(self, reading: Reading) -> None:
        began = self._began
        if began is None or reading.steps < began.steps:  # another fit of this process
            self._begin_minute(reading)
            return
        if reading.loss is not None:
            self._losses.append(reading.loss)
        steps = reading.steps - began.steps
        fetch_s = reading.fetch_s - began.fetch_s
        total_s = fetch_s + reading.step_s - began.step_s
        if steps and total_s >= MINUTE_S:
            loss = sum(self._losses) / len(self._losses) if self._losses else None
            self.minutes.append(Minute(reading.epoch, total_s / steps, fetch_s / total_s, loss))
            self._begin_minute(reading)

    def _begin_minute(self, reading: Reading) -> None:
        self._began = reading
        self._losses = []

    def _add_machine(self, reading: Reading, begins_minute: bool) -> None:
        if reading.temperature_c is not None:
            self._temperatures.append((reading.now_s, reading.temperature_c))
            while self._temperatures[0][0] < reading.now_s - HOT_S - MINUTE_S:
                self._temperatures.popleft()
        for watch, capacity in reading.usage.items():
            series = self._usage.setdefault(watch, deque(maxlen=WINDOWS[-1] + 1))
            if begins_minute or not series:
                series.append(capacity.used_bytes)
            series[-1] = min(series[-1], capacity.used_bytes)

    def _judged(self, reading: Reading, lasting: Container[str]) -> dict[str, Verdict]:
        """Return the verdicts of the watches that have found something, by name of the watch."""
        verdicts = {HOT: too_hot(self._temperatures, self.max_temperature_c, HOT in lasting)}
        for watch, series in self._usage.items():
            if watch in reading.usage:
                verdicts[watch] = growth(list(series), reading.usage[watch].free_bytes, watch in lasting)
        minutes = list(self.minutes)
        if len(minutes) >= RECENT + LEAST_EARLIER:
            for watch, judge in TRAINING_WATCHES.items():
                verdicts[watch] = judge(minutes, watch in lasting)
        return {watch: verdict for watch, verdict in verdicts.items() if verdict is not None}


def too_hot(temperatures: Sequence[tuple[float, float]], limit_c: float, is_lasting: bool = False) -> Verdict | None:
    """Judge the temperature: `(time in seconds, °C)`, oldest first."""
    if not temperatures:
        return None
    now_s = temperatures[-1][0]
    window_s = COOL_S if is_lasting else HOT_S
    recent = [degrees for at_s, degrees in temperatures if at_s >= now_s - window_s]
    is_sustained = temperatures[0][0] <= now_s - HOT_S and len(recent) >= LEAST_READINGS and min(recent) > limit_c
    if not is_sustained and not (is_lasting and max(recent) > limit_c):
        return None
    return f"{max(recent):.0f} °C, limit {limit_c:g} °C", HOT_S


def growth(usage: Sequence[int], free_bytes: int, is_lasting: bool = False) -> Verdict | None:
    """Judge the usage of a memory or disk: lowest bytes of each minute, oldest first.

    Three windows are examined: growth over 24 minutes counts if the capacity is full in 48 minutes, growth over six
    hours if the capacity is full within twelve hours. The growth must be visible in the lowest usage of the parts of a
    window and lead to a higher usage than any before the window; peaks and a single jump are no growth. A lasting
    finding ends when twice the time is left, or without growth in half of the window.
    """
    for minutes in WINDOWS:
        part = minutes // PARTS
        ends = range(len(usage) - part * (PARTS - 1), len(usage) + 1, part)
        if ends[0] <= 0:
            break
        floors = [min(usage[max(0, end - part) : end]) for end in ends]
        changes = [later - earlier for earlier, later in pairwise(floors)]
        rises = sum(change > 0 for change in changes)
        before = max(usage[:-minutes], default=0)
        is_growing = min(changes) >= 0 and rises >= LEAST_RISES and floors[-1] > before
        ahead_h = AHEAD * minutes / 60
        if is_lasting:
            is_growing = floors[-1] > floors[PARTS // 2 - 1]
            ahead_h *= 2
        bytes_per_h = (floors[-1] - floors[0]) / (minutes - part) * 60
        if bytes_per_h > 0 and is_growing and free_bytes / bytes_per_h <= ahead_h:
            free = f"{free_bytes / 1e9:.1f} GB free, full in {free_bytes / bytes_per_h:.1f} h"
            return f"+{bytes_per_h / 1e9:.2g} GB/h over {minutes} min, {free}", minutes * MINUTE_S
    return None


def slower(minutes: Sequence[Minute], is_lasting: bool = False) -> Verdict | None:
    """Compare the steps per second with the median of the run."""
    usual = 1 / median(minute.step_s for minute in minutes[:-RECENT])
    now = 1 / median(minute.step_s for minute in minutes[-RECENT:])
    if now >= (SLOWER_ENDS if is_lasting else SLOWER) * usual:
        return None
    return f"{now:.3g} steps/s, {1 - now / usual:.0%} below the run's median of {usual:.3g}", RECENT * MINUTE_S


def waiting(minutes: Sequence[Minute], is_lasting: bool = False) -> Verdict | None:
    """Compare the share of waiting for data with the median of the run."""
    usual = median(minute.fetch_share for minute in minutes[:-RECENT])
    now = median(minute.fetch_share for minute in minutes[-RECENT:])
    if now <= max(WAIT, usual + WAIT_RISE) * (WAIT_ENDS if is_lasting else 1.0):
        return None
    return f"{now:.0%} of the time, the run's median is {usual:.0%}", RECENT * MINUTE_S


def diverging(minutes: Sequence[Minute], is_lasting: bool = False) -> Verdict | None:
    """Compare the loss with the median of the last epochs, or of the last hour if the epochs are shorter."""
    losses = [(minute.epoch, minute.loss) for minute in minutes if minute.loss is not None]
    first_epoch = min((minute.epoch for minute in minutes[-RECENT:]), default=0) - EPOCHS
    last_hour = len(losses) - HOUR_MINUTES
    earlier = [loss for at, (epoch, loss) in enumerate(losses[:-RECENT]) if epoch >= first_epoch or at >= last_hour]
    if len(earlier) < LEAST_EARLIER:
        return None
    usual = median(earlier)
    now = median(loss for _, loss in losses[-RECENT:])
    if usual <= 0 or now <= (DIVERGED_ENDS if is_lasting else DIVERGED) * usual:
        return None
    return f"{now:.4g}, {now / usual:.2g} times the median of the last epochs, {usual:.4g}", RECENT * MINUTE_S


TRAINING_WATCHES = {
    "training slower": slower,
    "waiting for data": waiting,
    "loss rises": diverging,
}
