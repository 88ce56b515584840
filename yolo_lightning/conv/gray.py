"""A first layer that takes gray images without repeating them to as many channels as its weight has."""

from torch import Tensor, nn

from yolo_lightning.conv.layer import GemmConv2d


class GrayConv2d(nn.Conv2d):
    """`torch.nn.Conv2d` that also takes one channel, `(N, 1, H, W)`, and treats it as equal in all `in_channels`.

    A convolution is linear, so equal channels meet the sum of the weight over its channels: the same result with
    `1 / in_channels` of the input and of the multiplications. The parameter keeps its shape, and each of its channels
    receives the gradient that it would receive from repeated images. Only without groups.
    """

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        output: Tensor = super()._conv_forward(input, _weight_for(input, weight), bias)
        return output


class GrayGemmConv2d(GemmConv2d):
    """`GrayConv2d` on the vendor-free convolution."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(input, _weight_for(input, weight), bias)


def _weight_for(input: Tensor, weight: Tensor) -> Tensor:
    return weight.sum(1, keepdim=True) if input.size(-3) == 1 else weight
