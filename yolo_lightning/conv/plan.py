"""Decides which algorithm computes which convolution, here by a fixed table, in `timed_plan` by measuring."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from yolo_lightning.conv.algorithms.problem import Problem, Tensors
from yolo_lightning.conv.algorithms.table import Candidate, Operation, candidates, gradient_candidates

# Orders that a plan remembers before it forgets them all and looks them up again: a bound on memory where every
# batch has another shape.
REMEMBERED_ORDERS = 1 << 13
# What torch says, besides `torch.OutOfMemoryError`, when memory runs out: on the CPU, in the runtime, in the BLAS.
OUT_OF_MEMORY_WORDS = ("can't allocate memory", "not enough memory", "out of memory", "STATUS_ALLOC_FAILED")


class PlanKey(NamedTuple):
    """What a decision is made for."""

    operation: Operation
    problem: Problem
    dtype: torch.dtype
    device: torch.device

    def in_words(self) -> str:
        """All but the device; the same in every process."""
        problem = self.problem
        sizes = {
            "input": problem.input_size,
            "weight": problem.weight_size,
            "stride": problem.stride,
            "padding": problem.padding,
            "dilation": problem.dilation,
        }
        words = " ".join(f"{name} {'x'.join(map(str, size))}" for name, size in sizes.items())
        layout = "NHWC" if problem.channels_last else "NCHW"
        return f"{self.operation}: {words} groups {problem.groups} {layout} {str(self.dtype).removeprefix('torch.')}"


@dataclass(frozen=True)
class PlannedConvolution:
    """One decision of a plan.

    Attributes:
        operation: The product that is computed.
        problem: Sizes, arguments, layout and dtype, in words.
        dtype: Of the tensors.
        device: Where they are.
        algorithm: What computes it.
        seconds: Shortest run of each candidate that was timed, here or in the process that wrote the cache; empty where
            the choice is the default.
    """

    operation: Operation
    problem: str
    dtype: torch.dtype
    device: torch.device
    algorithm: str
    seconds: Mapping[str, float]


class Plan:
    """The fixed table: the same algorithm for the same problem everywhere. Base of `TimedPlan`.

    An algorithm that runs out of memory is replaced by the next candidate, with a warning, and is not tried again for
    this problem while the plan lives. Copies of a layer share its plan; a pickled plan keeps its settings only.
    """

    def __init__(self) -> None:
        self._orders: dict[PlanKey, tuple[Candidate, ...]] = {}

    def forward(self, input: Tensor, weight: Tensor, problem: Problem) -> Tensor:
        """The output, `problem.output_size` in `problem.memory_format`."""
        return self._compute(Operation.FORWARD, problem, (input, weight))[0]

    def input_gradient(self, grad_output: Tensor, weight: Tensor, problem: Problem) -> Tensor:
        """The gradient for the input, `problem.input_size` in `problem.memory_format`."""
        return self._compute(Operation.INPUT_GRADIENT, problem, (grad_output, weight))[0]

    def weight_gradient(self, input: Tensor, grad_output: Tensor, problem: Problem) -> Tensor:
        """The gradient for the weight, `problem.weight_size`, contiguous."""
        return self._compute(Operation.WEIGHT_GRADIENT, problem, (input, grad_output))[0]

    def gradients(self, input: Tensor, grad_output: Tensor, weight: Tensor, problem: Problem) -> tuple[Tensor, Tensor]:
        """The gradients for the input and for the weight."""
        grad_input, grad_weight = self._compute(Operation.GRADIENTS, problem, (input, grad_output, weight))
        return grad_input, grad_weight

    def describe(self) -> list[PlannedConvolution]:
        """What was decided in this process, in the order of first sight."""
        return [
            PlannedConvolution(
                key.operation, key.in_words(), key.dtype, key.device, order[0].name, self._seconds_of(key)
            )
            for key, order in list(self._orders.items())
        ]

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _fixed, ()

    def _compute(self, operation: Operation, problem: Problem, tensors: Tensors) -> Tensors:
        key = PlanKey(operation, problem, tensors[0].dtype, tensors[0].device)
        order = self._orders.get(key) or self._decide(key, tensors)
        try:
            return order[0].compute(tensors)
        except RuntimeError as error:
            if not is_another_ones_turn(order[0], error):
                raise
            # The traceback would keep the buffers of the failed attempt alive during the next one.
            failure = error.with_traceback(None)
        return self._fall_back(key, order, tensors, failure)

    def _fall_back(
        self, key: PlanKey, order: tuple[Candidate, ...], tensors: Tensors, failure: RuntimeError
    ) -> Tensors:
        """Compute with the first candidate after the failed one that can, and strike those before it."""
        failures = {order[0].name: failure}
        for position, candidate in enumerate(order[1:], start=1):
            try:
                results = candidate.compute(tensors)
            except RuntimeError as error:
                if not is_another_ones_turn(candidate, error):
                    raise
                failures[candidate.name] = error.with_traceback(None)
                continue
            self._remember(key, order[position:])
            warn_of_failure(key, failures, f"{candidate.name!r} takes over")
            return results
        raise failure

    def _decide(self, key: PlanKey, tensors: Tensors) -> tuple[Candidate, ...]:
        """The candidates for a key seen for the first time, the one to use first; remembers them."""
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
        if len(self._orders) >= REMEMBERED_ORDERS:
            self._orders.clear()
        self._orders[key] = order
        return order

    def _seconds_of(self, key: PlanKey) -> Mapping[str, float]:
        return {}


FIXED = Plan()
"""The fixed table without timing."""


def _fixed() -> Plan:
    return FIXED


def is_another_ones_turn(candidate: Candidate, error: RuntimeError) -> bool:
    """Whether the error means that the next candidate has to do it: no memory left, or refused."""
    is_out_of_memory = isinstance(error, torch.OutOfMemoryError) or any(
        words in str(error) for words in OUT_OF_MEMORY_WORDS
    )
    return is_out_of_memory or candidate.may_refuse


def warn_of_failure(key: PlanKey, failures: Mapping[str, RuntimeError], consequence: str) -> None:
    """Name the problem, the candidates that failed with what they said, and what happens instead."""
    reasons = ", ".join(
        f"{name!r} failed ({str(error).partition(chr(10))[0][:200]})" for name, error in failures.items()
    )
    warnings.warn(f"convolution {key.in_words()} on {key.device}: {reasons}; {consequence}", stacklevel=2)
