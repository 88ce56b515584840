"""`torch.nn.Conv2d` on the vendor-free convolution."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from yolo_lightning.conv.algorithms.problem import IntOrPair, looks_channels_last
from yolo_lightning.conv.functional import conv2d
from yolo_lightning.conv.plan import FIXED, Plan


class GemmConv2d(nn.Conv2d):
    """`torch.nn.Conv2d` computed by `yolo_lightning.conv.conv2d`: same constructor, same state_dict, same results.

    An input `(N, C, H, W)` or `(C, H, W)` gives `(N, O, H', W')` or `(O, H', W')` in the same dtype.

    Attributes:
        plan: Decides which algorithm computes each product. Assign another one to a layer, or let `swap_convs` do it
            for a whole model; copies of the layer share it.
    """

    plan: Plan = FIXED

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        padding: IntOrPair | str = self.padding
        if self.padding_mode != "zeros":
            input = F.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)
            padding = 0
        # Of the parameter: what `weight` was made of may have lost its layout.
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
