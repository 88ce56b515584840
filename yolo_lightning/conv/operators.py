"""Convolution and its derivatives as registered operators `torch.ops.yolo_lightning.*`, for compilers and exporters.

`torch.compile` and `torch.export` treat each operator as one node: there is no graph break at a convolution, and the
algorithms, which write into buffers and depend on sizes, are not traced. `conv2d` uses the operators only under
compilation. In eager mode it calls the autograd functions in `functional` directly, because the dispatch of a Python
operator takes tens of microseconds for each call, and because tools that count dispatched operators then see the
kernels of an algorithm.

An operator cannot have an object as an argument. A plan is therefore passed by its `handle`; an exported program that
is loaded in a process without this plan uses the default plan, whose results differ by rounding only. All sizes and
arguments are pairs `(vertical, horizontal)`; `padding` is `(top, bottom, left, right)`; `channels_last` is the memory
format of all results. Derivatives of any order are registered.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from yolo_lightning.conv.algorithms.problem import Problem
from yolo_lightning.conv.algorithms.shared import channels_last_strides, without_autocast
from yolo_lightning.conv.plan import plan_of

Sizes = Sequence[int]
MaybeTensor = Tensor | None


def _problem(
    input_size: Sizes,
    weight_size: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    groups: int,
    channels_last: bool,
) -> Problem:
    samples, channels, height, width = input_size
    outputs, depth, kernel_height, kernel_width = weight_size
    top, bottom, left, right = padding
    return Problem(
        input_size=(samples, channels, height, width),
        weight_size=(outputs, depth, kernel_height, kernel_width),
        stride=(stride[0], stride[1]),
        padding=(top, bottom, left, right),
        dilation=(dilation[0], dilation[1]),
        groups=groups,
        channels_last=channels_last,
    )


def _result(tensor: Tensor, problem: Problem) -> Tensor:
    """Return a result with the strides that the fake implementations promise."""
    return tensor.contiguous(memory_format=problem.memory_format)


def _fake(like: Tensor, size: Sizes, channels_last: bool) -> Tensor:
    if channels_last:
        return like.new_empty_strided(tuple(size), channels_last_strides(size))
    return like.new_empty(tuple(size))


@torch.library.custom_op("yolo_lightning::conv2d", mutates_args=())
def conv2d(
    input: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    channels_last: bool,
    plan: str,
) -> Tensor:
    """Return the convolution of a batched input, without a bias."""
    problem = _problem(input.shape, weight.shape, stride, padding, dilation, groups, channels_last)
    with without_autocast(input):
        return _result(plan_of(plan).forward(input, weight, problem), problem)


@torch.library.custom_op("yolo_lightning::conv2d_input_gradient", mutates_args=())
def conv2d_input_gradient(
    grad_output: Tensor,
    weight: Tensor,
    input_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    channels_last: bool,
    plan: str,
) -> Tensor:
    """Return the gradient of the input, whose size is `(N, C, H, W)`."""
    problem = _problem(input_size, weight.shape, stride, padding, dilation, groups, channels_last)
    with without_autocast(grad_output):
        return _result(plan_of(plan).input_gradient(grad_output, weight, problem), problem)


@torch.library.custom_op("yolo_lightning::conv2d_weight_gradient", mutates_args=())
def conv2d_weight_gradient(
    input: Tensor,
    grad_output: Tensor,
    weight_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    channels_last: bool,
    plan: str,
) -> Tensor:
    """Return the gradient of the weight, whose size is `(O, C / groups, kernel height, kernel width)`."""
    problem = _problem(input.shape, weight_size, stride, padding, dilation, groups, channels_last)
    with without_autocast(input):
        return _result(plan_of(plan).weight_gradient(input, grad_output, problem), problem)


@torch.library.custom_op("yolo_lightning::conv2d_gradients", mutates_args=())
def conv2d_gradients(
    input: Tensor,
    grad_output: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    channels_last: bool,
    plan: str,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the input and of the weight."""
    problem = _problem(input.shape, weight.shape, stride, padding, dilation, groups, channels_last)
    with without_autocast(input):
        grad_input, grad_weight = plan_of(plan).gradients(input, grad_output, weight, problem)
    return _result(grad_input, problem), _result(grad_weight, problem)


@conv2d.register_fake
def _(input: Tensor, weight: Tensor, *arguments: Any) -> Tensor:
    problem = _problem(input.shape, weight.shape, *arguments[:-1])
    return _fake(input, problem.output_size, problem.channels_last)


