"""1-D, 3-D and transposed convolution, composed of the 2-D products in `functional`; derivatives of any order."""

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from yolo_lightning.conv.algorithms.problem import (
    IntOrInts,
    Problem,
    check_dtypes,
    looks_channels_last,
    numbers,
    wants_channels_last,
)
from yolo_lightning.conv.algorithms.shared import exports_to_onnx, is_traced, with_bias
from yolo_lightning.conv.functional import (
    ConvArguments,
    autocast_operands,
    complex_product,
    conv2d,
    input_gradient,
    traced_convolution,
)
from yolo_lightning.conv.plan import DEFAULT_PLAN, Plan
from yolo_lightning.errors import UserError


def conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: IntOrInts = 1,
    padding: IntOrInts | str = 0,
    dilation: IntOrInts = 1,
    groups: int = 1,
    *,
    plan: Plan = DEFAULT_PLAN,
) -> Tensor:
    """Compute `torch.nn.functional.conv1d` without a vendor library, as a 2-D convolution of images of height 1.

    Args and errors as in `conv2d`, with an input `(N, C, L)` or `(C, L)` and a weight `(O, C / groups, kernel length)`.
    """
    _check_dimensions("conv1d", 1, input, weight)
    if exports_to_onnx():
        return F.conv1d(input, weight, bias, stride, padding, dilation, groups)
    output = conv2d(
        input.unsqueeze(-2),
        weight.unsqueeze(-2),
        bias,
        (1, *numbers("stride", stride, 1)),
        padding if isinstance(padding, str) else (0, *numbers("padding", padding, 1, minimum=0)),
        (1, *numbers("dilation", dilation, 1)),
        groups,
        plan=plan,
        memory_format=torch.contiguous_format,
    )
    return output.squeeze(-2)


def conv3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: IntOrInts = 1,
    padding: IntOrInts | str = 0,
    dilation: IntOrInts = 1,
    groups: int = 1,
    *,
    plan: Plan = DEFAULT_PLAN,
) -> Tensor:
    """Compute `torch.nn.functional.conv3d` without a vendor library, as one 2-D convolution.

    Every output slice becomes a sample whose channels are the input slices that its kernel reads. These are copied: the
    backward pass keeps `kernel depth` times the input, divided by the stride in depth.

    Args and errors as in `conv2d`, with an input `(N, C, D, H, W)` or `(C, D, H, W)`, and a weight
    `(O, C / groups, kernel depth, kernel height, kernel width)`.
    """
    _check_dimensions("conv3d", 3, input, weight)
    arguments: ConvArguments = (stride, padding, dilation, groups)
    if exports_to_onnx():
        return F.conv3d(input, weight, bias, stride, padding, dilation, groups)
    if input.dim() == 4:
        return conv3d(input.unsqueeze(0), weight, bias, *arguments, plan=plan).squeeze(0)
    input, weight, bias = autocast_operands(input, weight, bias)
    if is_traced():
        return traced_convolution(input, weight, bias, arguments, plan, None)
    memory_format = _format3d(input, weight)
    step, *plane_step = numbers("stride", stride, 3)
    gap, *plane_gap = numbers("dilation", dilation, 3)
    taps = weight.size(2)
    reach = gap * (taps - 1)
    front = 0
    back = 0
    plane_sides: IntOrInts | str
    if not isinstance(padding, str):
        front, *plane_sides = numbers("padding", padding, 3, minimum=0)
        back = front
    else:
        plane_sides = padding
        if padding == "same":
            if step != 1:
                raise UserError(f"padding='same' needs stride 1, got stride {stride}")
            front = reach // 2
            back = reach - front
    if front or back:
        input = F.pad(input, (0, 0, 0, 0, front, back))
    samples = input.size(0)
    depth = input.size(2)
    if reach < 0 or reach >= depth:
        raise UserError(
            "kernel size can't be greater than actual input size: the dilated kernel has "
            f"{reach + 1} slices, the padded input has {depth}"
        )
    windows = input.unfold(2, reach + 1, step)[..., ::gap]  # (N, C, D', H, W, taps)
    slices = windows.permute(0, 2, 1, 5, 3, 4).flatten(2, 3).flatten(0, 1)
    kernel = weight.flatten(1, 2)
    output = conv2d(slices, kernel, bias, plane_step, plane_sides, plane_gap, groups, plan=plan)
    return _laid_out(torch.unflatten(output, 0, (samples, windows.size(2))).transpose(1, 2), memory_format)


