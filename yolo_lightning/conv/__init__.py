"""Convolution and batch normalisation without a vendor library (MIOpen, cuDNN, oneDNN convolutions).

    from yolo_lightning.conv import swap_convs
    swap_convs(model)  # any torch model, in place

Convolutions are lowered to matrix products, forward and backward. Needs torch alone.
"""

from yolo_lightning.conv.functional import conv2d
from yolo_lightning.conv.layer import GemmConv2d
from yolo_lightning.conv.normalization import VendorFreeBatchNorm2d
from yolo_lightning.conv.swap import swap_convs, unswap_convs

__all__ = ["GemmConv2d", "VendorFreeBatchNorm2d", "conv2d", "swap_convs", "unswap_convs"]
