"""Selection of the algorithm of a convolution by a table, or by measurement with cached timings."""

import itertools
import math
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from yolo_lightning.conv.algorithms.algorithm import Operation
from yolo_lightning.conv.algorithms.problem import Problem, Tensors
from yolo_lightning.conv.algorithms.shared import have_data, is_capturing
from yolo_lightning.conv.algorithms.table import Candidate, candidates, gradient_candidates
from yolo_lightning.conv.measurement_cache import MeasurementCache, describe_environment

# Largest number of decisions in memory. A plan that exceeds it clears them all and decides again, which bounds the
# memory if every batch has another shape.
MAX_DECISIONS = 1 << 13
# Timed runs of a candidate, after one warm-up run; the shortest run counts.
REPEATS = 5
# A candidate is not run again if its shortest run takes more than this multiple of the fastest candidate's.
HOPELESS_RATIO = 2
# A candidate must be faster than the default by more than this fraction; a smaller difference may be noise.
NOISE = 0.05
# Calls of a product for which an out-of-memory error excludes the larger algorithms; doubled after each further error.
# Counted in calls, because the ranks of a distributed training make equal calls, but at different times.
FIRST_DEMOTION_CALLS = 64
LONGEST_DEMOTION_CALLS = 1 << 16
# Messages of other out-of-memory errors than `torch.OutOfMemoryError`: from the CPU allocator, the runtime, the BLAS.
OUT_OF_MEMORY_MESSAGES = ("can't allocate memory", "not enough memory", "out of memory", "STATUS_ALLOC_FAILED")


class PlanKey(NamedTuple):
    """Key of a decision."""

    operation: Operation
    problem: Problem
    dtype: torch.dtype
    device: torch.device

    def in_words(self) -> str:
        """Return a description of the key without the device; it is equal in every process."""
        problem = self.problem
        names = ("stride", "padding", "dilation")
        sizes = {"input": problem.input_size, "weight": problem.weight_size, **{n: getattr(problem, n) for n in names}}
        words = " ".join(f"{name} {'x'.join(map(str, size))}" for name, size in sizes.items())
        layout = "NHWC" if problem.channels_last else "NCHW"
        return f"{self.operation}: {words} groups {problem.groups} {layout} {str(self.dtype).removeprefix('torch.')}"


@dataclass
class _Demotion:
    """Exclusion of algorithms after an out-of-memory error."""

    workspace: int  # only algorithms with a smaller workspace are used, in bytes
    calls: int  # length of the exclusion
    left: int  # calls until its end


@dataclass(frozen=True)
class PlannedConvolution:
    """One decision of a plan."""

    operation: Operation  # the computed product
    problem: str  # description of sizes, arguments, layout and dtype
    algorithm: str  # name of the algorithm that computes the product
    seconds: Mapping[str, float]  # shortest run of each timed candidate; empty if none was timed


_plans: weakref.WeakValueDictionary[str, "Plan"] = weakref.WeakValueDictionary()
_numbers = itertools.count()


