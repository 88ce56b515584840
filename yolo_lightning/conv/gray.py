"""First layer that accepts one-channel images without expanding them to the channels of the weight."""

from torch import Tensor, nn

from yolo_lightning.conv.layer import GemmConv2d


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
