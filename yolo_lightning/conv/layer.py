"""`torch.nn.Conv2d` on the vendor-free convolution."""

from torch import Tensor, nn
from torch.nn import functional as F

from yolo_lightning.conv.functional import conv2d


class GemmConv2d(nn.Conv2d):
    """`torch.nn.Conv2d` computed by `yolo_lightning.conv.conv2d`: same constructor, same state_dict, same results.

    An input `(N, C, H, W)` or `(C, H, W)` gives `(N, O, H', W')` or `(O, H', W')` in the same dtype.
    """

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if self.padding_mode == "zeros":
            return conv2d(input, weight, bias, self.stride, self.padding, self.dilation, self.groups)
        padded = F.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)
        return conv2d(padded, weight, bias, self.stride, 0, self.dilation, self.groups)