class Plan:
    """Plan by the table: the choice depends on the problem, dtype and device type only. Base class of `AutotunedPlan`.

    If an algorithm runs out of memory, the plan warns and tries only candidates that declare a smaller workspace. The
    plan uses them for this problem for the next `FIRST_DEMOTION_CALLS` calls, because one peak does not last, and then
    returns to the selected algorithm. Every further error doubles the number of calls. Without a smaller candidate that
    succeeds, the error is raised, so that the caller can divide the batch.

    Copies of a layer share its plan. Pickling a plan keeps its settings, not its decisions.
    """

    def __init__(self) -> None:
        self.handle = f"plan {next(_numbers)}"
        """Name of the plan in this process, for registered operators (see `plan_of`)."""
        _plans[self.handle] = self
        self._orders: dict[PlanKey, tuple[Candidate, ...]] = {}
        self._demotions: dict[PlanKey, _Demotion] = {}
        self._seconds: dict[PlanKey, dict[str, float]] = {}  # shortest run of each timed candidate

    def forward(self, input: Tensor, weight: Tensor, problem: Problem) -> Tensor:
        return self.compute(Operation.FORWARD, problem, (input, weight))[0]

    def input_gradient(self, grad_output: Tensor, weight: Tensor, problem: Problem) -> Tensor:
        return self.compute(Operation.INPUT_GRADIENT, problem, (grad_output, weight))[0]

    def weight_gradient(self, input: Tensor, grad_output: Tensor, problem: Problem) -> Tensor:
        return self.compute(Operation.WEIGHT_GRADIENT, problem, (input, grad_output))[0]

    def gradients(self, input: Tensor, grad_output: Tensor, weight: Tensor, problem: Problem) -> tuple[Tensor, Tensor]:
        """Return the input gradient and the weight gradient."""
        grad_input, grad_weight = self.compute(Operation.GRADIENTS, problem, (input, grad_output, weight))
        return grad_input, grad_weight

    def describe(self) -> list[PlannedConvolution]:
        """Return the decisions made in this process, in the order of first use."""
        return [
            PlannedConvolution(key.operation, key.in_words(), order[0].name, self._seconds.get(key, {}))
            for key, order in list(self._orders.items())
        ]

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _default_plan, ()

    def compute(self, operation: Operation, problem: Problem, tensors: Tensors) -> Tensors:
        """Compute an operation with the first candidate that is allowed and succeeds."""
        key = PlanKey(operation, problem, tensors[0].dtype, tensors[0].device)
        order = self._orders.get(key) or self._decide(key, tensors)
        limit = self._workspace_limit(key) if self._demotions else math.inf
        failures: dict[str, RuntimeError] = {}
        refused: set[str] = set()
        is_out_of_memory = False
        for candidate in order:
            if candidate.workspace >= limit:
                continue
            try:
                results = candidate.compute(tensors)
            except RuntimeError as error:
                if not _allows_fallback(candidate, error):
                    raise
                # Without the traceback, which refers to the buffers of the failed attempt.
                failures[candidate.name] = error.with_traceback(None)
                if ran_out_of_memory(error):
                    limit, is_out_of_memory = candidate.workspace, True
                else:
                    refused.add(candidate.name)
                continue
            if failures:
                if refused:
                    self._remember(key, tuple(one for one in order if one.name not in refused))
                if is_out_of_memory:
                    self._demote(key, int(limit), candidate, failures)
                else:
                    _warn_of_failure(key, failures, f"using {candidate.name!r}")
            return results
        raise next(iter(failures.values()))

    def _workspace_limit(self, key: PlanKey) -> float:
        """Count a call, and return the workspace in bytes that the algorithms for it must be below."""
        demotion = self._demotions.get(key)
        if demotion is None or demotion.left == 0:
            return math.inf
        demotion.left -= 1
        return demotion.workspace

    def _demote(self, key: PlanKey, workspace: int, candidate: Candidate, failures: Mapping[str, RuntimeError]) -> None:
        """Use algorithms with a smaller workspace only, for some calls."""
        before = self._demotions.get(key)
        calls = FIRST_DEMOTION_CALLS if before is None else min(2 * before.calls, LONGEST_DEMOTION_CALLS)
        self._demotions[key] = _Demotion(workspace, calls, calls)
        _warn_of_failure(key, failures, f"using {candidate.name!r} for the next {calls} calls")

    def _decide(self, key: PlanKey, tensors: Tensors) -> tuple[Candidate, ...]:
        """Return and remember the candidates for a new key, the selected one first."""
        return self._remember(key, self._table_order(key))

    def _table_order(self, key: PlanKey) -> tuple[Candidate, ...]:
        problem, dtype, device_type = key.problem, key.dtype, key.device.type
        if key.operation is not Operation.GRADIENTS:
            return candidates(key.operation, problem, dtype, device_type)

        def separately(tensors: Tensors) -> Tensors:
            input, grad_output, weight = tensors
            grad_input = self.input_gradient(grad_output, weight, problem)
            return grad_input, self.weight_gradient(input, grad_output, problem)

        return gradient_candidates(problem, dtype, device_type, separately)

    def _remember(self, key: PlanKey, order: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
        if len(self._orders) >= MAX_DECISIONS:
            self._orders.clear()
            self._demotions.clear()
        self._orders[key] = order
        return order


DEFAULT_PLAN = Plan()
"""Plan by the table, without timing; the default of all layers."""


def plan_of(handle: str) -> Plan:
    """Return the plan registered under `handle`, or the default plan if it was never created or has been freed."""
    return _plans.get(handle, DEFAULT_PLAN)


def _default_plan() -> Plan:
    return DEFAULT_PLAN


def _allows_fallback(candidate: Candidate, error: RuntimeError) -> bool:
    """Return whether the next candidate may be tried: out of memory, or the candidate may reject problems."""
    return ran_out_of_memory(error) or candidate.may_refuse


def ran_out_of_memory(error: RuntimeError) -> bool:
    """Return whether an allocation failed, on an accelerator or on the CPU."""
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in OUT_OF_MEMORY_MESSAGES)


def _warn_of_failure(key: PlanKey, failures: Mapping[str, RuntimeError], consequence: str) -> None:
    """Warn about candidates that failed for a problem, with their errors and the consequence."""
    reasons = ", ".join(
        f"{name!r} failed ({str(error).partition(chr(10))[0][:200]})" for name, error in failures.items()
    )
    warnings.warn(f"convolution {key.in_words()} on {key.device}: {reasons}; {consequence}", stacklevel=2)


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
            _warn_of_failure(key, failures, f"choosing among {', '.join(seconds)}")
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
                if not _allows_fallback(candidate, error):
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