def conv_transpose(
    dimensions: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: IntOrInts = 1,
    padding: IntOrInts = 0,
    output_padding: IntOrInts = 0,
    groups: int = 1,
    dilation: IntOrInts = 1,
    *,
    plan: Plan = DEFAULT_PLAN,
) -> Tensor:
    """Compute `torch.nn.functional.conv_transpose1d`, `2d` or `3d` without a vendor library.

    Transposed convolution is the input gradient of a convolution. In 3-D, a transposed 2-D convolution of every slice
    yields one output slice per kernel tap in depth, and these are added.

    Args:
        dimensions: Spatial dimensions, 1, 2 or 3.
        input: `(N, C, ...)` or unbatched `(C, ...)`; float32, float64, float16 or bfloat16.
        weight: `(C, O / groups, ...)`, same dtype and device.
        bias: `(O,)` or None, same dtype and device.
        stride: Step between the outputs of two inputs, in pixels, one value or one per dimension.
        padding: Pixels removed on both sides of the output, one value or one per dimension.
        output_padding: Pixels added at the end of the output, one value or one per dimension.
        groups: Number of independent channel groups.
        dilation: Distance between kernel taps in pixels, one value or one per dimension.
        plan: Selects the algorithm of each product; results of different plans differ by rounding only.

    Returns:
        `(N, O, ...)` or `(O, ...)` in the dtype of the (cast) input.

    Raises:
        UserError: If an argument is not allowed.
    """
    _check_dimensions(f"conv_transpose{dimensions}d", dimensions, input, weight)
    if exports_to_onnx():
        native = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[dimensions - 1]
        return native(input, weight, bias, stride, padding, output_padding, groups, dilation)
    input, weight, bias = autocast_operands(input, weight, bias)
    if is_traced():
        return _traced_transpose(
            dimensions, input, weight, bias, stride, padding, output_padding, groups, dilation, plan
        )
    spatial = _Spatial(
        steps=numbers("stride", stride, dimensions),
        sides=numbers("padding", padding, dimensions, minimum=0),
        extra=numbers("output_padding", output_padding, dimensions, minimum=0),
        gaps=numbers("dilation", dilation, dimensions),
    )
    if any(more >= max(step, gap) for more, step, gap in zip(spatial.extra, spatial.steps, spatial.gaps, strict=True)):
        raise UserError(f"output_padding must be smaller than stride or dilation, got {output_padding!r}")
    is_batched = input.dim() == dimensions + 2
    if not is_batched:
        input = input.unsqueeze(0)
    if groups < 1 or weight.size(0) % groups or not weight.numel():
        raise UserError(f"groups must divide the channels of a non-empty weight {tuple(weight.shape)}, got {groups}")
    if input.size(1) != weight.size(0):
        raise UserError(
            f"weight of shape {tuple(weight.shape)} expects an input with {weight.size(0)} channels, "
            f"got {input.size(1)} channels"
        )
    check_dtypes(input, weight, bias)
    if bias is not None and tuple(bias.shape) != (weight.size(1) * groups,):
        raise UserError(f"bias must have shape ({weight.size(1) * groups},), got {tuple(bias.shape)}")
    function = (_transpose1d, _transpose2d, _transpose3d)[dimensions - 1]
    transpose = partial(function, spatial=spatial, groups=int(groups), plan=plan)
    if input.is_complex():
        output = complex_product(transpose, input, weight, bias)
    else:
        output = with_bias(transpose(input, weight), bias)
    if not is_batched:
        return output.squeeze(0)
    return output


Numbers = tuple[int, ...]


class _Spatial(NamedTuple):
    """Arguments of a transposed convolution, one number per spatial dimension."""

    steps: Numbers
    sides: Numbers
    extra: Numbers
    gaps: Numbers

    def of_planes(self) -> "_Spatial":
        """Return the arguments without the first dimension."""
        return _Spatial(self.steps[1:], self.sides[1:], self.extra[1:], self.gaps[1:])


def _traced_transpose(
    dimensions: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: IntOrInts,
    padding: IntOrInts,
    output_padding: IntOrInts,
    groups: int,
    dilation: IntOrInts,
    plan: Plan,
) -> Tensor:
    """Record a transposed convolution as one operator in a graph of `torch.jit.trace`; see `torchscript`."""
    # Numbers that a layer derives from `output_size` are tensors in a trace.
    added = output_padding if isinstance(output_padding, tuple | list) else (output_padding,)
    output: Tensor = torch.ops.yolo_lightning.transposed_convolution(
        input,
        weight,
        bias,
        numbers("stride", stride, dimensions),
        numbers("padding", padding, dimensions, minimum=0),
        torch.stack([number if isinstance(number, Tensor) else torch.full((), number) for number in added]),
        groups,
        numbers("dilation", dilation, dimensions),
        plan.name,
    )
    return output


