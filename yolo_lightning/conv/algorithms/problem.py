"""Sizes and arguments of a 2-D convolution, checked and stored in a hashable `Problem`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from yolo_lightning.errors import UserError

IntOrInts = int | Sequence[int]
Tensors = tuple[Tensor, ...]

SUPPORTED_DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.complex64,
    torch.complex128,
)


@dataclass(frozen=True)
class Problem:
    """Sizes and arguments of one convolution, without data; the key for the selection of an algorithm."""

    input_size: tuple[int, int, int, int]  # `(N, C, H, W)` of the unpadded input
    weight_size: tuple[int, int, int, int]  # `(O, C / groups, kernel height, kernel width)`
    stride: tuple[int, int]  # step between outputs, in input pixels, `(vertical, horizontal)`
    padding: tuple[int, int, int, int]  # zeros around the input, in pixels, `(top, bottom, left, right)`
    dilation: tuple[int, int]  # distance between kernel taps, in input pixels, `(vertical, horizontal)`
    groups: int  # number of independent channel groups
    channels_last: bool  # whether the results have the memory format channels_last (NHWC)

    @property
    def kernel(self) -> tuple[int, int]:
        """Kernel taps `(vertical, horizontal)`."""
        return self.weight_size[2], self.weight_size[3]

    @property
    def padded_size(self) -> tuple[int, int]:
        """Height and width of the padded input."""
        return self.input_size[2] + sum(self.padding[:2]), self.input_size[3] + sum(self.padding[2:])

    @cached_property
    def output_size(self) -> tuple[int, int, int, int]:
        """`(N, O, output height, output width)`; O = 0 for an input without channels, as in torch."""
        height, width = (
            (self.padded_size[axis] - self.dilation[axis] * (self.kernel[axis] - 1) - 1) // self.stride[axis] + 1
            for axis in (0, 1)
        )
        samples, channels, *_ = self.input_size
        return samples, self.weight_size[0] if channels else 0, height, width

    @property
    def is_pointwise(self) -> bool:
        """Whether every output pixel depends on the input pixel at the same position only."""
        return self.kernel == (1, 1) and self.stride == (1, 1) and not any(self.padding)

    @property
    def is_depthwise(self) -> bool:
        """Whether every output channel depends on exactly one of several input channels."""
        return self.weight_size[1] == 1 and self.groups == self.input_size[1] > 1

    @property
    def memory_format(self) -> torch.memory_format:
        """The memory format of the results."""
        return memory_format_of(self.channels_last)


def memory_format_of(channels_last: bool) -> torch.memory_format:
    """Return the memory format of a 4-D tensor."""
    return torch.channels_last if channels_last else torch.contiguous_format


def make_problem(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: IntOrInts,
    padding: IntOrInts | str,
    dilation: IntOrInts,
    groups: int,
    memory_format: torch.memory_format | None = None,
) -> Problem:
    """Check the arguments of `conv2d` for a batched input and return the problem."""
    check_operands(input, weight, bias, groups)
    stride_pair, sides, dilation_pair = spatial_arguments(weight, stride, padding, dilation)
    problem = Problem(
        input_size=(input.size(0), input.size(1), input.size(2), input.size(3)),
        weight_size=(weight.size(0), weight.size(1), weight.size(2), weight.size(3)),
        stride=stride_pair,
        padding=sides,
        dilation=dilation_pair,
        groups=int(groups),
        channels_last=wants_channels_last(input, weight, memory_format),
    )
    reach = tuple(dilation_pair[axis] * (problem.kernel[axis] - 1) + 1 for axis in (0, 1))
    if reach[0] > problem.padded_size[0] or reach[1] > problem.padded_size[1]:
        raise UserError(
            f"kernel size can't be greater than actual input size: the dilated kernel has {reach} pixels, "
            f"the padded input has {problem.padded_size}"
        )
    return problem


def check_operands(input: Tensor, weight: Tensor, bias: Tensor | None, groups: int) -> None:
    """Raise `UserError` unless shapes, dtypes and devices of the operands of a batched convolution fit."""
    if weight.dim() != 4:
        raise UserError(f"expected a 4-D weight (O, C / groups, kH, kW), got shape {tuple(weight.shape)}")
    if input.dim() != 4:
        raise UserError(f"expected 3D (unbatched) or 4D (batched) input to conv2d, got shape {tuple(input.shape)}")
    check_dtypes(input, weight, bias)
    if weight.size(0) < 1 or weight.size(2) < 1 or weight.size(3) < 1:
        raise UserError(
            f"weight must have at least one output channel and one kernel tap, got shape {tuple(weight.shape)}"
        )
    number: Any = groups  # Integral includes the integers of NumPy
    if not isinstance(number, Integral) or groups < 1:
        raise UserError(f"groups must be an integer > 0, got {groups!r}")
    if weight.size(0) % groups:
        raise UserError(f"groups must divide the {weight.size(0)} output channels of the weight, got {groups}")
    if input.size(1) != weight.size(1) * groups:
        raise UserError(
            f"weight of shape {tuple(weight.shape)} with groups={groups} expects an input with "
            f"{weight.size(1) * groups} channels, got {input.size(1)} channels"
        )
    if bias is not None and tuple(bias.shape) != (weight.size(0),):
        raise UserError(f"bias must have shape ({weight.size(0)},), got {tuple(bias.shape)}")


def check_dtypes(input: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Raise `UserError` unless dtypes and devices of the operands are equal and supported."""
    if input.dtype not in SUPPORTED_DTYPES:
        raise UserError(f"input must have dtype {', '.join(map(str, SUPPORTED_DTYPES))}, got {input.dtype}")
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is not None and (tensor.dtype, tensor.device) != (input.dtype, input.device):
            raise UserError(
                f"input ({input.dtype}, {input.device}) and {name} ({tensor.dtype}, {tensor.device}) "
                "should be the same dtype and on the same device"
            )


