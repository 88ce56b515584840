"""Convolution and batch normalization without a vendor library (MIOpen, cuDNN, oneDNN convolutions).

    from yolo_lightning.conv import swap_convs
    swap_convs(model)  # any torch model, in place: Conv, ConvTranspose and BatchNorm in 1-D, 2-D and 3-D, also lazy

Convolutions are lowered to matrix products, forward and backward. A plan selects the algorithm: `DEFAULT_PLAN` uses a
table, `AutotunedPlan` measures the candidates (autotuning). The package depends on torch only. `torch.compile` and
`torch.export` see registered operators, `torch.ops.yolo_lightning.*`.

Reading order: `functional` (conv2d and its derivatives), `dimensions` (1-D, 3-D and transposed convolution on top of
it) and `operators` (the same, registered for compilers) -> `plan` (selection of an algorithm) ->
`algorithms/table` (candidates) -> `algorithms/*` (PyTorch operations) and `kernels/*` (optional CUDA/HIP code).
"""

from yolo_lightning.conv import torchscript as torchscript
from yolo_lightning.conv.functional import conv2d
from yolo_lightning.conv.kernels import disable_gpu_kernels, enable_gpu_kernels
from yolo_lightning.conv.layer import GemmConv2d
from yolo_lightning.conv.normalization import VendorFreeBatchNorm2d
from yolo_lightning.conv.plan import DEFAULT_PLAN, AutotunedPlan, Plan
from yolo_lightning.conv.swap import swap_convs, unswap_convs
from yolo_lightning.conv.ultralytics_trainer import swap_ultralytics_trainer

__all__ = [
    "DEFAULT_PLAN",
    "GemmConv2d",
    "Plan",
    "AutotunedPlan",
    "VendorFreeBatchNorm2d",
    "conv2d",
    "disable_gpu_kernels",
    "enable_gpu_kernels",
    "swap_convs",
    "swap_ultralytics_trainer",
    "unswap_convs",
]
