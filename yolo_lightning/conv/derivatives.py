"""Derivatives of the products of a convolution, for the autograd functions and for the registered operators.

Convolution is linear in the input and in the weight, so the derivatives of each product are compositions of the other
products. Double backward therefore needs no further formulas and never differentiates through an algorithm, which may
write into buffers.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from operator import add
from typing import Any

from torch import Tensor

from yolo_lightning.conv.algorithms.algorithm import Operation

MaybeTensor = Tensor | None
Gradients = tuple[MaybeTensor, ...]
"""One gradient per tensor of the operation; None if it is not needed or zero."""


DifferentiableProduct = Callable[..., Any]
"""Function `(operation, *tensors, like=None)` that computes an operation of one convolution for autograd.

For a single gradient, `like` has the size of the result, or is None if this tensor was not saved: autograd functions
know the size.
"""


def derivatives(
    operation: Operation,
    product: DifferentiableProduct,
    saved: Sequence[Tensor],
    needs: Sequence[bool],
    directions: Sequence[MaybeTensor],
) -> Gradients:
    """Return the vector-Jacobian product of an operation.

    Args:
        operation: The operation.
        product: Computes further operations of the same convolution.
        saved: The tensors of the operation. A tensor may be None if no derivative needs it.
        needs: Whether the gradient of each tensor is needed.
        directions: The gradient of each result of the operation; None for zero.
    """
    if all(direction is None for direction in directions):
        return (None,) * len(saved)
    if operation is Operation.GRADIENTS:
        return _of_gradients(product, saved, needs, directions)
    (along,) = directions
    first, second = saved
    assert along is not None
    if operation is Operation.FORWARD and needs[0] and needs[1]:
        by_both: Gradients = product(Operation.GRADIENTS, first, along, second)
        return by_both
    by_first: MaybeTensor = None
    by_second: MaybeTensor = None
    if operation is Operation.FORWARD:
        if needs[0]:
            by_first = product(Operation.INPUT_GRADIENT, along, second, like=first)
        if needs[1]:
            by_second = product(Operation.WEIGHT_GRADIENT, first, along, like=second)
    elif operation is Operation.INPUT_GRADIENT:
        if needs[0]:
            by_first = product(Operation.FORWARD, along, second)
        if needs[1]:
            by_second = product(Operation.WEIGHT_GRADIENT, along, first, like=second)
    else:
        if needs[0]:
            by_first = product(Operation.INPUT_GRADIENT, second, along, like=first)
        if needs[1]:
            by_second = product(Operation.FORWARD, first, along)
    return by_first, by_second


def tangents_of_results(
    operation: Operation,
    product: DifferentiableProduct,
    saved: Sequence[Tensor],
    tangents: Sequence[MaybeTensor],
) -> Gradients:
    """Return the Jacobian-vector product of an operation, which is linear in each of its tensors.

    Args:
        operation: The operation.
        product: Computes further operations of the same convolution.
        saved: The tensors of the operation.
        tangents: The tangent of each tensor; None for zero.

    Returns:
        The tangent of each result; None for zero.
    """
    if operation is Operation.GRADIENTS:
        input, grad_output, weight = saved
        along_input, along_grad, along_weight = tangents
        tangent_of_input = tangents_of_results(
            Operation.INPUT_GRADIENT, product, (grad_output, weight), (along_grad, along_weight)
        )
        tangent_of_weight = tangents_of_results(
            Operation.WEIGHT_GRADIENT, product, (input, grad_output), (along_input, along_grad)
        )
        return *tangent_of_input, *tangent_of_weight
    first, second = saved
    along_first, along_second = tangents
    terms: list[Tensor] = []
    if along_first is not None:
        terms.append(product(operation, along_first, second))
    if along_second is not None:
        terms.append(product(operation, first, along_second))
    return (_sum(terms),)


def _sum(terms: Sequence[Tensor]) -> MaybeTensor:
    """Return the sum of terms; None, which stands for zero, without a term."""
    if not terms:
        return None
    return reduce(add, terms)


def _of_gradients(
    product: DifferentiableProduct, saved: Sequence[Tensor], needs: Sequence[bool], directions: Sequence[MaybeTensor]
) -> Gradients:
    input, grad_output, weight = saved
    along_input, along_weight = directions
    by_input = None
    by_grad_output = None
    by_weight = None
    if along_weight is not None and needs[0]:
        by_input = product(Operation.INPUT_GRADIENT, grad_output, along_weight, like=input)
    if along_input is not None and needs[2]:
        by_weight = product(Operation.WEIGHT_GRADIENT, along_input, grad_output, like=weight)
    if needs[1]:
        terms: list[Tensor] = []
        if along_input is not None:
            terms.append(product(Operation.FORWARD, along_input, weight))
        if along_weight is not None:
            terms.append(product(Operation.FORWARD, input, along_weight))
        by_grad_output = _sum(terms)
    return by_input, by_grad_output, by_weight
