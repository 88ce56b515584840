"""Plan that measures the candidate algorithms of a convolution on first use and caches the timings in a file."""

import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from yolo_lightning.conv.algorithms.problem import Tensors
from yolo_lightning.conv.algorithms.shared import have_data, is_capturing
from yolo_lightning.conv.algorithms.table import Candidate
from yolo_lightning.conv.measurement_cache import MeasurementCache, describe_environment
from yolo_lightning.conv.plan import Plan, PlanKey, allows_fallback, warn_of_failure

# Timed runs of a candidate, after one warm-up run; the shortest run counts.
REPEATS = 5
# A candidate is not run again if its shortest run takes more than this multiple of the fastest candidate's.
HOPELESS_RATIO = 2
# A candidate must be faster than the default by more than this fraction; a smaller difference may be noise.
NOISE = 0.05


class AutotunedPlan(Plan):
    """Plan that times the candidates of a problem on first use and then uses the fastest one.

    Candidates are timed on the tensors of the first call. After the budget is spent, new problems use the default of
    the table. The choice for a problem is constant within a process, and between processes that read the same cache
    file. Without a cache file, two runs may choose different algorithms, and their results then differ by rounding.

    Args:
        budget_s: Limit in seconds for the timing in this process. A problem that is being timed when the limit is
            reached is finished. With 0 the plan uses cached timings only.
        cache_file: File for timings; several processes may share it. Only timings of the same device, driver, torch
            version and algorithms are used. A file that cannot be read is ignored with a warning and replaced.

    Raises:
        ValueError: If `budget_s` is negative or not a number.
    """

    def __init__(self, budget_s: float, cache_file: str | os.PathLike[str] | None = None) -> None:
        if not budget_s >= 0:
            raise ValueError(f"budget_s must be >= 0 seconds, got {budget_s}")
        super().__init__()
        self.budget_s = budget_s
        self.cache_file = None if cache_file is None else Path(cache_file).expanduser()
        self._cache = MeasurementCache(self.cache_file)
        self._environments: dict[torch.device, str] = {}
        self._stored: dict[str, dict[str, Any]] = {}
        self.spent_s = 0.0
        """Seconds that this process has spent on timing."""
        # The backward pass runs in one thread per device. The lock is reentrant, because timing the candidates of
        # GRADIENTS decides on the two single gradients first.
        self._lock = threading.RLock()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.budget_s, self.cache_file)

    def _decide(self, key: PlanKey, tensors: Tensors) -> tuple[Candidate, ...]:
        order = self._table_order(key)
        if len(order) == 1:
            return self._remember(key, order)
        device = tensors[0].device
        if not have_data(tensors) or device.type == "meta" or is_capturing(device):
            return order  # the candidates cannot be run repeatedly
        with self._lock:
            seconds = self._known_seconds(key, order)
            if not seconds and self.spent_s < self.budget_s:
                seconds = self._time(key, order, tensors)
            return self._remember(key, _sorted(order, seconds))

    def _known_seconds(self, key: PlanKey, order: tuple[Candidate, ...]) -> dict[str, float]:
        if key not in self._seconds:
            stored = self._stored_for(key.device).get(key.in_words())
            values = stored if isinstance(stored, dict) else {}
            known = {candidate.name: values.get(candidate.name) for candidate in order}
            # The comparison also excludes NaN.
            valid = {name: value for name, value in known.items() if isinstance(value, float) and 0 <= value < math.inf}
            if not valid:
                return {}
            self._seconds[key] = valid
        return self._seconds[key]

    def _stored_for(self, device: torch.device) -> dict[str, Any]:
        """Return the timings in the file for the environment of a device, by problem; the file is read once."""
        if device not in self._environments:
            self._environments[device] = environment = " | ".join(describe_environment(device).values())
            self._stored[environment] = self._cache.load(environment)
        return self._stored[self._environments[device]]

    def _time(self, key: PlanKey, order: tuple[Candidate, ...], tensors: Tensors) -> dict[str, float]:
        spent_before_s, start = self.spent_s, time.perf_counter()
        seconds, failures = _shortest_runs(order, tensors)
        # Not added up: this time includes that of nested decisions on the single gradients.
        self.spent_s = spent_before_s + time.perf_counter() - start
        if not seconds:
            raise next(iter(failures.values()))
        if failures:
            warn_of_failure(key, failures, f"choosing among {', '.join(seconds)}")
        self._seconds[key] = seconds
        self._cache.store(self._environments[key.device], {key.in_words(): seconds})
        return seconds


def _sorted(order: tuple[Candidate, ...], seconds: Mapping[str, float]) -> tuple[Candidate, ...]:
    """Sort the candidates by time; those without a time come last, in the order of the table."""
    rank = {name: value * (1 - NOISE if name == order[0].name else 1) for name, value in seconds.items()}
    return tuple(sorted(order, key=lambda candidate: rank.get(candidate.name, math.inf)))


def _shortest_runs(order: tuple[Candidate, ...], tensors: Tensors) -> tuple[dict[str, float], dict[str, RuntimeError]]:
    """Return the shortest run of each candidate in seconds, and the errors of the candidates that failed.

    The candidates take turns, so that other load on the machine affects all of them. The first turn is a warm-up, which
    compiles kernels and fills the allocator.
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
                run_s = run_seconds(partial(candidate.compute, tensors), tensors[0].device)
            except RuntimeError as error:
                if not allows_fallback(candidate, error):
                    raise
                failures[candidate.name] = error.with_traceback(None)
                seconds.pop(candidate.name, None)
                continue
            if turn > 0:
                seconds[candidate.name] = min(shortest_s, run_s)
    return seconds, failures


def run_seconds(work: Callable[[], object], device: torch.device) -> float:
    """Return the duration of one call, including the work that it queues on an accelerator."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    start = time.perf_counter()
    work()
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter() - start
