"""Selection of the algorithm of a convolution by a table, or by measurement with cached timings."""

import math
import os
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch

from yolo_lightning.conv import measurement_cache
from yolo_lightning.conv.algorithms.algorithm import Operation
from yolo_lightning.conv.algorithms.problem import Problem, Tensors
from yolo_lightning.conv.algorithms.shared import have_data, is_capturing
from yolo_lightning.conv.algorithms.table import Candidate, candidates, gradient_candidates
from yolo_lightning.errors import UserError

# Largest number of decisions in memory. A plan that exceeds it clears them all and decides again, which bounds the
# memory if every batch has another shape.
MAX_DECISIONS = 1 << 13
# Timed runs of a candidate, after one warm-up run; the shortest run counts.
REPEATS = 5
# A candidate is not run again if its shortest run takes more than this multiple of the fastest candidate's.
HOPELESS_RATIO = 2
# A candidate must be faster than the default by more than this fraction; a smaller difference may be noise.
NOISE = 0.05


class PlanKey(NamedTuple):
    """Key of a decision."""

    operation: Operation
    problem: Problem
    dtype: torch.dtype
    device: torch.device

    def in_words(self) -> str:
        """Return a description of the key without the device; it is equal in every process."""
        return f"{self.operation} {self.dtype} {self.problem}"


_PLANS: dict[str, "Plan"] = {}
"""Plans of this process by name, for registered operators."""


class Plan:
    """Plan by the table: the choice depends on the problem, dtype and device type only. Base class of `AutotunedPlan`.

    Copies of a layer share its plan. Pickling a plan keeps its settings, not its decisions.

    Args:
        name: Name for registered operators, see `plan_of`; None for a name that no other process uses.
    """

    def __init__(self, name: str | None = None) -> None:
        self.name = name or f"plan {uuid.uuid4().hex}"
        _PLANS[self.name] = self
        self.decisions: dict[PlanKey, Candidate] = {}
        """Decisions made in this process, in the order of first use."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _default_plan, ()

    def compute(self, operation: Operation, problem: Problem, tensors: Tensors) -> Tensors:
        """Compute an operation with the selected candidate."""
        key = PlanKey(operation, problem, tensors[0].dtype, tensors[0].device)
        chosen = self.decisions.get(key) or self._decide(key, tensors)
        return chosen.compute(tensors)

    def _decide(self, key: PlanKey, tensors: Tensors) -> Candidate:
        """Return and remember the candidate for a new key."""
        return self._remember(key, self._candidates(key)[0])

    def _candidates(self, key: PlanKey) -> tuple[Candidate, ...]:
        problem = key.problem
        device_type = key.device.type
        if key.operation is not Operation.GRADIENTS:
            return candidates(key.operation, problem, key.dtype, device_type)

        def separately(tensors: Tensors) -> Tensors:
            input, grad_output, weight = tensors
            (grad_input,) = self.compute(Operation.INPUT_GRADIENT, problem, (grad_output, weight))
            (grad_weight,) = self.compute(Operation.WEIGHT_GRADIENT, problem, (input, grad_output))
            return grad_input, grad_weight

        return gradient_candidates(problem, key.dtype, device_type, separately)

    def _remember(self, key: PlanKey, chosen: Candidate) -> Candidate:
        if len(self.decisions) >= MAX_DECISIONS:
            self.decisions.clear()
        self.decisions[key] = chosen
        return chosen


DEFAULT_PLAN = Plan("table")
"""Plan by the table, without timing; the default of all layers."""


def plan_of(name: str) -> Plan:
    """Return the plan of a name in a graph; for a plan of another process the default plan, with one warning."""
    if name not in _PLANS:
        warnings.warn(
            f"the saved graph was created with another plan ({name}): a table selects the algorithms of convolutions, "
            "and results differ by rounding",
            stacklevel=2,
        )
        _PLANS[name] = DEFAULT_PLAN
    return _PLANS[name]


def _default_plan() -> Plan:
    return DEFAULT_PLAN


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
        UserError: If `budget_s` is negative or not a number.
    """

    def __init__(self, budget_s: float, cache_file: str | os.PathLike[str] | None = None) -> None:
        if not (isinstance(budget_s, int | float) and budget_s >= 0):
            raise UserError(f"budget_s must be >= 0 seconds, got {budget_s!r}")
        if not isinstance(cache_file, str | os.PathLike | None) or (cache_file and Path(cache_file).is_dir()):
            raise UserError(f"cache_file must be the path of a file or None, got {cache_file!r}")
        super().__init__()
        self.budget_s = budget_s
        self.cache_file = None if cache_file is None else Path(cache_file).expanduser()
        self.spent_s = 0.0
        """Seconds that this process has spent on timing."""
        self._seconds: dict[PlanKey, dict[str, float]] = {}  # shortest run of each timed candidate
        self._stored: dict[torch.device, dict[str, Any]] = {}  # timings in the file by problem
        # The backward pass runs in one thread per device. The lock is reentrant, because timing the candidates of
        # GRADIENTS decides on the two single gradients first.
        self._lock = threading.RLock()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.budget_s, self.cache_file)

    def _decide(self, key: PlanKey, tensors: Tensors) -> Candidate:
        order = self._candidates(key)
        if len(order) == 1:
            return self._remember(key, order[0])
        if not have_data(tensors) or key.device.type == "meta" or is_capturing(key.device):
            return order[0]  # the candidates cannot be run repeatedly
        with self._lock:
            seconds = self._seconds.get(key) or self._stored_seconds(key, order)
            if not seconds and self.spent_s < self.budget_s:
                seconds = self._time(key, order, tensors)
            self._seconds[key] = seconds
            return self._remember(key, _fastest(order, seconds))

    def _stored_seconds(self, key: PlanKey, order: tuple[Candidate, ...]) -> dict[str, float]:
        """Return the usable timings in the file for a problem; the file is read once per device."""
        if key.device not in self._stored:
            self._stored[key.device] = measurement_cache.load(self.cache_file, _environment(key.device))
        stored = self._stored[key.device].get(key.in_words())
        if not isinstance(stored, dict):
            return {}
        seconds = {}
        for candidate in order:
            value = stored.get(candidate.name)
            if isinstance(value, float) and 0 <= value < math.inf:  # not for NaN
                seconds[candidate.name] = value
        return seconds

    def _time(self, key: PlanKey, order: tuple[Candidate, ...], tensors: Tensors) -> dict[str, float]:
        spent_before_s = self.spent_s
        began_s = time.perf_counter()
        seconds, failures = _shortest_runs(order, tensors)
        # Not added up: this time includes that of nested decisions on the single gradients.
        self.spent_s = spent_before_s + time.perf_counter() - began_s
        if not seconds:
            raise next(iter(failures.values()))
        if failures:
            reasons = ", ".join(f"{name!r} ({str(error)[:200]})" for name, error in failures.items())
            warnings.warn(f"convolution {key.in_words()} on {key.device}: not timed: {reasons}", stacklevel=2)
        measurement_cache.store(self.cache_file, _environment(key.device), {key.in_words(): seconds})
        return seconds


