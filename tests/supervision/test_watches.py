"""Watches on simulated runs: no false alarm in a day, and the delay of each alarm."""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from yolo_lightning.supervision.watches import Reading, RunWatches, growth, too_hot
from yolo_lightning.utils.sensors import Capacity

STEP_NOISE = (0.50, 0.70, 0.78, 0.85, 0.89, 0.91, 0.92, 0.95, 0.98, 0.99, 1.0)
STEP_NOISE += (1.0, 1.03, 1.04, 1.07, 1.10, 1.13, 1.17, 1.25, 1.38, 1.71)
LOSS_NOISE = (0.84, 0.90, 0.94, 0.95, 0.96, 0.97, 0.98, 0.99, 0.99, 1.0, 1.0)
LOSS_NOISE += (1.0, 1.01, 1.01, 1.02, 1.03, 1.04, 1.06, 1.08, 1.10, 1.37)
FETCH_SHARE = (0.002, 0.005, 0.006, 0.007, 0.009, 0.01, 0.011, 0.012, 0.014, 0.019, 0.449)
"""Quantiles of a recorded training of 174 steps on a busy CPU: minimum, equal steps of probability, maximum. Step time
and loss are relative to the median of 21 and 41 steps around the step."""

NOISE_CORRELATION = 0.46  # of the logarithms of successive step times in that training
MEMORY_SIGMA, MEMORY_CORRELATION = 1.5e9, 0.9
"""Deviation in bytes and correlation after a minute of the used memory, on the machine of that training and others."""

READ_S = 20.0
START_S, VALIDATE_S, EPOCH_S = 1_800_000_000.0, 300.0, 7200.0
GB = 1e9


@dataclass(frozen=True)
class Change:
    """What a fault changes, from its begin to its end (seconds of the run)."""

    begin_s: float = math.inf
    end_s: float = math.inf
    speed: float = 1.0  # factor
    fetch_share: float = 0.0  # added
    loss: float = 1.0  # factor
    degrees_c: float = 0.0
    memory: float = 0.0  # bytes per second
    gpu_memory: float = 0.0
    disk: float = 0.0


def draw(quantiles: tuple[float, ...], at: float) -> float:
    """Return the value of a distribution at a share of its probability, 0 to 1."""
    place = at * (len(quantiles) - 1)
    low = min(int(place), len(quantiles) - 2)
    return quantiles[low] + (place - low) * (quantiles[low + 1] - quantiles[low])


def simulated(hours: float, seed: int, change: Change) -> Iterator[Reading]:
    """Yield the readings of a training with one step per second, an epoch per two hours and validations."""
    noise = random.Random(seed)
    correlated = memory = drift = fetch_s = step_s = 0.0
    steps, epoch, epoch_began_s, at_s = 0, 0, 0.0, 0.0
    usage = {"memory": 8 * GB, "gpu": 5 * GB, "disk": 300 * GB}
    while at_s < hours * 3600:
        is_on = change.begin_s <= at_s < change.end_s
        for name, rate in (("memory", change.memory), ("gpu", change.gpu_memory), ("disk", change.disk)):
            usage[name] += is_on * rate * READ_S
        if at_s - epoch_began_s < EPOCH_S - VALIDATE_S:
            drift = 0.98 * drift + 0.02 * noise.gauss(0, 1)  # other processes on the machine
            spent_s = 0.0
            while spent_s < READ_S:
                correlated = NOISE_CORRELATION * correlated + math.sqrt(1 - NOISE_CORRELATION**2) * noise.gauss(0, 1)
                seconds = draw(STEP_NOISE, 0.5 * math.erfc(-correlated / math.sqrt(2))) * math.exp(drift)
                seconds /= change.speed if is_on else 1.0
                share = min(0.95, draw(FETCH_SHARE, noise.random()) + is_on * change.fetch_share)
                fetch_s, step_s, spent_s = fetch_s + share * seconds, step_s + (1 - share) * seconds, spent_s + seconds
                steps += 1
        elif at_s - epoch_began_s >= EPOCH_S:
            epoch, epoch_began_s = epoch + 1, at_s
            if epoch <= 3:
                usage["disk"] += 0.05 * GB  # later checkpoints replace earlier ones
        fade = MEMORY_CORRELATION ** (READ_S / 60)
        memory = fade * memory + math.sqrt(1 - fade**2) * noise.gauss(0, MEMORY_SIGMA)
        loss = (4 + 14 * math.exp(-at_s / 10_000)) * draw(LOSS_NOISE, noise.random()) * (change.loss if is_on else 1.0)
        at_s += READ_S
        yield Reading(
            at_s,
            epoch,
            steps,
            fetch_s,
            step_s,
            loss,
            73 + noise.gauss(0, 3) + (10 if at_s % 1800 < 150 else 0) + is_on * change.degrees_c,
            {
                "memory grows": Capacity(int(usage["memory"] + abs(memory)), int(24 * GB)),
                "memory of GPU 0 grows": Capacity(int(usage["gpu"] + (at_s % 600 < 40) * GB), int(8 * GB)),
                "disk fills": Capacity(int(usage["disk"]), int(500 * GB)),
            },
        )


