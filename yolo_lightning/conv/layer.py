"""The convolution layers of `torch.nn` without a vendor library, and first layers for one-channel images."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.fx import Proxy
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from yolo_lightning.conv.algorithms.problem import looks_channels_last, memory_format_of
from yolo_lightning.conv.dimensions import conv1d, conv3d, conv_transpose
from yolo_lightning.conv.functional import conv2d
from yolo_lightning.conv.plan import DEFAULT_PLAN, Plan
from yolo_lightning.conv.vendor_free_layer import VendorFreeLayer

_CONVOLUTIONS: dict[int, Callable[..., Tensor]] = {1: conv1d, 2: conv2d, 3: conv3d}
"""By the number of spatial dimensions."""


class GemmLayer(VendorFreeLayer, _ConvNd):
    """Base class of all vendor-free convolution layers."""

    plan: Plan = DEFAULT_PLAN
    """Selects the algorithm of each product, also in copies of the layer. `swap_convs` sets the plan of a model."""

    def forward(self, input: Any) -> Any:
        """Return the output of the layer of `torch.nn` from which the class derives."""
        if isinstance(input, Proxy):
            return self._as_node(input)
        return super().forward(input)

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        padding: Any = self.padding
        if self.padding_mode != "zeros":
            input = F.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)
            padding = 0
        convolution = _CONVOLUTIONS[len(self.kernel_size)]
        return convolution(input, weight, bias, self.stride, padding, self.dilation, self.groups, plan=self.plan)


class GemmConv1d(GemmLayer, nn.Conv1d):
    """`torch.nn.Conv1d` without a vendor library: `(N, C, L)` or `(C, L)`."""


class GemmConv2d(GemmLayer, nn.Conv2d):
    """`torch.nn.Conv2d` computed by `yolo_lightning.conv.conv2d`, with equal constructor, state_dict and results.

    Maps `(N, C, H, W)` or `(C, H, W)` to `(N, O, H', W')` or `(O, H', W')` in the same dtype.
    """


class GemmConv3d(GemmLayer, nn.Conv3d):
    """`torch.nn.Conv3d` without a vendor library: `(N, C, D, H, W)` or `(C, D, H, W)`."""


class _GemmConvTranspose(GemmLayer, _ConvTransposeNd):
    def forward(self, input: Any, output_size: list[int] | None = None) -> Any:
        """Return the transposed convolution; `output_size` as in `torch.nn.ConvTranspose2d`."""
        if isinstance(input, Proxy):
            return self._as_node(input, output_size)
        dimensions = len(self.kernel_size)
        padding = self.padding
        assert not isinstance(padding, str)  # the constructors of torch accept integers only
        output_padding = self._output_padding(
            input,
            output_size,
            list(self.stride),
            list(padding),
            list(self.kernel_size),
            dimensions,
            list(self.dilation),
        )
        return conv_transpose(
            dimensions,
            input,
            self.weight,
            self.bias,
            self.stride,
            padding,
            output_padding,
            self.groups,
            self.dilation,
            plan=self.plan,
        )


class GemmConvTranspose1d(_GemmConvTranspose, nn.ConvTranspose1d):
    """`torch.nn.ConvTranspose1d` without a vendor library: `(N, C, L)` or `(C, L)`."""


class GemmConvTranspose2d(_GemmConvTranspose, nn.ConvTranspose2d):
    """`torch.nn.ConvTranspose2d` without a vendor library: `(N, C, H, W)` or `(C, H, W)`."""


class GemmConvTranspose3d(_GemmConvTranspose, nn.ConvTranspose3d):
    """`torch.nn.ConvTranspose3d` without a vendor library: `(N, C, D, H, W)` or `(C, D, H, W)`."""


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
    """Return the weight for the channels of the input, in the memory format of `weight`."""
    if input.size(-3) != 1:
        return weight
    # The sum is contiguous for any layout of the weight, and the output would have the layout of the sum.
    return weight.sum(1, keepdim=True).to(memory_format=memory_format_of(looks_channels_last(weight)))