def _transpose1d(input: Tensor, weight: Tensor, spatial: _Spatial, groups: int, plan: Plan) -> Tensor:
    """Return the transposed convolution of a batch, without a bias."""
    planes = _Spatial((1, *spatial.steps), (0, *spatial.sides), (0, *spatial.extra), (1, *spatial.gaps))
    output = _transpose2d(input.unsqueeze(2), weight.unsqueeze(2), planes, groups, plan)
    return _laid_out(output.squeeze(2), torch.contiguous_format)


def _transpose2d(input: Tensor, weight: Tensor, spatial: _Spatial, groups: int, plan: Plan) -> Tensor:
    """Return the transposed convolution of a batch, without a bias."""
    # The convolution whose input gradient is wanted maps O channels to C channels, so that its output is `input`.
    sizes = []
    padding = []
    pads = []
    for axis in (0, 1):
        step, side, extra, gap = (values[axis] for values in spatial)
        full = (input.size(2 + axis) - 1) * step + gap * (weight.size(2 + axis) - 1) + 1
        _check_size(full - 2 * side + extra, spatial)
        before = min(side, full - 1)
        after = max(0, side - extra)
        padding += [before, after]
        sizes.append(full - before - after)
        # Pixels that no product reaches, and pixels to remove that a convolution cannot have as padding.
        pads.append((before - side, max(0, extra - side)))
    problem = Problem(
        input_size=(input.size(0), weight.size(1) * groups, sizes[0], sizes[1]),
        weight_size=(weight.size(0), weight.size(1), weight.size(2), weight.size(3)),
        stride=(spatial.steps[0], spatial.steps[1]),
        padding=(padding[0], padding[1], padding[2], padding[3]),
        dilation=(spatial.gaps[0], spatial.gaps[1]),
        groups=groups,
        channels_last=wants_channels_last(input, weight, None),
    )
    output = input_gradient(input, weight, problem, plan)
    if not any(map(any, pads)):
        return output
    return F.pad(output, (*pads[1], *pads[0]))


def _transpose3d(input: Tensor, weight: Tensor, spatial: _Spatial, groups: int, plan: Plan) -> Tensor:
    """Return the transposed convolution of a batch, without a bias."""
    memory_format = _format3d(input, weight)
    step, side, extra, gap = (values[0] for values in spatial)
    samples = input.size(0)
    depth = input.size(2)
    taps = weight.size(2)
    slices = input.transpose(1, 2).flatten(0, 1)
    parts = _transpose2d(slices, weight.flatten(1, 2), spatial.of_planes(), groups, plan)
    parts = torch.unflatten(torch.unflatten(parts, 1, (-1, taps)), 0, (samples, depth))  # (N, D, O, taps, H', W')
    reach = (depth - 1) * step + 1  # from the first to the last output slice of one tap
    output_depth = reach + gap * (taps - 1) - 2 * side + extra
    _check_size(output_depth, spatial)
    size = (samples, parts.size(2), output_depth + 2 * side, *parts.shape[-2:])
    full = parts.new_zeros(size)
    for tap in range(taps):
        start = tap * gap
        full[:, :, start : start + reach : step] += parts[:, :, :, tap].transpose(1, 2)
    return _laid_out(full[:, :, side : side + output_depth], memory_format)


def _format3d(input: Tensor, weight: Tensor) -> torch.memory_format:
    """Return the memory format of the output of a 3-D convolution, which is that of PyTorch's layers."""
    is_channels_last = looks_channels_last(input) or looks_channels_last(weight)
    return torch.channels_last_3d if is_channels_last else torch.contiguous_format


def _laid_out(output: Tensor, memory_format: torch.memory_format) -> Tensor:
    """Return an output in a memory format, with the usual strides also in dimensions of size 1."""
    dense = output.contiguous(memory_format=memory_format)
    if 1 in output.shape and dense is output:
        return output.clone(memory_format=memory_format)
    return dense


def _check_dimensions(name: str, dimensions: int, input: Tensor, weight: Tensor) -> None:
    for operand in (input, weight):
        if not isinstance(operand, Tensor):
            raise UserError(f"input and weight of {name} must be tensors, got {type(operand).__name__}")
    if weight.dim() != dimensions + 2:
        raise UserError(f"expected a {dimensions + 2}-D weight for {name}, got shape {tuple(weight.shape)}")
    if input.dim() not in (dimensions + 1, dimensions + 2):
        raise UserError(
            f"expected {dimensions + 1}D (unbatched) or {dimensions + 2}D (batched) input to {name}, "
            f"got shape {tuple(input.shape)}"
        )


def _check_size(size: int, spatial: _Spatial) -> None:
    if size < 1:
        raise UserError(
            f"output size is too small ({size}) with padding {spatial.sides} and output_padding {spatial.extra}"
        )
