"""2-D convolution by matrix products, with derivatives of any order."""

import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

from yolo_lightning.conv import operators
from yolo_lightning.conv.algorithms.problem import (
    IntOrPair,
    Problem,
    check_operands,
    make_problem,
    spatial_arguments,
    wants_channels_last,
)
from yolo_lightning.conv.algorithms.shared import exports_to_onnx, without_autocast
from yolo_lightning.conv.plan import DEFAULT_PLAN, Plan

P = ParamSpec("P")
T = TypeVar("T")


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: IntOrPair = 1,
    padding: IntOrPair | str = 0,
    dilation: IntOrPair = 1,
    groups: int = 1,
    *,
    plan: Plan = DEFAULT_PLAN,
    memory_format: torch.memory_format | None = None,
) -> Tensor:
    """Compute `torch.nn.functional.conv2d` without a vendor convolution library, forward and backward.

    The backward pass needs the input and the weight only; lowered columns are not saved. Under autocast, tensors are
    cast to the autocast dtype, like those of the native operator. Compilers and `torch.export` see one registered
    operator (see `operators`), in which the plan selects the algorithm at run time; `torch.onnx.export` sees PyTorch's.

    Args:
        input: `(N, C, H, W)` or unbatched `(C, H, W)`; float32, float64, float16 or bfloat16; any strides.
        weight: `(O, C / groups, kernel height, kernel width)`, same dtype and device.
        bias: `(O,)` or None, same dtype and device.
        stride: Step between outputs in pixels, one value or `(vertical, horizontal)`.
        padding: Zeros on both sides in pixels, one value or `(vertical, horizontal)`, or `"same"` or `"valid"`.
        dilation: Distance between kernel taps in pixels, one value or `(vertical, horizontal)`.
        groups: Number of independent channel groups.
        plan: Selects the algorithm of each product; results of different plans differ by rounding only.
        memory_format: Layout of the result; None selects channels_last if the input or the weight has this layout.

    Returns:
        `(N, O, H', W')`, or `(O, H', W')` for an unbatched input, in the dtype of the (cast) input.

    Raises:
        ValueError: If an argument is not allowed.
    """
    if exports_to_onnx():
        return F.conv2d(input, weight, bias, stride, padding, dilation, groups)
    input, weight, bias = autocast_operands(input, weight, bias)
    if input.dim() == 3:
        batch = input.unsqueeze(0)
        output = conv2d(batch, weight, bias, stride, padding, dilation, groups, plan=plan, memory_format=memory_format)
        return output.squeeze(0)
    if torch.compiler.is_compiling():
        return _compiled_conv2d(input, weight, bias, stride, padding, dilation, groups, plan, memory_format)
    problem = make_problem(input, weight, bias, stride, padding, dilation, groups, memory_format)
    if bias is not None and problem.input_size[1] == 0:
        # The output has no channels either (see Problem.output_size); the empty slice gives the bias a zero gradient.
        bias = bias[:0]
    result: Tensor = _Convolution.apply(input, weight, bias, problem, plan)
    return result


def _compiled_conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: IntOrPair,
    padding: IntOrPair | str,
    dilation: IntOrPair,
    groups: int,
    plan: Plan,
    memory_format: torch.memory_format | None,
) -> Tensor:
    """Compute `conv2d` by a registered operator, for a compiler that traces this function; see `operators`."""
    check_operands(input, weight, bias, groups)
    output: Tensor = operators.conv2d(
        input,
        weight,
        *spatial_arguments(weight, stride, padding, dilation),
        groups,
        wants_channels_last(input, weight, memory_format),
        plan.handle,
    )
    return output if bias is None else output + bias[: output.size(1)].view(1, -1, 1, 1)


def input_gradient(grad_output: Tensor, weight: Tensor, problem: Problem, plan: Plan) -> Tensor:
    """Return the gradient of the input of the convolution `problem`; differentiable in both tensors.

    Transposed convolution is this function. `grad_output` has the size `problem.output_size`.
    """
    if torch.compiler.is_compiling():
        compiled: Tensor = operators.conv2d_input_gradient(
            grad_output,
            weight,
            problem.input_size,
            problem.stride,
            problem.padding,
            problem.dilation,
            problem.groups,
            problem.channels_last,
            plan.handle,
        )
        return compiled
    result: Tensor = _InputGradient.apply(grad_output, weight, problem, plan)
    return result


