"""`torch.nn.Conv2d` with the vendor-free convolution, and first layers for one-channel images."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from yolo_lightning.conv.algorithms.problem import IntOrPair, looks_channels_last
from yolo_lightning.conv.functional import conv2d
from yolo_lightning.conv.plan import DEFAULT_PLAN, Plan


class GemmConv2d(nn.Conv2d):
    """`torch.nn.Conv2d` computed by `yolo_lightning.conv.conv2d`, with equal constructor, state_dict and results.

    Maps `(N, C, H, W)` or `(C, H, W)` to `(N, O, H', W')` or `(O, H', W')` in the same dtype.
    """

    plan: Plan = DEFAULT_PLAN
    """Selects the algorithm of each product, also in copies of the layer. `swap_convs` sets the plan of a model."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        padding: IntOrPair | str = self.padding
        if self.padding_mode != "zeros":
            input = F.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)
            padding = 0
        # From the parameter: `weight` may be derived from it and have lost the layout.
        memory_format = torch.channels_last if looks_channels_last(self.weight) else None
        return conv2d(
            input,
            weight,
            bias,
            self.stride,
            padding,
            self.dilation,
            self.groups,
            plan=self.plan,
            memory_format=memory_format,
        )


class GrayConv2d(nn.Conv2d):
    """`torch.nn.Conv2d` that also accepts one channel, `(N, 1, H, W)`, and treats it as repeated to `in_channels`.

    Convolution is linear: with equal input channels the weight can be summed over its channels. The result is that of
    the expanded image, with `1 / in_channels` of the input and of the multiplications. The parameter keeps its shape
    and receives the gradient that an expanded image would give. Supports one group only.
    """

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        output: Tensor = super()._conv_forward(input, _weight_for(input, weight), bias)
        return output


class GrayGemmConv2d(GemmConv2d):
    """`GrayConv2d` with the vendor-free convolution."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(input, _weight_for(input, weight), bias)


def _weight_for(input: Tensor, weight: Tensor) -> Tensor:
    return weight.sum(1, keepdim=True) if input.size(-3) == 1 else weight
