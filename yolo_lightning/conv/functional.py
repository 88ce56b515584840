"""2-D convolution by matrix products, with derivatives of any order."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

# The backward pass for `is_grads_batched` contains these tensors, for which autograd functions have no rule.
from torch._C._functorch import is_legacy_batchedtensor
from torch.autograd import Function
from torch.nn import functional as F

from yolo_lightning.conv import operators
from yolo_lightning.conv.algorithms.algorithm import Operation, single_or_all
from yolo_lightning.conv.algorithms.problem import (
    IntOrInts,
    Problem,
    Tensors,
    check_operands,
    make_problem,
    numbers,
    spatial_arguments,
    wants_channels_last,
)
from yolo_lightning.conv.algorithms.shared import (
    exports_to_onnx,
    is_recorded,
    is_traced,
    is_under_autocast,
    with_bias,
    with_usual_strides,
    without_autocast,
)
from yolo_lightning.conv.batching import mapped_product
from yolo_lightning.conv.derivatives import MaybeTensor, derivatives, tangents_of_results
from yolo_lightning.conv.plan import DEFAULT_PLAN, Plan
from yolo_lightning.errors import UserError

P = ParamSpec("P")
T = TypeVar("T")
ConvArguments = tuple[IntOrInts, IntOrInts | str, IntOrInts, int]
"""Stride, padding, dilation and groups of `conv2d`, as the caller has given them."""


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: IntOrInts = 1,
    padding: IntOrInts | str = 0,
    dilation: IntOrInts = 1,
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
        input: `(N, C, H, W)` or unbatched `(C, H, W)`; a dtype of `SUPPORTED_DTYPES`; any strides.
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
        UserError: If an argument is not allowed.
    """
    for value, expected_type in ((input, Tensor), (weight, Tensor), (bias, Tensor | None), (plan, Plan)):
        if not isinstance(value, expected_type):
            raise UserError(
                "input, weight and bias must be tensors and plan a Plan, got "
                f"{type(value).__name__} instead of {expected_type}"
            )
    arguments: ConvArguments = (stride, padding, dilation, groups)
    if exports_to_onnx():
        return F.conv2d(input, weight, bias, stride, padding, dilation, groups)
    input, weight, bias = autocast_operands(input, weight, bias)
    if input.dim() == 3:
        output = conv2d(input.unsqueeze(0), weight, bias, *arguments, plan=plan, memory_format=memory_format)
        return output.squeeze(0)
    if is_traced():
        return traced_convolution(input, weight, bias, arguments, plan, memory_format)
    if input.is_complex():
        check_operands(input, weight, bias, groups)

        def convolve(input: Tensor, weight: Tensor) -> Tensor:
            return conv2d(input, weight, None, *arguments, plan=plan, memory_format=memory_format)

        return complex_product(convolve, input, weight, bias)
    if is_recorded(input):
        return _compiled_conv2d(input, weight, bias, arguments, plan, memory_format)
    problem = make_problem(input, weight, bias, *arguments, memory_format)
    if bias is not None and problem.input_size[1] == 0:
        # The output has no channels either (see Problem.output_size); the empty slice gives the bias a zero gradient.
        bias = bias[:0]
    result: Tensor = _Convolution.apply(input, weight, bias, problem, plan)
    return result


def _compiled_conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    arguments: ConvArguments,
    plan: Plan,
    memory_format: torch.memory_format | None,
) -> Tensor:
    """Compute `conv2d` by a registered operator, for a compiler that traces this function; see `operators`."""
    stride, padding, dilation, groups = arguments
    check_operands(input, weight, bias, groups)
    output: Tensor = operators.conv2d(
        input,
        weight,
        *spatial_arguments(weight, stride, padding, dilation),
        groups,
        wants_channels_last(input, weight, memory_format),
        plan.name,
    )
    if bias is not None:
        bias = bias[: output.size(1)]
    return with_bias(output, bias)


def traced_convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    arguments: ConvArguments,
    plan: Plan,
    memory_format: torch.memory_format | None,
) -> Tensor:
    """Record a 2-D or 3-D convolution as one operator in a graph of `torch.jit.trace`; see `torchscript`."""
    stride, padding, dilation, groups = arguments
    dimensions = weight.dim() - 2
    padding_name = ""
    sides: tuple[int, ...] = ()
    if isinstance(padding, str):
        padding_name = padding
    else:
        sides = numbers("padding", padding, dimensions, minimum=0)
    output: Tensor = torch.ops.yolo_lightning.convolution(
        input,
        weight,
        bias,
        numbers("stride", stride, dimensions),
        sides,
        padding_name,
        numbers("dilation", dilation, dimensions),
        groups,
        None if memory_format is None else memory_format is torch.channels_last,
        plan.name,
    )
    return output


