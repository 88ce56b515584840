"""Convolution and its derivatives as registered operators `torch.ops.yolo_lightning.*`, for compilers and exporters.

`torch.compile` and `torch.export` treat each operator as one node: there is no graph break at a convolution, and the
algorithms, which write into buffers and depend on sizes, are not traced. `conv2d` uses the operators only under
compilation. In eager mode it calls the autograd functions in `functional` directly, because the dispatch of a Python
operator takes tens of microseconds for each call, and because tools that count dispatched operators then see the
kernels of an algorithm.

An operator cannot have an object as an argument. A plan is therefore passed by its `name`; an exported program that is
loaded in a process without this plan uses the default plan, with a warning, and results differ by rounding only.
All sizes and arguments are pairs `(vertical, horizontal)`; `padding` is `(top, bottom, left, right)`; `channels_last`
is the memory format of all results. Derivatives of any order are registered.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from yolo_lightning.conv.algorithms.algorithm import Operation, result_sizes, single_or_all
from yolo_lightning.conv.algorithms.problem import Problem
from yolo_lightning.conv.algorithms.shared import channels_last_strides, with_usual_strides, without_autocast
from yolo_lightning.conv.derivatives import MaybeTensor, derivatives
from yolo_lightning.conv.plan import Plan, plan_of

Sizes = Sequence[int]
NAMESPACE = "yolo_lightning"
_ARGUMENTS = "SymInt[] stride, SymInt[] padding, SymInt[] dilation, SymInt groups, bool channels_last, str plan"
# The methods of the class have no annotations.
_LIBRARY: Any = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]


def _problem(*sizes: Sizes, groups: int, channels_last: bool) -> Problem:
    """Return the problem of input size, weight size, stride, padding and dilation."""
    tuples: list[Any] = [tuple(size) for size in sizes]
    return Problem(tuples[0], tuples[1], tuples[2], tuples[3], tuples[4], groups, channels_last)


def _register(operation: Operation, tensors: str, size: str = "", results: str = "Tensor") -> Any:
    """Register and return the operator for an operation.

    `tensors` and `size` are the first arguments of its schema. `size` is that of the result, of a single gradient.
    """
    name = "conv2d" if operation is Operation.FORWARD else f"conv2d_{operation}"
    count = tensors.count("Tensor")

    def split(arguments: tuple[Any, ...]) -> tuple[tuple[Tensor, ...], Problem]:
        operands: tuple[Tensor, ...] = arguments[:count]
        input_size = arguments[count] if operation is Operation.INPUT_GRADIENT else operands[0].shape
        weight_size = arguments[count] if operation is Operation.WEIGHT_GRADIENT else operands[-1].shape
        *spatial, groups, channels_last, _ = arguments[-6:]
        return operands, _problem(input_size, weight_size, *spatial, groups=groups, channels_last=channels_last)

    def compute(*arguments: Any) -> Any:
        operands, problem = split(arguments)
        with without_autocast(operands[0]):
            results = plan_of(arguments[-1]).compute(operation, problem, operands)
        # The strides that `fake` promises.
        dense = [result.contiguous(memory_format=problem.memory_format) for result in results]
        return single_or_all(tuple(with_usual_strides(result, problem.channels_last) for result in dense))

    def fake(*arguments: Any) -> Any:
        operands, problem = split(arguments)
        sizes = result_sizes(operation, problem)
        return single_or_all(tuple(_empty(operands[0], size, problem.channels_last) for size in sizes))

    def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[:count])
        ctx.product = partial(_call, inputs[-6:])

    def backward(ctx: Any, *directions: MaybeTensor) -> tuple[MaybeTensor, ...]:
        grads = derivatives(operation, ctx.product, ctx.saved_tensors, ctx.needs_input_grad, directions)
        return *grads, *(None,) * (len(ctx.needs_input_grad) - len(grads))

    schema = f"{name}({tensors}, {size}{_ARGUMENTS}) -> {results}"
    _LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    _LIBRARY.impl(name, compute, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_LIBRARY)
    torch.library.register_autograd(f"{NAMESPACE}::{name}", backward, setup_context=save, lib=_LIBRARY)
    return getattr(getattr(torch.ops, NAMESPACE), name).default


def _empty(like: Tensor, size: Sizes, channels_last: bool) -> Tensor:
    if channels_last:
        return like.new_empty_strided(tuple(size), channels_last_strides(size))
    return like.new_empty(tuple(size))


def _call(arguments: tuple[Any, ...], operation: Operation, *tensors: Tensor, like: MaybeTensor = None) -> Any:
    sizes = () if like is None else (like.shape,)
    return _OPERATORS[operation](*tensors, *sizes, *arguments)


conv2d = _register(Operation.FORWARD, "Tensor input, Tensor weight")
"""Convolution of a batched input, without a bias."""
conv2d_input_gradient = _register(
    Operation.INPUT_GRADIENT, "Tensor grad_output, Tensor weight", "SymInt[] input_size, "
)
"""Gradient of the input, whose size is `(N, C, H, W)`."""
conv2d_weight_gradient = _register(
    Operation.WEIGHT_GRADIENT, "Tensor input, Tensor grad_output", "SymInt[] weight_size, "
)
"""Gradient of the weight, whose size is `(O, C / groups, kernel height, kernel width)`."""
conv2d_gradients = _register(
    Operation.GRADIENTS, "Tensor input, Tensor grad_output, Tensor weight", results="(Tensor, Tensor)"
)
"""Gradients of the input and of the weight."""
_OPERATORS = {
    Operation.FORWARD: conv2d,
    Operation.INPUT_GRADIENT: conv2d_input_gradient,
    Operation.WEIGHT_GRADIENT: conv2d_weight_gradient,
    Operation.GRADIENTS: conv2d_gradients,
}


def product(operation: Operation, problem: Problem, plan: Plan, *tensors: Tensor) -> Any:
    """Compute an operation of a convolution by its registered operator."""
    size_of_result: tuple[Sizes, ...] = ()
    if operation in (Operation.INPUT_GRADIENT, Operation.WEIGHT_GRADIENT):
        size_of_result = result_sizes(operation, problem)
    arguments = problem.stride, problem.padding, problem.dilation, problem.groups, problem.channels_last, plan.name
    return _OPERATORS[operation](*tensors, *size_of_result, *arguments)