def history(hours: float, change: Change, seed: int = 0) -> tuple[dict[str, tuple[float, float | None]], RunWatches]:
    """Return when each alarm of a simulated run was raised and was over, in seconds of the run."""
    watches = RunWatches()
    alarms = dict[str, tuple[float, float | None]]()
    for reading in simulated(hours, seed, change):
        watches.observe(reading, START_S + reading.now_s)
        for finding in watches.findings:
            if finding.is_alarm:
                alarms.setdefault(finding.watch, (reading.now_s, None))
            elif finding.until_s is not None and finding.watch in alarms and alarms[finding.watch][1] is None:
                alarms[finding.watch] = alarms[finding.watch][0], reading.now_s
    return alarms, watches


@pytest.mark.parametrize("seed", range(3))
def test_no_alarm_in_a_day_of_normal_training(seed: int) -> None:
    assert history(24.0, Change(), seed)[0] == {}


BEGIN_S = 3600.0


@pytest.mark.parametrize(
    ("watch", "change", "delay_min", "over_min"),
    [
        ("GPU too hot", Change(degrees_c=20), 7, 3),
        ("training slower", Change(speed=0.6), 12, 12),
        ("waiting for data", Change(fetch_share=0.5), 12, 12),
        ("loss rises", Change(loss=2.0), 12, 12),
        ("memory of GPU 0 grows", Change(gpu_memory=2 * GB / 3600), 32, 45),
        ("memory grows", Change(memory=14 * GB / 4500), 40, 45),
        ("disk fills", Change(disk=200 * GB / (3 * 3600)), 62, 120),
    ],
)
def test_each_fault_raises_its_alarm_within_the_documented_delay(
    watch: str, change: Change, delay_min: float, over_min: float
) -> None:
    end_s = BEGIN_S + (delay_min + 5) * 60
    alarms, watches = history(5.0, replace(change, begin_s=BEGIN_S, end_s=end_s))
    assert alarms.keys() == {watch}
    raised_s, over_s = alarms[watch]
    assert 0 < raised_s - BEGIN_S <= delay_min * 60
    assert over_s is not None
    assert 0 < over_s - end_s <= over_min * 60
    [finding] = [entry for entry in watches.findings if entry.watch == watch]
    assert finding.until_s == START_S + over_s
    assert abs(finding.since_s - START_S - BEGIN_S) < 60 * delay_min


@pytest.mark.parametrize(("hours_to_full", "found_after_h"), [(1.0, 0.4), (5.0, 3.1), (20.0, 8.1), (48.0, 36.1)])
def test_leak_is_found_while_twice_the_observed_time_is_left(hours_to_full: float, found_after_h: float) -> None:
    usage = [int(at * 8e9 / (60 * hours_to_full)) for at in range(int(60 * hours_to_full))]
    free = [8 * 10**9 - used for used in usage]
    at = next(at for at in range(1, len(usage)) if growth(usage[max(0, at - 361) : at], free[at - 1]))
    assert at / 60 <= found_after_h


def filled(jumps: dict[int, float]) -> list[int]:
    """Return an hour of usage in bytes that rises at some minutes."""
    return [int(sum(size for minute, size in jumps.items() if minute <= at)) for at in range(61)]


def test_single_jump_is_no_growth_and_stepwise_growth_is() -> None:
    assert growth(filled({30: 4 * GB}), int(4 * GB)) is None
    result = growth(filled({8: GB, 25: GB, 35: GB, 55: GB}), int(4 * GB))
    assert result is not None
    assert result == ("+3.6 GB/h over 60 min, 4.0 GB free, full in 1.1 h", 3600.0)


def test_readings_without_temperature_or_after_a_gap_are_no_heat() -> None:
    assert too_hot([], 80.0) is None
    assert too_hot([(0.0, 90.0), (900.0, 90.0)], 80.0) is None  # a validation without readings lies between them
    assert too_hot([(10.0 * at, 81.0) for at in range(31)], 80.0) == ("81 °C, limit 80 °C", 300.0)
    assert too_hot([(10.0 * at, 81.0 if at != 20 else 80.0) for at in range(31)], 80.0) is None


def test_finding_keeps_its_begin_while_it_lasts() -> None:
    watches = RunWatches()
    for at in range(60):
        watches.observe(Reading(10.0 * at, 0, 0, 0.0, 0.0, None, 90.0), START_S + 10 * at)
    assert [(finding.watch, finding.since_s, finding.until_s) for finding in watches.findings] == [
        ("GPU too hot", START_S, None)
    ]
    assert watches.is_hot()


def test_steps_of_another_fit_are_not_compared_with_those_before() -> None:
    watches = RunWatches()
    for steps in (100, 200, 0, 100):
        watches.observe(Reading(1.0 * steps, 0, steps, 0.0, 2.0 * steps, 1.0), START_S)
    assert [minute.step_s for minute in watches.minutes] == [2.0, 2.0]
