"""Products of mapped tensors, for `torch.func.vmap` and for batches of gradients (`is_grads_batched`)."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from yolo_lightning.conv.algorithms.algorithm import Operation, operands_of, result_sizes
from yolo_lightning.conv.algorithms.problem import Problem, Tensors

Product = Callable[..., Any]
"""Function `(operation, problem, *tensors)` that computes an operation of a convolution for autograd."""


def mapped_product(
    product: Product,
    operation: Operation,
    problem: Problem,
    entries: int,
    dimensions: Sequence[int | None],
    tensors: Tensors,
) -> Tensors:
    """Compute an operation of `entries` equal convolutions at once.

    Args:
        product: Computes the combined operation.
        operation: The operation.
        problem: The problem of one convolution.
        entries: Number of convolutions, >= 1.
        dimensions: For each tensor, the dimension along which the convolutions have different values; None if all
            convolutions have the same tensor.
        tensors: The tensors of the operation.

    Returns:
        The results. Their first dimension contains the convolutions.
    """
    if operation in (Operation.FORWARD, Operation.INPUT_GRADIENT) and dimensions[1] is None:
        dimension = dimensions[0]
        assert dimension is not None
        images = tensors[0].movedim(dimension, 0)
        samples = problem.input_size[0]
        together = replace(problem, input_size=(entries * samples, *problem.input_size[1:]))
        result = product(operation, together, images.flatten(0, 1), tensors[1])
        return (torch.unflatten(result, 0, (entries, samples)),)
    # The convolutions become groups of channels of one convolution.
    samples, channels, *image_size = problem.input_size
    outputs, *kernel_size = problem.weight_size
    input_size: Any = (samples, entries * channels, *image_size)
    weight_size: Any = (entries * outputs, *kernel_size)
    together = replace(problem, input_size=input_size, weight_size=weight_size, groups=entries * problem.groups)
    weight_axis = 0
    image_axis = 1
    axes = operands_of(operation, image_axis, image_axis, weight_axis)
    operands = []
    for tensor, dimension, axis in zip(tensors, dimensions, axes, strict=True):
        mapped = tensor.expand(entries, *tensor.shape) if dimension is None else tensor.movedim(dimension, 0)
        operands.append(mapped.movedim(0, axis).flatten(axis, axis + 1))
    combined = product(operation, together, *operands)
    results = combined if isinstance(combined, tuple) else (combined,)
    axes_of_results = {
        Operation.FORWARD: (image_axis,),
        Operation.INPUT_GRADIENT: (image_axis,),
        Operation.WEIGHT_GRADIENT: (weight_axis,),
        Operation.GRADIENTS: (image_axis, weight_axis),
    }[operation]
    return tuple(
        torch.unflatten(result, axis, (entries, size[axis])).movedim(axis, 0)
        for result, axis, size in zip(results, axes_of_results, result_sizes(operation, problem), strict=True)
    )