def _environment(device: torch.device) -> str:
    return " | ".join(measurement_cache.describe_environment(device).values())


def _fastest(order: tuple[Candidate, ...], seconds: Mapping[str, float]) -> Candidate:
    """Return the fastest candidate; without timings, the first one."""
    compared = dict(seconds)
    default = order[0].name
    if default in compared:
        compared[default] *= 1 - NOISE
    return min(order, key=lambda candidate: compared.get(candidate.name, math.inf))


def _shortest_runs(
    order: tuple[Candidate, ...], tensors: Tensors
) -> tuple[dict[str, float], dict[str, torch.OutOfMemoryError]]:
    """Return the shortest run of each candidate in seconds, and the errors of candidates that ran out of memory.

    The candidates take turns, so that other load on the machine affects all of them. The first turn is a warm-up, which
    compiles kernels and fills the allocator.
    """
    seconds: dict[str, float] = {}
    failures: dict[str, torch.OutOfMemoryError] = {}
    for turn in range(1 + REPEATS):
        limit_s = HOPELESS_RATIO * min(seconds.values(), default=math.inf)
        for candidate in order:
            shortest_s = seconds.get(candidate.name, math.inf)
            if candidate.name in failures or limit_s < shortest_s < math.inf:
                continue
            try:
                run_s = run_seconds(partial(candidate.compute, tensors), tensors[0].device)
            except torch.OutOfMemoryError as error:
                # Without the traceback, which refers to the buffers of the failed attempt.
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
