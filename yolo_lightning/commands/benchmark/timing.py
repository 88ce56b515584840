"""Staged passes, a clock for the stages, and statistics over repeated measurements."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


@dataclass
class Spread:
    """Repeated measurements of one duration.

    Attributes:
        samples_s: Seconds, one value per round; at least one.
        median_s: Median of the samples, seconds.
        minimum_s: Shortest sample, seconds.
        maximum_s: Longest sample, seconds.
    """

    samples_s: tuple[float, ...]
    median_s: float = field(init=False)
    minimum_s: float = field(init=False)
    maximum_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.median_s = statistics.median(self.samples_s)
        self.minimum_s, self.maximum_s = min(self.samples_s), max(self.samples_s)

    def ratio_to(self, other: "Spread") -> float:
        """Return the median over the rounds of `self / other`; a slowdown of a whole round cancels."""
        return statistics.median(own / theirs for own, theirs in zip(self.samples_s, other.samples_s, strict=True))


@dataclass(frozen=True, slots=True)
class Pass:
    """Work to be measured.

    Attributes:
        stages: Name and function of each stage. A function receives the result of the previous stage, the first None.
        parameters: Tensors that are in memory before and after the pass.
    """

    stages: tuple[tuple[str, Callable[[Any], Any]], ...]
    parameters: tuple[Tensor, ...]

    def run(self, clock: "Clock | None" = None) -> Any:
        """Run all stages once and return the result of the last one."""
        value = None
        if clock is not None:
            clock.mark(None)
        for name, function in self.stages:
            value = function(value)
            if clock is not None:
                clock.mark(name)
        return value


class Clock:
    """Durations of the stages of a pass.

    On CUDA and ROCm, events on the stream record the time, so that the host does not wait between stages. On other
    devices `mark` synchronizes the device and reads the host clock.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[tuple[str | None, Any]] = []

    def mark(self, stage: str | None) -> None:
        """End `stage`, which began at the previous mark; None starts a pass."""
        if self._device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self._marks.append((stage, event))
        else:
            synchronize(self._device)
            self._marks.append((stage, time.perf_counter()))

    def read(self) -> dict[str, float]:
        """Return seconds per stage since the previous reading, summed over all passes."""
        synchronize(self._device)
        durations: dict[str, float] = {}
        for (_, start), (stage, end) in pairwise(self._marks):
            if stage is not None:
                duration = end - start if isinstance(end, float) else start.elapsed_time(end) / 1000
                durations[stage] = durations.get(stage, 0.0) + duration
        self._marks.clear()
        return durations


def synchronize(device: torch.device) -> None:
    """Wait for all queued work of an accelerator; return at once for a CPU."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def rounds(order: Sequence[T], count: int) -> Iterator[tuple[T, ...]]:
    """Yield `count` rotations of `order`; each starts one item later than the previous one."""
    for position in range(count):
        start = position % len(order) if order else 0
        yield (*order[start:], *order[:start])
