"""Table of algorithms: the candidates for each convolution, the default first.

A convolution can also be computed in the other memory layout, with conversions, and an input gradient of stride 1 by
the forward function with a mirrored weight.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from yolo_lightning.conv.algorithms import column_batches, depthwise, im2col, pointwise
from yolo_lightning.conv.algorithms.algorithm import Algorithm, Operation, Product, result_sizes
from yolo_lightning.conv.algorithms.problem import Problem, Tensors
from yolo_lightning.conv.algorithms.shared import correlation, mirrored_weight
from yolo_lightning.conv.kernels import fused

Compute = Callable[[Tensors], Tensors]


@dataclass(frozen=True)
class Candidate:
    """One way to compute an operation of one problem."""

    name: str  # unique among the candidates of the operation and problem
    compute: Compute  # returns the products in the memory format of the problem
    reads_mirrored: bool = False  # computes an input gradient from the weight in its mirrored order


_FIRST = (fused.WEIGHT_GRADIENT, pointwise.ALGORITHM, depthwise.ALGORITHM, fused.PRODUCTS)
_ON_ACCELERATORS = (*_FIRST, column_batches.ALGORITHM, im2col.ALGORITHM)
# In half types, products of a BLAS use the tensor cores of NVIDIA's cards; the kernels of this package do not.
_ON_TENSOR_CORES = (
    pointwise.ALGORITHM,
    depthwise.ALGORITHM,
    column_batches.ALGORITHM,
    im2col.ALGORITHM,
    fused.WEIGHT_GRADIENT,
    fused.PRODUCTS,
)
_ON_CPUS = (*_FIRST, im2col.ALGORITHM, column_batches.ALGORITHM)

SEPARATE = "separate"
"""Name of the candidate that computes the two gradients separately."""

VERSION = "6: " + ", ".join(algorithm.name for algorithm in _ON_CPUS)
"""Version of cached timings. Increase the number if the speed of an algorithm changes."""


def algorithms(problem: Problem, dtype: torch.dtype, device_type: str) -> tuple[Algorithm, ...]:
    """Return all algorithms in the order of preference."""
    if device_type == "cuda" and torch.version.hip is None and dtype in (torch.float16, torch.bfloat16):
        return _ON_TENSOR_CORES
    if device_type != "cpu":
        return _ON_ACCELERATORS
    return _ON_CPUS


def candidates(operation: Operation, problem: Problem, dtype: torch.dtype, device_type: str) -> tuple[Candidate, ...]:
    """Return the candidates for an operation, the default first; for `GRADIENTS` those that compute both at once."""
    if 0 in problem.input_size or 0 in problem.weight_size:
        if operation is Operation.GRADIENTS:
            return ()
        return (_zeros(operation, problem),)
    direct = _in_both_layouts(operation, problem, dtype, device_type)
    if operation is not Operation.INPUT_GRADIENT or problem.stride != (1, 1) or problem.is_pointwise:
        return direct
    if direct[0].reads_mirrored:
        return direct
    return _mirrored(problem, dtype, device_type) + direct


def gradient_candidates(
    problem: Problem, dtype: torch.dtype, device_type: str, separately: Compute
) -> tuple[Candidate, ...]:
    """Return the candidates for both gradients, the default first; `separately` computes them one after the other.

    The default is an algorithm that computes both at once if it is also the default for the weight gradient.
    """
    at_once = candidates(Operation.GRADIENTS, problem, dtype, device_type)
    by_weight = candidates(Operation.WEIGHT_GRADIENT, problem, dtype, device_type)[0]
    separate = Candidate(SEPARATE, separately)
    if at_once and at_once[0].name == by_weight.name:
        return *at_once, separate
    return separate, *at_once


def _in_both_layouts(
    operation: Operation, problem: Problem, dtype: torch.dtype, device_type: str
) -> tuple[Candidate, ...]:
    """Return the candidates for the memory format of the problem, followed by those that convert the layout."""
    usable = []
    for channels_last in (problem.channels_last, not problem.channels_last):
        laid_out = replace(problem, channels_last=channels_last)
        for algorithm in algorithms(problem, dtype, device_type):
            product = algorithm.products.get(operation)
            if product is None or not algorithm.serves(laid_out, dtype, device_type):
                continue
            name = algorithm.name
            compute = _bind(product, laid_out)
            if channels_last != problem.channels_last:
                name += " in NHWC" if channels_last else " in NCHW"
                compute = _convert(compute, problem.memory_format)
            usable.append(Candidate(name, compute, algorithm is fused.PRODUCTS))
    return tuple(usable)


def _bind(product: Product, problem: Problem) -> Compute:
    def compute(tensors: Tensors) -> Tensors:
        result = product(*tensors, problem)
        if isinstance(result, tuple):
            return result
        return (result,)

    return compute


def _convert(compute: Compute, memory_format: torch.memory_format) -> Compute:
    """Convert the results of `compute` to `memory_format`; algorithms convert their inputs themselves."""
    return lambda tensors: tuple(result.contiguous(memory_format=memory_format) for result in compute(tensors))


def _mirrored(problem: Problem, dtype: torch.dtype, device_type: str) -> tuple[Candidate, ...]:
    """Return the candidates that compute an input gradient of stride 1 as a convolution."""

    def mirror(forward: Compute) -> Compute:
        def compute(tensors: Tensors) -> Tensors:
            grad_output, weight = tensors
            return forward((grad_output, mirrored_weight(weight, problem.groups)))

        return compute

    return tuple(
        replace(candidate, name=f"mirrored {candidate.name}", compute=mirror(candidate.compute))
        for candidate in _in_both_layouts(Operation.FORWARD, correlation(problem), dtype, device_type)
    )


def _zeros(operation: Operation, problem: Problem) -> Candidate:
    """Return the candidate for an input or weight without elements."""
    (size,) = result_sizes(operation, problem)
    return Candidate("zeros", lambda tensors: (tensors[0].new_zeros(size),))
