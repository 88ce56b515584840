"""Passes in stages, clocks for a device, and statistics over repeats."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Spread:
    """Several measurements of one time.

    Attributes:
        samples_s: Seconds, in the order of the rounds; at least one.
    """

    samples_s: tuple[float, ...]

    @property
    def median_s(self) -> float:
        """The middle of the samples, seconds."""
        return statistics.median(self.samples_s)

    @property
    def minimum_s(self) -> float:
        """The shortest sample, seconds."""
        return min(self.samples_s)

    @property
    def maximum_s(self) -> float:
        """The longest sample, seconds."""
        return max(self.samples_s)

    def ratio_to(self, other: "Spread") -> float:
        """Median over the rounds of this time by the other one: what slows a whole round down cancels."""
        return statistics.median(own / theirs for own, theirs in zip(self.samples_s, other.samples_s, strict=True))


@dataclass(frozen=True, slots=True)
class Pass:
    """Work to be measured.

    Attributes:
        stages: Name and function; each receives what the one before returned, the first None.
        parameters: Tensors that are in memory before and after.
    """

    stages: tuple[tuple[str, Callable[[Any], Any]], ...]
    parameters: tuple[Tensor, ...]

    def run(self, clock: "Clock | None" = None) -> Any:
        """All stages once; returns what the last one returned."""
        value = None
        if clock is not None:
            clock.begin()
        for name, function in self.stages:
            value = function(value)
            if clock is not None:
                clock.mark(name)
        return value


class Clock:
    """Durations of the stages of a pass.

    On CUDA and ROCm the device notes the time itself as it reaches a mark, so nothing waits between stages. Elsewhere a
    mark waits for the device and reads the host's clock.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[tuple[str | None, torch.cuda.Event | float]] = []

    def begin(self) -> None:
        """A pass begins; the time since the last mark belongs to no stage."""
        self._marks.append((None, self._now()))

    def mark(self, stage: str) -> None:
        """The stage that ran since the last mark ends."""
        assert self._marks, "a pass starts with begin()"
        self._marks.append((stage, self._now()))

    def read(self) -> dict[str, float]:
        """Seconds per stage since the last reading, over all passes together."""
        synchronize(self._device)
        durations: dict[str, float] = {}
        for (_, start), (stage, end) in zip(self._marks, self._marks[1:], strict=False):
            if stage is not None:
                durations[stage] = durations.get(stage, 0.0) + _seconds_between(start, end)
        self._marks.clear()
        return durations

    def _now(self) -> torch.cuda.Event | float:
        if self._device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            return event
        synchronize(self._device)
        return time.perf_counter()


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what it was given; nothing to wait for on a CPU."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def rounds(order: Sequence[T], count: int) -> Iterator[tuple[T, ...]]:
    """`count` orders of the same items, each beginning one item later than the one before."""
    for position in range(count):
        start = position % len(order) if order else 0
        yield (*order[start:], *order[:start])


def _seconds_between(start: torch.cuda.Event | float, end: torch.cuda.Event | float) -> float:
    if isinstance(start, float) or isinstance(end, float):
        assert isinstance(start, float)
        assert isinstance(end, float)
        return end - start
    return float(start.elapsed_time(end)) / 1000
