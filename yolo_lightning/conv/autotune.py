"""A plan that times the algorithms for a convolution once, on first sight, and keeps what it learns in a file."""

import math
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from yolo_lightning.conv.algorithms.problem import Tensors
from yolo_lightning.conv.algorithms.table import Candidate
from yolo_lightning.conv.autotune_cache import PlanCache
from yolo_lightning.conv.plan import Plan, PlanKey, is_another_ones_turn, warn_of_failure

# Timed runs of a candidate, after one that is not timed; the shortest counts.
REPEATS = 5
# Times the fastest run so far beyond which a candidate is not run again.
HOPELESS_RATIO = 2
# What is faster than the default by less than this share of its time may be so by chance.
CHANCE = 0.05


class TimedPlan(Plan):
    """Times the candidates for a problem when it first meets it, and keeps to the fastest.

    The timing uses the tensors at hand; a candidate is run a few times on them. Once the budget is spent, unknown
    problems get the default algorithm. The choice for a problem never changes within a process, nor between processes
    that read the same cache; without a cache two runs may choose differently, and then differ by rounding.

    Args:
        budget_s: Seconds that this process may spend on timing. The problem being timed when they run out is finished.
            0 times nothing and uses what the cache knows.
        cache_file: Where timings are kept between processes; several may share it. It is ignored, with a warning, if it
            cannot be read or was written with another torch, driver, device or set of algorithms, and then replaced.

    Raises:
        ValueError: If `budget_s` is negative or not a number.
    """

    def __init__(self, budget_s: float, cache_file: str | os.PathLike[str] | None = None) -> None:
        if not budget_s >= 0:
            raise ValueError(f"budget_s is {budget_s}; it must be 0 or more seconds")
        super().__init__()
        self.budget_s = budget_s
        self.cache_file = None if cache_file is None else Path(cache_file).expanduser()
        self._cache = PlanCache(self.cache_file)
        self._seconds: dict[PlanKey, dict[str, float]] = {}
        self._spent_s = 0.0
        # Backward runs in threads of its own, one for each device. Timing both gradients decides on each of them.
        self._lock = threading.RLock()

    @property
    def spent_s(self) -> float:
        """Seconds spent on timing so far."""
        return self._spent_s

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.budget_s, self.cache_file)

    def _decide(self, key: PlanKey, tensors: Tensors) -> tuple[Candidate, ...]:
        order = self._table_order(key)
        if len(order) == 1:
            return self._remember(key, order)
        if not _can_be_timed(tensors):
            return order
        with self._lock:
            seconds = self._known_seconds(key, order)
            if not seconds and self._spent_s < self.budget_s:
                seconds = self._time(key, order, tensors)
            return self._remember(key, _sorted(order, seconds))

    def _known_seconds(self, key: PlanKey, order: tuple[Candidate, ...]) -> dict[str, float]:
        if key not in self._seconds:
            names = {candidate.name for candidate in order}
            stored = self._cache.lookup(key.device, key.in_words())
            known = {name: seconds for name, seconds in stored.items() if name in names}
            if not known:
                return {}
            self._seconds[key] = known
        return self._seconds[key]

    def _time(self, key: PlanKey, order: tuple[Candidate, ...], tensors: Tensors) -> dict[str, float]:
        spent_before_s, start = self._spent_s, time.perf_counter()
        seconds, failures = _shortest_runs(order, tensors)
        # Not a sum: decisions on the single gradients, made while both were timed, are part of this time.
        self._spent_s = spent_before_s + time.perf_counter() - start
        if not seconds:
            raise next(iter(failures.values()))
        if failures:
            warn_of_failure(key, failures, f"choosing among {', '.join(seconds)}")
        self._seconds[key] = seconds
        self._cache.store(key.device, key.in_words(), seconds)
        return seconds

    def _seconds_of(self, key: PlanKey) -> Mapping[str, float]:
        return dict(self._seconds.get(key, {}))


def _sorted(order: tuple[Candidate, ...], seconds: Mapping[str, float]) -> tuple[Candidate, ...]:
    """The fastest first, then what was not timed or failed, in the order of the table."""
    rank = {name: value * (1 - CHANCE if name == order[0].name else 1) for name, value in seconds.items()}
    return tuple(sorted(order, key=lambda candidate: rank.get(candidate.name, math.inf)))


def _can_be_timed(tensors: Tensors) -> bool:
    """Whether running a candidate several times is real work and leaves no trace in a graph being recorded."""
    device = tensors[0].device
    return (
        all(type(tensor) in (Tensor, nn.Parameter) for tensor in tensors)
        and device.type != "meta"
        and not torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        and not torch.compiler.is_compiling()
        and not (device.type == "cuda" and torch.cuda.is_current_stream_capturing())
    )


def _shortest_runs(order: tuple[Candidate, ...], tensors: Tensors) -> tuple[dict[str, float], dict[str, RuntimeError]]:
    """Seconds of the shortest run of each candidate, by name, and why the others cannot do it.

    The candidates take turns, so that whatever else the machine does for a while disturbs all of them. The first turn
    compiles kernels and fills the allocator, and is not timed.
    """
    seconds: dict[str, float] = {}
    failures: dict[str, RuntimeError] = {}
    for turn in range(1 + REPEATS):
        limit_s = HOPELESS_RATIO * min(seconds.values(), default=math.inf)
        for candidate in order:
            shortest_s = seconds.get(candidate.name, math.inf)
            if candidate.name in failures or limit_s < shortest_s < math.inf:
                continue
            try:
                run_s = _timed_run(candidate, tensors)
            except RuntimeError as error:
                if not is_another_ones_turn(candidate, error):
                    raise
                failures[candidate.name] = error.with_traceback(None)
                seconds.pop(candidate.name, None)
                continue
            if turn > 0:
                seconds[candidate.name] = min(shortest_s, run_s)
    return seconds, failures


def _timed_run(candidate: Candidate, tensors: Tensors) -> float:
    device = tensors[0].device
    _synchronize(device)
    start = time.perf_counter()
    candidate.compute(tensors)
    _synchronize(device)
    return time.perf_counter() - start


def _synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