def complex_product(
    product: Callable[[Tensor, Tensor], Tensor], input: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    """Return a bilinear product of complex tensors by three real products, as ATen does."""
    real = product(input.real, weight.real)
    imaginary = product(input.imag, weight.imag)
    both = product(input.real + input.imag, weight.real + weight.imag)
    return with_bias(torch.complex(real - imaginary, both - real - imaginary), bias)


def input_gradient(grad_output: Tensor, weight: Tensor, problem: Problem, plan: Plan) -> Tensor:
    """Return the gradient of the input of the convolution `problem`; differentiable in both tensors.

    Transposed convolution is this function. `grad_output` has the size `problem.output_size`.
    """
    if is_recorded(grad_output):
        compiled: Tensor = operators.product(Operation.INPUT_GRADIENT, problem, plan, grad_output, weight)
        return compiled
    result: Tensor = _Product.apply(Operation.INPUT_GRADIENT, problem, plan, grad_output, weight)
    return result


def autocast_operands(input: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the operands in the dtype of autocast, if autocast is enabled on their device."""
    device_type = input.device.type
    if not is_under_autocast(device_type):
        return input, weight, bias
    dtype = torch.get_autocast_dtype(device_type)
    if bias is not None:
        bias = _autocast(bias, dtype)
    return _autocast(input, dtype), _autocast(weight, dtype), bias


def _autocast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    if not tensor.is_floating_point() or tensor.dtype == torch.float64:  # as native autocast
        return tensor
    return tensor.to(dtype)


def _with_signature(function: Callable[P, T]) -> Callable[P, T]:
    """Cache the signature: `Function.apply` calls `inspect.signature` on every call, which takes about 25 us."""
    function.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return function


def _whole(tensor: Tensor, problem: Problem) -> Tensor:
    """Return the same memory as a tensor that is not a view: autograd forbids to change a view from here in place."""
    usual = with_usual_strides(tensor, problem.channels_last)
    return usual.data if usual._is_view() else usual


class _Product(Function):
    """Any operation of a convolution; see `derivatives`."""

    @staticmethod
    @_with_signature
    def forward(operation: Operation, problem: Problem, plan: Plan, *tensors: Tensor) -> Tensor | Tensors:
        with without_autocast(tensors[0]):
            results = plan.compute(operation, problem, tensors)
        if len(results) == 1:
            return _whole(results[0], problem)
        return results

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor | Tensors) -> None:
        ctx.operation, *ctx.about = inputs[:3]
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[3:])
        ctx.save_for_forward(*inputs[3:])

    @staticmethod
    def backward(ctx: Any, *directions: MaybeTensor) -> tuple[MaybeTensor, ...]:
        product = partial(_apply, *ctx.about)
        grads = derivatives(ctx.operation, product, ctx.saved_tensors, ctx.needs_input_grad[3:], directions)
        return None, None, None, *grads

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        product = partial(_apply, *ctx.about)
        return single_or_all(tangents_of_results(ctx.operation, product, ctx.saved_tensors, tangents[3:]))

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        operation: Operation,
        problem: Problem,
        plan: Plan,
        *tensors: Tensor,
    ) -> Any:
        product = partial(_apply_to, plan)
        results = mapped_product(product, operation, problem, info.batch_size, in_dims[3:], tensors)
        return single_or_all(results), single_or_all((0,) * len(results))


def _apply(problem: Problem, plan: Plan, operation: Operation, *tensors: Tensor, like: MaybeTensor = None) -> Any:
    if any(map(is_legacy_batchedtensor, tensors)):
        return operators.product(operation, problem, plan, *tensors)
    return _Product.apply(operation, problem, plan, *tensors)


def _apply_to(plan: Plan, operation: Operation, problem: Problem, *tensors: Tensor) -> Any:
    return _Product.apply(operation, problem, plan, *tensors)


class _Convolution(Function):
    """The output with a bias. The backward pass needs the input only for the weight gradient, and vice versa."""

    @staticmethod
    @_with_signature
    def forward(input: Tensor, weight: Tensor, bias: MaybeTensor, problem: Problem, plan: Plan) -> Tensor:
        with without_autocast(input):
            output = _whole(plan.compute(Operation.FORWARD, problem, (input, weight))[0], problem)
        if bias is not None:
            output.add_(bias.view(1, -1, 1, 1))
        return output

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, MaybeTensor, Problem, Plan], output: Tensor) -> None:
        input, weight, _, *ctx.about = inputs
        needs_input, needs_weight = ctx.needs_input_grad[:2]
        ctx.save_for_backward(input if needs_weight else None, weight if needs_input else None)
        ctx.save_for_forward(input, weight)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[MaybeTensor, ...]:
        product = partial(_apply, *ctx.about)
        needs = ctx.needs_input_grad
        grads = derivatives(Operation.FORWARD, product, ctx.saved_tensors, needs, [grad_output])
        grad_bias = grad_output.sum((0, 2, 3)) if needs[2] else None
        return *grads, grad_bias, None, None

    @staticmethod
    def jvp(ctx: Any, input: MaybeTensor, weight: MaybeTensor, bias: MaybeTensor, problem: None, plan: None) -> Tensor:
        product = partial(_apply, *ctx.about)
        (output,) = tangents_of_results(Operation.FORWARD, product, ctx.saved_tensors, (input, weight))
        if output is None:
            output = ctx.saved_tensors[0].new_zeros(ctx.about[0].output_size)
        return with_bias(output, bias)

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        input: Tensor,
        weight: Tensor,
        bias: MaybeTensor,
        problem: Problem,
        plan: Plan,
    ) -> tuple[Tensor, int]:
        entries = info.batch_size
        if in_dims[0] is None and in_dims[1] is None:
            output = _Product.apply(Operation.FORWARD, problem, plan, input, weight).expand(entries, -1, -1, -1, -1)
        else:
            product = partial(_apply_to, plan)
            (output,) = mapped_product(product, Operation.FORWARD, problem, entries, in_dims[:2], (input, weight))
        if bias is not None:
            biases = bias if in_dims[2] is None else bias.movedim(in_dims[2], 0)
            output = output + biases.view(-1, 1, biases.size(-1), 1, 1)
        return output, 0
