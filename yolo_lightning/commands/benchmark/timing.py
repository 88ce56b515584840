"""Staged passes, the time of their stages, and statistics over repeated measurements."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


@dataclass
class Spread:
    """Repeated measurements of one duration: one value per round, their median, minimum and maximum, in seconds."""

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

    def run(self) -> Any:
        """Run all stages once and return the result of the last one."""
        value = None
        for _, function in self.stages:
            value = function(value)
        return value

    def time(self, device: torch.device, calls: int = 1) -> dict[str, float]:
        """Run the pass `calls` times and return the mean seconds of each stage.

        On CUDA and ROCm, events on the stream record the time, so that the host does not wait between stages. On other
        devices the host waits for the device after every stage.
        """
        mark = _event if device.type == "cuda" else _host_time
        marks: list[tuple[str, Any, Any]] = []
        for _ in range(calls):
            start, value = mark(device), None
            for name, function in self.stages:
                value = function(value)
                end = mark(device)
                marks.append((name, start, end))
                start = end
        synchronize(device)
        totals_s = dict.fromkeys((name for name, _ in self.stages), 0.0)
        for name, start, end in marks:
            totals_s[name] += end - start if isinstance(end, float) else start.elapsed_time(end) / 1000
        return {name: total_s / calls for name, total_s in totals_s.items()}


def _event(device: torch.device) -> Any:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def _host_time(device: torch.device) -> float:
    synchronize(device)
    return time.perf_counter()


def synchronize(device: torch.device) -> None:
    """Wait for all queued work of an accelerator; return at once for a CPU."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def rounds(order: Sequence[T], count: int) -> Iterator[tuple[T, ...]]:
    """Yield `count` rotations of `order`; each starts one item later than the previous one."""
    for position in range(count):
        start = position % len(order) if order else 0
        yield (*order[start:], *order[:start])