@conv2d_input_gradient.register_fake
def _(grad_output: Tensor, weight: Tensor, input_size: Sizes, *arguments: Any) -> Tensor:
    return _fake(grad_output, input_size, arguments[-2])


@conv2d_weight_gradient.register_fake
def _(input: Tensor, grad_output: Tensor, weight_size: Sizes, *arguments: Any) -> Tensor:
    return _fake(input, weight_size, arguments[-2])


@conv2d_gradients.register_fake
def _(input: Tensor, grad_output: Tensor, weight: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    return _fake(input, input.shape, arguments[-2]), _fake(weight, weight.shape, arguments[-2])


# The formulas are those of the functions in `functional`: convolution is linear in the input and in the weight, so the
# derivatives of each operator are compositions of the other operators.


def _save(ctx: Any, inputs: tuple[Any, ...], tensors: int) -> None:
    """Save the tensors of a call; `ctx.arguments` are the last arguments, which all operators have in common."""
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:tensors])
    ctx.arguments = inputs[-6:]


def _save_two(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _save(ctx, inputs, 2)


def _save_three(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    _save(ctx, inputs, 3)


def _no_gradient(ctx: Any, *gradients: MaybeTensor) -> tuple[MaybeTensor, ...]:
    """Return the gradients of the tensors, and None for all other arguments."""
    return *gradients, *(None,) * (len(ctx.needs_input_grad) - len(gradients))


def _conv2d_backward(ctx: Any, grad_output: MaybeTensor) -> tuple[MaybeTensor, ...]:
    input, weight = ctx.saved_tensors
    by_input = by_weight = None
    if grad_output is None:
        return _no_gradient(ctx)
    if all(ctx.needs_input_grad[:2]):
        by_input, by_weight = conv2d_gradients(input, grad_output, weight, *ctx.arguments)
    elif ctx.needs_input_grad[0]:
        by_input = conv2d_input_gradient(grad_output, weight, input.shape, *ctx.arguments)
    elif ctx.needs_input_grad[1]:
        by_weight = conv2d_weight_gradient(input, grad_output, weight.shape, *ctx.arguments)
    return _no_gradient(ctx, by_input, by_weight)


def _input_gradient_backward(ctx: Any, direction: MaybeTensor) -> tuple[MaybeTensor, ...]:
    grad_output, weight = ctx.saved_tensors
    by_grad_output = by_weight = None
    if direction is None:
        return _no_gradient(ctx)
    if ctx.needs_input_grad[0]:
        by_grad_output = conv2d(direction, weight, *ctx.arguments)
    if ctx.needs_input_grad[1]:
        by_weight = conv2d_weight_gradient(direction, grad_output, weight.shape, *ctx.arguments)
    return _no_gradient(ctx, by_grad_output, by_weight)


def _weight_gradient_backward(ctx: Any, direction: MaybeTensor) -> tuple[MaybeTensor, ...]:
    input, grad_output = ctx.saved_tensors
    by_input = by_grad_output = None
    if direction is None:
        return _no_gradient(ctx)
    if ctx.needs_input_grad[0]:
        by_input = conv2d_input_gradient(grad_output, direction, input.shape, *ctx.arguments)
    if ctx.needs_input_grad[1]:
        by_grad_output = conv2d(input, direction, *ctx.arguments)
    return _no_gradient(ctx, by_input, by_grad_output)


def _gradients_backward(ctx: Any, along_input: MaybeTensor, along_weight: MaybeTensor) -> tuple[MaybeTensor, ...]:
    input, grad_output, weight = ctx.saved_tensors
    needs_input, needs_grad_output, needs_weight = ctx.needs_input_grad[:3]
    by_input = by_grad_output = by_weight = None
    if along_weight is not None and needs_input:
        by_input = conv2d_input_gradient(grad_output, along_weight, input.shape, *ctx.arguments)
    if along_input is not None and needs_weight:
        by_weight = conv2d_weight_gradient(along_input, grad_output, weight.shape, *ctx.arguments)
    if needs_grad_output:
        pairs = ((along_input, weight), (input, along_weight))
        terms = [conv2d(one, other, *ctx.arguments) for one, other in pairs if one is not None and other is not None]
        by_grad_output = sum(terms[1:], terms[0]) if terms else None
    return _no_gradient(ctx, by_input, by_grad_output, by_weight)


conv2d.register_autograd(_conv2d_backward, setup_context=_save_two)
conv2d_input_gradient.register_autograd(_input_gradient_backward, setup_context=_save_two)
conv2d_weight_gradient.register_autograd(_weight_gradient_backward, setup_context=_save_two)
conv2d_gradients.register_autograd(_gradients_backward, setup_context=_save_three)
