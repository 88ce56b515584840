"""An algorithm of the table: the products that it computes, and the problems that it supports."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from yolo_lightning.conv.algorithms.problem import Problem, Tensors


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


Product = Callable[..., Tensor | Tensors]
"""Function of the tensors of an operation and the problem."""


@dataclass(frozen=True)
class Algorithm:
    """One algorithm, defined at the end of the file that contains its functions."""

    name: str
    products: dict[Operation, Product]  # the operations that the algorithm can compute
    serves: Callable[[Problem, torch.dtype, str], bool]  # whether the algorithm supports a problem, dtype, device type
