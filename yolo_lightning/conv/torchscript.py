"""Convolutions in a graph of `torch.jit.trace`: one operator for each, which reads all sizes when the graph runs.

A trace contains the values of Python integers. A size from which an algorithm is chosen would therefore stay the size
of the example. These operators call the functions of this package instead. A process that loads a saved graph must
import `yolo_lightning.conv` before, which registers the operators.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from yolo_lightning.conv.dimensions import conv3d, conv_transpose
from yolo_lightning.conv.functional import conv2d
from yolo_lightning.conv.operators import NAMESPACE
from yolo_lightning.conv.plan import plan_of

Sizes = Sequence[int]
FORMATS = torch.contiguous_format, torch.channels_last
# The methods of the class have no annotations.
_LIBRARY: Any = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]


def _convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sizes,
    padding: Sizes,
    padding_name: str,
    dilation: Sizes,
    groups: int,
    channels_last: bool | None,
    plan: str,
) -> Tensor:
    """Compute a 2-D or 3-D convolution. `padding_name` is `"same"`, `"valid"`, or empty for the numbers `padding`."""
    arguments = input, weight, bias, stride, padding_name or padding, dilation, groups
    if weight.dim() == 5:
        return conv3d(*arguments, plan=plan_of(plan))
    memory_format = None if channels_last is None else FORMATS[channels_last]
    return conv2d(*arguments, plan=plan_of(plan), memory_format=memory_format)


def _transposed_convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sizes,
    padding: Sizes,
    output_padding: Tensor,
    groups: int,
    dilation: Sizes,
    plan: str,
) -> Tensor:
    """Compute a transposed convolution. `output_padding` is a tensor, because it may depend on sizes."""
    dimensions = weight.dim() - 2
    added = output_padding.tolist()
    return conv_transpose(dimensions, input, weight, bias, stride, padding, added, groups, dilation, plan=plan_of(plan))


_OPERANDS = "Tensor input, Tensor weight, Tensor? bias, int[] stride, int[] padding"
_LIBRARY.define(
    f"convolution({_OPERANDS}, str padding_name, int[] dilation, int groups, bool? channels_last, str plan) -> Tensor"
)
_LIBRARY.impl("convolution", _convolution, "CompositeImplicitAutograd")
_LIBRARY.define(
    f"transposed_convolution({_OPERANDS}, Tensor output_padding, int groups, int[] dilation, str plan) -> Tensor"
)
_LIBRARY.impl("transposed_convolution", _transposed_convolution, "CompositeImplicitAutograd")
