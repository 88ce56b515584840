"""Table of algorithms: the candidates for each convolution, the default first.

An algorithm is a module with functions named like the values of `Operation`; a module without a function is not a
candidate for that operation. A convolution can also be computed in the other memory layout, with conversions, and an
input gradient of stride 1 by the forward function with a mirrored weight.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from math import prod
from types import ModuleType, SimpleNamespace

import torch
from torch import Tensor

from yolo_lightning.conv.algorithms import (
    column_batches,
    depthwise,
    im2col,
    im2col_channels_last,
    pointwise,
    rows,
    rows_channels_last,
    winograd,
    workspace,
)
from yolo_lightning.conv.algorithms.problem import Problem, Tensors
from yolo_lightning.conv.algorithms.shared import correlation, mirrored_weight
from yolo_lightning.conv.kernels import fused

Compute = Callable[[Tensors], Tensors]


class Operation(StrEnum):
    """A product of a convolution. The value is the name of the function of an algorithm that computes the product."""

    FORWARD = "forward"
    """`(input, weight)` to `(output,)`."""
    INPUT_GRADIENT = "input_gradient"
    """`(grad_output, weight)` to `(grad_input,)`."""
    WEIGHT_GRADIENT = "weight_gradient"
    """`(input, grad_output)` to `(grad_weight,)`."""
    GRADIENTS = "gradients"
    """`(input, grad_output, weight)` to `(grad_input, grad_weight)`."""


@dataclass(frozen=True)
class Candidate:
    """One way to compute an operation of one problem."""

    name: str  # unique among the candidates of the operation and problem
    compute: Compute  # returns the products in the memory format of the problem
    workspace: int  # upper bound for temporary memory, in bytes
    may_refuse: bool = False  # any `RuntimeError`, not only out-of-memory, allows a fallback to the next candidate


@dataclass(frozen=True)
class _Algorithm:
    """A row of the table; `serves` is called with problems in one of `layouts` (values of `Problem.channels_last`)."""

    name: str
    module: ModuleType | SimpleNamespace
    layouts: tuple[bool, ...]
    serves: Callable[[Problem, torch.dtype, str], bool]
    workspace: Callable[[str, Problem, torch.dtype, str], int]
    may_refuse: bool = False


_NCHW, _NHWC = False, True
_NATIVE_DEPTHWISE = SimpleNamespace(forward=depthwise.native_forward)
# The kernels split the sum over pixels; a BLAS product with a small result uses few compute units. The other products
# of a 1x1 convolution are large BLAS products.
_FUSED_SUM = SimpleNamespace(weight_gradient=fused.weight_gradient)
_FUSED_PRODUCTS = SimpleNamespace(forward=fused.forward, input_gradient=fused.input_gradient)


def _serves_native_depthwise(problem: Problem, dtype: torch.dtype, device_type: str) -> bool:
    return device_type == "cuda" and problem.is_depthwise and depthwise.native_accepts(problem)


def _serves_rows(problem: Problem, dtype: torch.dtype, device_type: str) -> bool:
    # Several products accumulate in one output, which would round a half type several times.
    return problem.groups == 1 and not problem.is_pointwise and dtype in (torch.float32, torch.float64)


def _serves_fused(problem: Problem, dtype: torch.dtype, device_type: str) -> bool:
    return fused.accepts(problem, dtype, device_type) and fused.available(torch.device(device_type))


def _serves_winograd(problem: Problem, dtype: torch.dtype, device_type: str) -> bool:
    return winograd.accepts(problem) and dtype in (torch.float32, torch.float64)


def _prefers_winograd(problem: Problem, dtype: torch.dtype, device_type: str) -> bool:
    # On a CPU the transforms run in the cache and cost less than the saved products; an accelerator is memory-bound.
    thinnest = min(problem.weight_size[:2])
    return _serves_winograd(problem, dtype, device_type) and device_type == "cpu" and thinnest >= WINOGRAD_CHANNELS


def _serves_column_batches(problem: Problem, dtype: torch.dtype, device_type: str) -> bool:
    return column_batches.accepts(problem)


def _prefers_column_batches(problem: Problem, dtype: torch.dtype, device_type: str) -> bool:
    # An accelerator is limited by launches and by memory traffic; the tiles of row lowering suit the cache of a CPU.
    return device_type != "cpu" and _serves_column_batches(problem, dtype, device_type)


_BY_SAMPLE = SimpleNamespace(
    **{
        name: partial(getattr(column_batches, name), by_sample=True)
        for name in ("forward", "input_gradient", "weight_gradient", "gradients")
    }
)


def _serves_by_sample(problem: Problem, dtype: torch.dtype, device_type: str) -> bool:
    return problem.input_size[0] > 1 and _serves_column_batches(problem, dtype, device_type)


WINOGRAD_CHANNELS = 32
"""With fewer input or output channels the matrix products are too small to compensate for the transforms."""

_TABLE = (
    _Algorithm(
        "native depthwise",
        _NATIVE_DEPTHWISE,
        (_NCHW,),
        _serves_native_depthwise,
        workspace.native_depthwise,
        may_refuse=True,
    ),
    _Algorithm("fused", _FUSED_SUM, (_NHWC,), _serves_fused, workspace.kernels, may_refuse=True),
    _Algorithm(
        "pointwise", pointwise, (_NCHW, _NHWC), lambda problem, _, __: problem.is_pointwise, workspace.pointwise
    ),
    _Algorithm(
        "depthwise", depthwise, (_NCHW, _NHWC), lambda problem, _, __: problem.is_depthwise, workspace.depthwise
    ),
    _Algorithm("fused", _FUSED_PRODUCTS, (_NHWC,), _serves_fused, workspace.kernels, may_refuse=True),
    _Algorithm("winograd", winograd, (_NHWC,), _prefers_winograd, workspace.winograd),
    _Algorithm("column_batches", column_batches, (_NHWC,), _prefers_column_batches, workspace.columns),
    _Algorithm("rows", rows, (_NCHW,), _serves_rows, workspace.rows),
    _Algorithm("rows_channels_last", rows_channels_last, (_NHWC,), _serves_rows, workspace.rows_channels_last),
    _Algorithm(
        "channels_last",
        im2col_channels_last,
        (_NHWC,),
        lambda problem, _, __: problem.groups == 1 and not problem.is_pointwise,
        workspace.im2col_channels_last,
    ),
    _Algorithm(
        "winograd",
        winograd,
        (_NHWC,),
        lambda *about: _serves_winograd(*about) and not _prefers_winograd(*about),
        workspace.winograd,
    ),
    _Algorithm(
        "column_batches",
        column_batches,
        (_NHWC,),
        lambda *about: _serves_column_batches(*about) and not _prefers_column_batches(*about),
        workspace.columns,
    ),
    _Algorithm("column_batches by sample", _BY_SAMPLE, (_NHWC,), _serves_by_sample, workspace.columns_by_sample),
    _Algorithm("im2col", im2col, (_NCHW,), lambda problem, _, __: not problem.is_pointwise, workspace.im2col),
)

SEPARATE = "separate"
"""Name of the candidate that computes the two gradients separately."""

VERSION = "4: " + ", ".join(algorithm.name for algorithm in _TABLE)
"""Version of cached timings. Increase the number if the speed of an algorithm changes."""


def candidates(operation: Operation, problem: Problem, dtype: torch.dtype, device_type: str) -> tuple[Candidate, ...]:
    """Return the candidates for an operation, the default first; for `GRADIENTS` those that compute both at once."""
    if 0 in problem.input_size or 0 in problem.weight_size:
        return () if operation is Operation.GRADIENTS else (_zeros(operation, problem),)
    direct = _in_both_layouts(operation, problem, dtype, device_type)
    if operation is not Operation.INPUT_GRADIENT or problem.stride != (1, 1) or problem.is_pointwise:
        return direct
    if direct[0].name == "fused":
        return direct  # reads the weight in the mirrored order itself
    return _mirrored(problem, dtype, device_type) + direct


def gradient_candidates(
    problem: Problem, dtype: torch.dtype, device_type: str, separately: Compute
) -> tuple[Candidate, ...]:
    """Return the candidates for both gradients, the default first; `separately` computes them one after the other.

    The default is an algorithm that computes both at once if it is also the default for the weight gradient.
    """
    at_once = candidates(Operation.GRADIENTS, problem, dtype, device_type)
    by_input, by_weight = (
        candidates(operation, problem, dtype, device_type)[0]
        for operation in (Operation.INPUT_GRADIENT, Operation.WEIGHT_GRADIENT)
    )
    separate = (Candidate(SEPARATE, separately, max(by_input.workspace, by_weight.workspace)),)
    return at_once + separate if at_once and at_once[0].name == by_weight.name else separate + at_once


def _in_both_layouts(
    operation: Operation, problem: Problem, dtype: torch.dtype, device_type: str
) -> tuple[Candidate, ...]:
    """Return the candidates for the memory format of the problem, followed by those that convert the layout."""
    found = []
    for channels_last in (problem.channels_last, not problem.channels_last):
        laid_out = replace(problem, channels_last=channels_last)
        for row in _TABLE:
            function = getattr(row.module, operation, None)
            if function is None or channels_last not in row.layouts or not row.serves(laid_out, dtype, device_type):
                continue
            needed = row.workspace(operation, laid_out, dtype, device_type)
            if channels_last == problem.channels_last:
                found.append(Candidate(row.name, _bind(function, laid_out), needed, row.may_refuse))
                continue
            needed += workspace.conversion(problem, dtype)
            compute = _convert(operation, _bind(function, laid_out), problem.memory_format)
            name = f"{row.name} in {'NHWC' if channels_last else 'NCHW'}"
            found.append(Candidate(name, compute, needed, row.may_refuse))
    return tuple(found)


def _bind(function: Callable[..., Tensor | Tensors], problem: Problem) -> Compute:
    def compute(tensors: Tensors) -> Tensors:
        result = function(*tensors, problem)
        return result if isinstance(result, tuple) else (result,)

    return compute


def _convert(operation: Operation, compute: Compute, memory_format: torch.memory_format) -> Compute:
    """Convert the images that `compute` returns to `memory_format`; algorithms convert their inputs themselves."""
    if operation is Operation.WEIGHT_GRADIENT:
        return compute

    def convert(tensors: Tensors) -> Tensors:
        images, *others = compute(tensors)
        return images.contiguous(memory_format=memory_format), *others

    return convert


def _mirrored(problem: Problem, dtype: torch.dtype, device_type: str) -> tuple[Candidate, ...]:
    """Return the candidates that compute an input gradient of stride 1 as a convolution."""

    def mirror(forward: Compute) -> Compute:
        def compute(tensors: Tensors) -> Tensors:
            grad_output, weight = tensors
            return forward((grad_output, mirrored_weight(weight, problem.groups)))

        return compute

    return tuple(
        replace(
            candidate,
            name=f"mirrored {candidate.name}",
            compute=mirror(candidate.compute),
            workspace=candidate.workspace + 2 * prod(problem.weight_size) * dtype.itemsize,
        )
        for candidate in _in_both_layouts(Operation.FORWARD, correlation(problem), dtype, device_type)
    )


def _zeros(operation: Operation, problem: Problem) -> Candidate:
    """Return the candidate for an input or weight without elements."""
    size: tuple[int, ...] = {
        Operation.FORWARD: problem.output_size,
        Operation.INPUT_GRADIENT: problem.input_size,
        Operation.WEIGHT_GRADIENT: problem.weight_size,
    }[operation]
    return Candidate("zeros", lambda tensors: (tensors[0].new_zeros(size),), workspace=0)
