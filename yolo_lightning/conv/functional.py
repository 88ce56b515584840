"""2-D convolution as lowering plus matrix multiplication, differentiable any number of times."""

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import Tensor
from torch.autograd import Function

from yolo_lightning.conv import _algorithms
from yolo_lightning.conv._arguments import IntOrPair, Problem, make_problem


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: IntOrPair = 1,
    padding: IntOrPair | str = 0,
    dilation: IntOrPair = 1,
    groups: int = 1,
) -> Tensor:
    """`torch.nn.functional.conv2d` without a vendor convolution library, forward and backward.

    For the backward pass it keeps the input and the weight, never the lowered columns. Under autocast the tensors
    are cast to the autocast dtype, as the native operator does. The result is channels_last where the input or the
    weight is.

    Args:
        input: `(N, C, H, W)` or unbatched `(C, H, W)`; float32, float64, float16 or bfloat16; any strides.
        weight: `(O, C / groups, kernel height, kernel width)`, same dtype and device.
        bias: `(O,)` or None, same dtype and device.
        stride: Step between outputs in pixels, one value or `(vertical, horizontal)`.
        padding: Zeros on both sides in pixels, one value or `(vertical, horizontal)`, or `"same"` or `"valid"`.
        dilation: Distance between kernel taps in pixels, one value or `(vertical, horizontal)`.
        groups: Number of independent channel groups.

    Returns:
        `(N, O, H', W')`, or `(O, H', W')` for an unbatched input, in the dtype of the (cast) input.

    Raises:
        ValueError: If an argument is not allowed; the message holds the bad value and the allowed ones.
    """
    device_type = input.device.type
    if torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type):
        dtype = torch.get_autocast_dtype(device_type)
        input, weight = _autocast(input, dtype), _autocast(weight, dtype)
        bias = None if bias is None else _autocast(bias, dtype)
    if input.dim() == 3:
        return conv2d(input.unsqueeze(0), weight, bias, stride, padding, dilation, groups).squeeze(0)
    problem = make_problem(input, weight, bias, stride, padding, dilation, groups)
    if bias is not None and problem.input_size[1] == 0:
        # The output has no channels either (see Problem.output_size); the slice gives the bias a gradient of zeros.
        bias = bias[:0]
    return _apply(_Convolution, input, weight, bias, problem)


def _autocast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    # Autocast leaves float64 alone; so does this.
    return tensor.to(dtype) if tensor.is_floating_point() and tensor.dtype != torch.float64 else tensor


def _apply(function: type[Function], *arguments: Tensor | Problem | None) -> Tensor:
    result: Tensor = function.apply(*arguments)
    return result


def _settled(tensor: Tensor) -> AbstractContextManager[object]:
    """Autocast off: the dtypes are settled, and the backward pass may run under another setting than the forward."""
    device_type = tensor.device.type
    if not torch.amp.is_autocast_available(device_type):
        return nullcontext()
    return torch.autocast(device_type, enabled=False)


# Convolution is linear in the input and in the weight, so the derivative of each of the three functions below is made
# of the other two. That closes the circle: double backward needs no further formula and never differentiates through
# the algorithms, which may therefore write into buffers.


class _Context(Protocol):
    """What the functions below use of `torch.autograd.function.FunctionCtx`, and the attribute that they add."""

    problem: Problem
    needs_input_grad: tuple[bool, ...]
    saved_tensors: tuple[Tensor, ...]

    def save_for_backward(self, *tensors: Tensor | None) -> None: ...


class _Convolution(Function):
    @staticmethod
    def forward(input: Tensor, weight: Tensor, bias: Tensor | None, problem: Problem) -> Tensor:
        with _settled(input):
            output = _algorithms.forward(input, weight, problem)
        return output if bias is None else output.add_(bias.view(1, -1, 1, 1))

    @staticmethod
    def setup_context(ctx: _Context, inputs: tuple[Tensor, Tensor, Tensor | None, Problem], output: Tensor) -> None:
        input, weight, _, ctx.problem = inputs
        needs_input, needs_weight = ctx.needs_input_grad[:2]
        ctx.save_for_backward(input if needs_weight else None, weight if needs_input else None)

    @staticmethod
    def backward(ctx: _Context, grad_output: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        input, weight = ctx.saved_tensors
        needs_input, needs_weight, needs_bias, _ = ctx.needs_input_grad
        grad_input = _apply(_InputGradient, grad_output, weight, ctx.problem) if needs_input else None
        grad_weight = _apply(_WeightGradient, input, grad_output, ctx.problem) if needs_weight else None
        grad_bias = grad_output.sum((0, 2, 3)) if needs_bias else None
        return grad_input, grad_weight, grad_bias, None


class _InputGradient(Function):
    @staticmethod
    def forward(grad_output: Tensor, weight: Tensor, problem: Problem) -> Tensor:
        with _settled(grad_output):
            return _algorithms.input_gradient(grad_output, weight, problem)

    @staticmethod
    def setup_context(ctx: _Context, inputs: tuple[Tensor, Tensor, Problem], output: Tensor) -> None:
        grad_output, weight, ctx.problem = inputs
        ctx.save_for_backward(grad_output, weight)

    @staticmethod
    def backward(ctx: _Context, direction: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        grad_output, weight = ctx.saved_tensors
        needs_grad_output, needs_weight, _ = ctx.needs_input_grad
        by_grad_output = _apply(_Convolution, direction, weight, None, ctx.problem) if needs_grad_output else None
        by_weight = _apply(_WeightGradient, direction, grad_output, ctx.problem) if needs_weight else None
        return by_grad_output, by_weight, None


class _WeightGradient(Function):
    @staticmethod
    def forward(input: Tensor, grad_output: Tensor, problem: Problem) -> Tensor:
        with _settled(input):
            return _algorithms.weight_gradient(input, grad_output, problem)

    @staticmethod
    def setup_context(ctx: _Context, inputs: tuple[Tensor, Tensor, Problem], output: Tensor) -> None:
        input, grad_output, ctx.problem = inputs
        ctx.save_for_backward(input, grad_output)

    @staticmethod
    def backward(ctx: _Context, direction: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        input, grad_output = ctx.saved_tensors
        needs_input, needs_grad_output, _ = ctx.needs_input_grad
        by_input = _apply(_InputGradient, grad_output, direction, ctx.problem) if needs_input else None
        by_grad_output = _apply(_Convolution, input, direction, None, ctx.problem) if needs_grad_output else None
        return by_input, by_grad_output, None
