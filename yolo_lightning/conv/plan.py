"""Selection of the algorithm of a convolution by a table; `autotune.AutotunedPlan` selects by measurement."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from yolo_lightning.conv.algorithms.problem import Problem, Tensors
from yolo_lightning.conv.algorithms.table import Candidate, Operation, candidates, gradient_candidates

# Largest number of decisions in memory. A plan that exceeds it clears them all and decides again, which bounds the
# memory if every batch has another shape.
MAX_DECISIONS = 1 << 13
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


@dataclass(frozen=True)
class PlannedConvolution:
    """One decision of a plan."""

    operation: Operation  # the computed product
    problem: str  # description of sizes, arguments, layout and dtype
    algorithm: str  # name of the algorithm that computes the product
    seconds: Mapping[str, float]  # shortest run of each timed candidate; empty if none was timed


class Plan:
    """Plan by the table: the choice depends on the problem, dtype and device type only. Base class of `AutotunedPlan`.

    If an algorithm runs out of memory, the plan uses the next candidate for this problem from then on, with a warning.
    Copies of a layer share its plan. Pickling a plan keeps its settings, not its decisions.
    """

    def __init__(self) -> None:
        self._orders: dict[PlanKey, tuple[Candidate, ...]] = {}
        self._seconds: dict[PlanKey, dict[str, float]] = {}  # shortest run of each timed candidate

    def forward(self, input: Tensor, weight: Tensor, problem: Problem) -> Tensor:
        return self._compute(Operation.FORWARD, problem, (input, weight))[0]

    def input_gradient(self, grad_output: Tensor, weight: Tensor, problem: Problem) -> Tensor:
        return self._compute(Operation.INPUT_GRADIENT, problem, (grad_output, weight))[0]

    def weight_gradient(self, input: Tensor, grad_output: Tensor, problem: Problem) -> Tensor:
        return self._compute(Operation.WEIGHT_GRADIENT, problem, (input, grad_output))[0]

    def gradients(self, input: Tensor, grad_output: Tensor, weight: Tensor, problem: Problem) -> tuple[Tensor, Tensor]:
        """Return the input gradient and the weight gradient."""
        grad_input, grad_weight = self._compute(Operation.GRADIENTS, problem, (input, grad_output, weight))
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

    def _compute(self, operation: Operation, problem: Problem, tensors: Tensors) -> Tensors:
        """Compute with the first candidate that succeeds, and drop the candidates before it."""
        key = PlanKey(operation, problem, tensors[0].dtype, tensors[0].device)
        order = self._orders.get(key) or self._decide(key, tensors)
        failures: dict[str, RuntimeError] = {}
        for position, candidate in enumerate(order):
            try:
                results = candidate.compute(tensors)
            except RuntimeError as error:
                if not allows_fallback(candidate, error):
                    raise
                # Without the traceback, which refers to the buffers of the failed attempt.
                failures[candidate.name] = error.with_traceback(None)
                continue
            if failures:
                self._remember(key, order[position:])
                warn_of_failure(key, failures, f"using {candidate.name!r}")
            return results
        raise next(iter(failures.values()))

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
        self._orders[key] = order
        return order


DEFAULT_PLAN = Plan()
"""Plan by the table, without timing; the default of all layers."""


def _default_plan() -> Plan:
    return DEFAULT_PLAN


def allows_fallback(candidate: Candidate, error: RuntimeError) -> bool:
    """Return whether the next candidate may be tried: out of memory, or the candidate may reject problems."""
    is_out_of_memory = isinstance(error, torch.OutOfMemoryError) or any(
        words in str(error) for words in OUT_OF_MEMORY_MESSAGES
    )
    return is_out_of_memory or candidate.may_refuse


def warn_of_failure(key: PlanKey, failures: Mapping[str, RuntimeError], consequence: str) -> None:
    """Warn about candidates that failed for a problem, with their errors and the consequence."""
    reasons = ", ".join(
        f"{name!r} failed ({str(error).partition(chr(10))[0][:200]})" for name, error in failures.items()
    )
    warnings.warn(f"convolution {key.in_words()} on {key.device}: {reasons}; {consequence}", stacklevel=2)
