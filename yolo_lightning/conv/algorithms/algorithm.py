"""An algorithm of the table: the products that it computes, and the problems that it supports."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

import torch
from torch import Tensor

from yolo_lightning.conv.algorithms.problem import Problem, Tensors

Operand = TypeVar("Operand")


class Operation(StrEnum):
    """A product of a convolution."""

    FORWARD = "forward"
    """`(input, weight)` to `(output,)`."""
    INPUT_GRADIENT = "input_gradient"
    """`(grad_output, weight)` to `(grad_input,)`."""
    WEIGHT_GRADIENT = "weight_gradient"
    """`(input, grad_output)` to `(grad_weight,)`."""
    GRADIENTS = "gradients"
    """`(input, grad_output, weight)` to `(grad_input, grad_weight)`."""


def operands_of(operation: Operation, input: Operand, grad_output: Operand, weight: Operand) -> tuple[Operand, ...]:
    """Return those of three tensors, or of their sizes, that an operation reads."""
    return {
        Operation.FORWARD: (input, weight),
        Operation.INPUT_GRADIENT: (grad_output, weight),
        Operation.WEIGHT_GRADIENT: (input, grad_output),
        Operation.GRADIENTS: (input, grad_output, weight),
    }[operation]


def result_sizes(operation: Operation, problem: Problem) -> tuple[tuple[int, int, int, int], ...]:
    """Return the sizes of the results of an operation."""
    return {
        Operation.FORWARD: (problem.output_size,),
        Operation.INPUT_GRADIENT: (problem.input_size,),
        Operation.WEIGHT_GRADIENT: (problem.weight_size,),
        Operation.GRADIENTS: (problem.input_size, problem.weight_size),
    }[operation]


def single_or_all(results: Sequence[Any]) -> Any:
    """Return the result of an operation with one result, else the tuple of the results."""
    if len(results) == 1:
        return results[0]
    return results


Product = Callable[..., Tensor | Tensors]
"""Function of the tensors of an operation and the problem."""


@dataclass(frozen=True)
class Algorithm:
    """One algorithm, defined at the end of the file that contains its functions."""

    name: str
    products: dict[Operation, Product]  # the operations that the algorithm can compute
    serves: Callable[[Problem, torch.dtype, str], bool]  # whether the algorithm supports a problem, dtype, device type