def spatial_arguments(
    weight: Tensor, stride: IntOrInts, padding: IntOrInts | str, dilation: IntOrInts
) -> tuple[tuple[int, int], tuple[int, int, int, int], tuple[int, int]]:
    """Return stride, padding and dilation as in `Problem`; raise `ValueError` if one is not allowed."""
    stride_pair = _pair("stride", stride, minimum=1)
    dilation_pair = _pair("dilation", dilation, minimum=1)
    kernel = weight.size(2), weight.size(3)
    return stride_pair, _four_sides(padding, stride_pair, dilation_pair, kernel), dilation_pair


def wants_channels_last(input: Tensor, weight: Tensor, memory_format: torch.memory_format | None) -> bool:
    """Return whether the results have the memory format channels_last; `memory_format` as in `conv2d`."""
    if not isinstance(memory_format, torch.memory_format | None):
        raise UserError(f"memory_format must be a torch.memory_format or None, got {memory_format!r}")
    if memory_format is not None:
        return memory_format is torch.channels_last
    return looks_channels_last(input) or looks_channels_last(weight)


def numbers(name: str, value: IntOrInts, count: int, *, minimum: int = 1) -> tuple[int, ...]:
    """Return one integer per spatial dimension; raise `ValueError` if `value` has another length or is too small."""
    values: tuple[Any, ...] = (value,)
    if isinstance(value, tuple | list):
        values = tuple(value)
    if len(values) == 1:
        values *= count
    if len(values) != count or not all(isinstance(number, Integral | torch.SymInt) for number in values):
        raise UserError(f"{name} must be one integer or one for each of the {count} spatial dimensions, got {value!r}")
    if min(values) < minimum:
        raise UserError(f"{name} must be >= {minimum}, got {value!r}")
    # Integers of NumPy are accepted, as by torch.nn.functional.conv2d. An exported `output_size` stays symbolic.
    integers: Iterator[Any] = (number if isinstance(number, torch.SymInt) else int(number) for number in values)
    return tuple(integers)


def _pair(name: str, value: IntOrInts, minimum: int) -> tuple[int, int]:
    vertical, horizontal = numbers(name, value, 2, minimum=minimum)
    return vertical, horizontal


def _four_sides(
    padding: IntOrInts | str, stride: tuple[int, int], dilation: tuple[int, int], kernel: tuple[int, int]
) -> tuple[int, int, int, int]:
    if not isinstance(padding, str):
        vertical, horizontal = _pair("padding", padding, minimum=0)
        return vertical, vertical, horizontal, horizontal
    if padding == "valid":
        return 0, 0, 0, 0
    if padding != "same":
        raise UserError(f"padding must be integers, 'same' or 'valid', got {padding!r}")
    if stride != (1, 1):
        raise UserError(f"padding='same' needs stride 1, got stride {stride}")
    rows, columns = (dilation[axis] * (kernel[axis] - 1) for axis in (0, 1))
    # With an odd total, the extra zero is at the end, as in torch.
    return rows // 2, rows - rows // 2, columns // 2, columns - columns // 2


def looks_channels_last(tensor: Tensor) -> bool:
    """Return whether the strides of a 4-D or 5-D tensor are those of channels_last or channels_last_3d.

    This is `suggest_memory_format` of ATen, by which convolutions of PyTorch select the layout of their output. The
    strides decide also for one channel and for 1x1 weights, whose two layouts have equal contents.
    """
    sizes = tensor.shape
    strides = tensor.stride()
    if strides[1] == 0:
        return False
    smallest = 0
    for axis in (1, *range(tensor.dim() - 1, 1, -1)):
        if sizes[axis] == 0 or strides[axis] < smallest:
            return False
        smallest = strides[axis] * sizes[axis]
    # Equal strides of all pixels and channels, as of (N, 1, 1, 1), count as contiguous.
    return sizes[0] > 0 and strides[0] >= smallest and smallest != strides[1]
