"""What a 2-D convolution is asked to do: its arguments checked, completed and frozen into one hashable `Problem`."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

IntOrPair = int | Sequence[int]
Tensors = tuple[Tensor, ...]

SUPPORTED_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Problem:
    """One convolution without its numbers; equal problems can share an algorithm.

    Attributes:
        input_size: `(N, C, H, W)` of the unpadded input.
        weight_size: `(O, C / groups, kernel height, kernel width)`.
        stride: Step between outputs, in input pixels, `(vertical, horizontal)`.
        padding: Zeros around the input, in pixels, `(top, bottom, left, right)`.
        dilation: Distance between kernel taps, in input pixels, `(vertical, horizontal)`.
        groups: Number of independent channel groups.
        channels_last: Whether results are laid out with channels innermost in memory (NHWC).
    """

    input_size: tuple[int, int, int, int]
    weight_size: tuple[int, int, int, int]
    stride: tuple[int, int]
    padding: tuple[int, int, int, int]
    dilation: tuple[int, int]
    groups: int
    channels_last: bool

    @property
    def kernel(self) -> tuple[int, int]:
        """Kernel taps `(vertical, horizontal)`."""
        return self.weight_size[2], self.weight_size[3]

    @property
    def padded_size(self) -> tuple[int, int]:
        """Height and width of the padded input."""
        top, bottom, left, right = self.padding
        return self.input_size[2] + top + bottom, self.input_size[3] + left + right

    @cached_property
    def output_size(self) -> tuple[int, int, int, int]:
        """`(N, O, output height, output width)`; torch answers an input without channels with O = 0, and so do we."""
        height, width = (
            (self.padded_size[axis] - self.dilation[axis] * (self.kernel[axis] - 1) - 1) // self.stride[axis] + 1
            for axis in (0, 1)
        )
        return self.input_size[0], self.weight_size[0] if self.input_size[1] else 0, height, width

    @property
    def is_pointwise(self) -> bool:
        """Whether every output pixel sees exactly the input pixel at its own place."""
        return self.kernel == (1, 1) and self.stride == (1, 1) and not any(self.padding)

    @property
    def is_depthwise(self) -> bool:
        """Whether every output channel sees exactly one of several input channels."""
        return self.weight_size[1] == 1 and self.groups == self.input_size[1] > 1

    @property
    def memory_format(self) -> torch.memory_format:
        """The memory format of the results."""
        return torch.channels_last if self.channels_last else torch.contiguous_format


def make_problem(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: IntOrPair,
    padding: IntOrPair | str,
    dilation: IntOrPair,
    groups: int,
    memory_format: torch.memory_format | None = None,
) -> Problem:
    """Check the arguments of a batched convolution and complete them.

    Args:
        input: `(N, C, H, W)`.
        weight: `(O, C / groups, kernel height, kernel width)`, dtype and device of the input.
        bias: `(O,)` or None, dtype and device of the input.
        stride: Positive, one value or `(vertical, horizontal)`.
        padding: Not negative, one value or `(vertical, horizontal)`, or `"same"` or `"valid"`.
        dilation: Positive, one value or `(vertical, horizontal)`.
        groups: Positive, divides both channel counts.
        memory_format: Layout of the results; None is channels_last where the input or the weight is.

    Raises:
        ValueError: If an argument is not allowed; the message holds the bad value and the allowed ones.
    """
    _check_tensors(input, weight, bias)
    stride_pair = _pair("stride", stride, minimum=1)
    dilation_pair = _pair("dilation", dilation, minimum=1)
    # int: under torch.jit.trace a size is a tensor, which may not become part of a problem.
    kernel = (int(weight.size(2)), int(weight.size(3)))
    if min(kernel) < 1 or weight.size(0) < 1:
        raise ValueError(f"weight of shape {tuple(weight.shape)} is empty; it needs an output channel and kernel taps")
    _check_channels(input, weight, bias, groups)
    problem = Problem(
        input_size=(int(input.size(0)), int(input.size(1)), int(input.size(2)), int(input.size(3))),
        weight_size=(int(weight.size(0)), int(weight.size(1)), *kernel),
        stride=stride_pair,
        padding=_four_sides(padding, stride_pair, dilation_pair, kernel),
        dilation=dilation_pair,
        groups=groups,
        channels_last=memory_format is torch.channels_last
        or (memory_format is None and (looks_channels_last(input) or looks_channels_last(weight))),
    )
    reach = tuple(dilation_pair[axis] * (kernel[axis] - 1) + 1 for axis in (0, 1))
    if reach[0] > problem.padded_size[0] or reach[1] > problem.padded_size[1]:
        raise ValueError(
            f"kernel size can't be greater than actual input size: the kernel reaches over {reach} pixels "
            f"(dilation included), the padded input has {problem.padded_size}"
        )
    return problem


def _check_tensors(input: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    if weight.dim() != 4:
        raise ValueError(f"expected a 4-D weight (O, C / groups, kH, kW), got shape {tuple(weight.shape)}")
    if input.dim() != 4:
        raise ValueError(f"expected 3D (unbatched) or 4D (batched) input to conv2d, got shape {tuple(input.shape)}")
    if input.dtype not in SUPPORTED_DTYPES:
        raise ValueError(f"input has dtype {input.dtype}; allowed are {', '.join(map(str, SUPPORTED_DTYPES))}")
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is None:
            continue
        if tensor.dtype != input.dtype:
            raise ValueError(f"input ({input.dtype}) and {name} ({tensor.dtype}) should be the same dtype")
        if tensor.device != input.device:
            raise ValueError(f"input ({input.device}) and {name} ({tensor.device}) should be on the same device")


def _check_channels(input: Tensor, weight: Tensor, bias: Tensor | None, groups: int) -> None:
    if groups < 1:
        raise ValueError(f"groups is {groups}; it must be a positive integer")
    if weight.size(0) % groups:
        raise ValueError(f"groups is {groups}; it must divide the {weight.size(0)} output channels of the weight")
    if input.size(1) != weight.size(1) * groups:
        raise ValueError(
            f"weight of shape {tuple(weight.shape)} with groups={groups} expects an input with "
            f"{weight.size(1) * groups} channels, got {input.size(1)} channels"
        )
    if bias is not None and tuple(bias.shape) != (weight.size(0),):
        raise ValueError(f"bias has shape {tuple(bias.shape)}; it must be ({weight.size(0)},), one value per output")


def _pair(name: str, value: IntOrPair, minimum: int) -> tuple[int, int]:
    values = (value,) if isinstance(value, int) else tuple(value)
    if len(values) not in (1, 2):
        raise ValueError(f"{name} is {value!r}; it must be one integer or one for each of the 2 spatial dimensions")
    pair = (values[0], values[-1])
    if min(pair) < minimum:
        raise ValueError(f"{name} is {value!r}; every value must be at least {minimum}")
    return pair


def _four_sides(
    padding: IntOrPair | str, stride: tuple[int, int], dilation: tuple[int, int], kernel: tuple[int, int]
) -> tuple[int, int, int, int]:
    if not isinstance(padding, str):
        vertical, horizontal = _pair("padding", padding, minimum=0)
        return vertical, vertical, horizontal, horizontal
    if padding == "valid":
        return 0, 0, 0, 0
    if padding != "same":
        raise ValueError(f"padding is {padding!r}; allowed are integers, 'same' and 'valid'")
    if stride != (1, 1):
        raise ValueError(f"padding='same' needs stride 1, got stride {stride}")
    rows, columns = (dilation[axis] * (kernel[axis] - 1) for axis in (0, 1))
    # An odd total puts the extra zero behind the image, as torch does.
    return rows // 2, rows - rows // 2, columns // 2, columns - columns // 2


def looks_channels_last(tensor: Tensor) -> bool:
    """Whether the channels of a 4-D tensor lie innermost in memory; one channel tells nothing."""
    # A slice of a channels_last tensor along the channels counts too, so dense storage is not asked for.
    return tensor.size(1) > 1 and tensor.stride(1) == 1 and not tensor.is_contiguous()
