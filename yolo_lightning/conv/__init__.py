"""Convolution and batch normalisation without a vendor library (MIOpen, cuDNN, oneDNN convolutions).

    from yolo_lightning.conv import swap_convs
    swap_convs(model)  # any torch model, in place

Convolutions are lowered to matrix products, forward and backward. A plan decides which algorithm does it: `FIXED`, or
a `TimedPlan` that measures. Needs torch alone.
"""

from yolo_lightning.conv.autotune import TimedPlan
from yolo_lightning.conv.functional import conv2d
from yolo_lightning.conv.kernels.switches import disable_fused_kernels, enable_fused_kernels
from yolo_lightning.conv.layer import GemmConv2d
from yolo_lightning.conv.normalization import VendorFreeBatchNorm2d
from yolo_lightning.conv.plan import FIXED, Plan, PlannedConvolution
from yolo_lightning.conv.swap import swap_convs, unswap_convs

__all__ = [
    "FIXED",
    "GemmConv2d",
    "Plan",
    "PlannedConvolution",
    "TimedPlan",
    "VendorFreeBatchNorm2d",
    "conv2d",
    "disable_fused_kernels",
    "enable_fused_kernels",
    "swap_convs",
    "unswap_convs",
]