def autocast_operands(input: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the operands in the dtype of autocast, if autocast is enabled on their device."""
    device_type = input.device.type
    if not (torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type)):
        return input, weight, bias
    dtype = torch.get_autocast_dtype(device_type)
    return _autocast(input, dtype), _autocast(weight, dtype), None if bias is None else _autocast(bias, dtype)


def _autocast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    # Native autocast does not cast float64 either.
    return tensor.to(dtype) if tensor.is_floating_point() and tensor.dtype != torch.float64 else tensor


# Convolution is linear in the input and in the weight, so the derivatives of each function below are compositions of
# the other functions. Double backward therefore needs no further formulas and never differentiates through an
# algorithm, which may write into buffers.

MaybeTensor = Tensor | None


def _with_signature(function: Callable[P, T]) -> Callable[P, T]:
    """Cache the signature: `Function.apply` calls `inspect.signature` on every call, which takes about 25 us."""
    function.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return function


def _apply(function: type[Function], ctx: Any, *tensors: MaybeTensor) -> Tensor:
    """Apply another function with the problem and plan of the context."""
    result: Tensor = function.apply(*tensors, ctx.problem, ctx.plan)
    return result


def _whole(tensor: Tensor) -> Tensor:
    """Return the same memory as a tensor that is not a view: autograd forbids to change a view from here in place."""
    return tensor.data if tensor._is_view() else tensor


class _Convolution(Function):
    @staticmethod
    @_with_signature
    def forward(input: Tensor, weight: Tensor, bias: MaybeTensor, problem: Problem, plan: Plan) -> Tensor:
        with without_autocast(input):
            output = _whole(plan.forward(input, weight, problem))
        return output if bias is None else output.add_(bias.view(1, -1, 1, 1))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, MaybeTensor, Problem, Plan], output: Tensor) -> None:
        input, weight, _, ctx.problem, ctx.plan = inputs
        needs_input, needs_weight = ctx.needs_input_grad[:2]
        ctx.save_for_backward(input if needs_weight else None, weight if needs_input else None)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[MaybeTensor, MaybeTensor, MaybeTensor, None, None]:
        input, weight = ctx.saved_tensors
        needs_input, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        grad_input = grad_weight = None
        if needs_input and needs_weight:
            grad_input, grad_weight = _Gradients.apply(input, grad_output, weight, ctx.problem, ctx.plan)
        elif needs_input:
            grad_input = _apply(_InputGradient, ctx, grad_output, weight)
        elif needs_weight:
            grad_weight = _apply(_WeightGradient, ctx, input, grad_output)
        grad_bias = grad_output.sum((0, 2, 3)) if needs_bias else None
        return grad_input, grad_weight, grad_bias, None, None


class _Product(Function):
    """A product of two tensors, both of which are saved for the backward pass."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Problem, Plan], output: Tensor) -> None:
        first, second, ctx.problem, ctx.plan = inputs
        ctx.save_for_backward(first, second)


class _InputGradient(_Product):
    @staticmethod
    @_with_signature
    def forward(grad_output: Tensor, weight: Tensor, problem: Problem, plan: Plan) -> Tensor:
        with without_autocast(grad_output):
            return _whole(plan.input_gradient(grad_output, weight, problem))

    @staticmethod
    def backward(ctx: Any, direction: Tensor) -> tuple[MaybeTensor, MaybeTensor, None, None]:
        grad_output, weight = ctx.saved_tensors
        needs_grad_output, needs_weight = ctx.needs_input_grad[:2]
        by_grad_output = _apply(_Convolution, ctx, direction, weight, None) if needs_grad_output else None
        by_weight = _apply(_WeightGradient, ctx, direction, grad_output) if needs_weight else None
        return by_grad_output, by_weight, None, None


class _WeightGradient(_Product):
    @staticmethod
    @_with_signature
    def forward(input: Tensor, grad_output: Tensor, problem: Problem, plan: Plan) -> Tensor:
        with without_autocast(input):
            return plan.weight_gradient(input, grad_output, problem)

    @staticmethod
    def backward(ctx: Any, direction: Tensor) -> tuple[MaybeTensor, MaybeTensor, None, None]:
        input, grad_output = ctx.saved_tensors
        needs_input, needs_grad_output = ctx.needs_input_grad[:2]
        by_input = _apply(_InputGradient, ctx, grad_output, direction) if needs_input else None
        by_grad_output = _apply(_Convolution, ctx, input, direction, None) if needs_grad_output else None
        return by_input, by_grad_output, None, None


class _Gradients(Function):
    """Both gradients in one call, for algorithms that share a lowered tensor between them."""

    @staticmethod
    @_with_signature
    def forward(
        input: Tensor, grad_output: Tensor, weight: Tensor, problem: Problem, plan: Plan
    ) -> tuple[Tensor, Tensor]:
        with without_autocast(input):
            return plan.gradients(input, grad_output, weight, problem)

    @staticmethod
    def setup_context(
        ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, Problem, Plan], output: tuple[Tensor, Tensor]
    ) -> None:
        input, grad_output, weight, ctx.problem, ctx.plan = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(input, grad_output, weight)

    @staticmethod
    def backward(
        ctx: Any, along_input: MaybeTensor, along_weight: MaybeTensor
    ) -> tuple[MaybeTensor, MaybeTensor, MaybeTensor, None, None]:
        """Return the vector-Jacobian product; either of the gradients of the two outputs may be None."""
        input, grad_output, weight = ctx.saved_tensors
        needs_input, needs_grad_output, needs_weight = ctx.needs_input_grad[:3]
        by_input = by_grad_output = by_weight = None
        if along_weight is not None and needs_input:
            by_input = _apply(_InputGradient, ctx, grad_output, along_weight)
        if along_input is not None and needs_weight:
            by_weight = _apply(_WeightGradient, ctx, along_input, grad_output)
        if needs_grad_output:
            pairs = ((along_input, weight), (input, along_weight))
            whole = [pair for pair in pairs if pair[0] is not None and pair[1] is not None]
            terms = [_apply(_Convolution, ctx, *pair, None) for pair in whole]
            by_grad_output = sum(terms[1:], terms[0]) if terms else None
        return by_input, by_grad_output, by_weight, None, None
