"""Convolution implementations that the benchmark compares."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from enum import StrEnum
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from yolo_lightning.conv import AutotunedPlan, Plan, enable_gpu_kernels, swap_convs
from yolo_lightning.conv.kernels import gpu_kernels_enabled, gpu_kernels_paused
from yolo_lightning.model.layers import arrange
from yolo_lightning.utils.files import cache_folder

Implementation = Literal["native", "slow", "unfold", "gemm"]


class Variant(StrEnum):
    """An implementation in one memory layout; `nhwc` is PyTorch's `channels_last`."""

    NATIVE = "native"
    NATIVE_NHWC = "native-nhwc"
    GEMM = "gemm"
    GEMM_NHWC = "gemm-nhwc"
    GEMM_RECOMPUTE = "gemm-recompute"
    UNFOLD = "unfold"
    SLOW = "slow"
    NATIVE_TF32 = "native-tf32"
    GEMM_TF32 = "gemm-tf32"
    GEMM_AUTOTUNE = "gemm-autotune"
    GEMM_COMPILED = "gemm-compiled"

    @property
    def implementation(self) -> Implementation:
        """The implementation without its layout."""
        return cast(Implementation, self.value.partition("-")[0])

    @property
    def memory_format(self) -> torch.memory_format:
        """The memory format of images, activations and weights."""
        nhwc = self is Variant.NATIVE_NHWC or (self.implementation == "gemm" and self is not Variant.GEMM)
        return torch.channels_last if nhwc else torch.contiguous_format

    @property
    def uses_tf32(self) -> bool:
        """Whether NVIDIA GPUs may compute float32 products with TF32 inputs."""
        return self in (Variant.NATIVE_TF32, Variant.GEMM_TF32)


LAYOUTS = (
    *(Variant.NATIVE, Variant.NATIVE_NHWC, Variant.GEMM, Variant.GEMM_NHWC),
    *(Variant.GEMM_RECOMPUTE, Variant.UNFOLD, Variant.SLOW),
)
"""The variants of `benchmark`, whose option `conv_algorithm` applies to all gemm variants."""

WITH_KERNELS = (Variant.GEMM_AUTOTUNE, Variant.GEMM_COMPILED)
"""The variants of `benchmark_gpu` that use GPU kernels."""

DESCRIPTIONS = {
    Variant.NATIVE: "PyTorch's default: cuDNN, MIOpen or oneDNN",
    Variant.GEMM: "yolo_lightning.conv: matrix products, forward and backward",
    Variant.GEMM_RECOMPUTE: "gemm-nhwc; batch norm is recomputed in the backward pass",
    Variant.UNFOLD: "F.unfold and one matrix product, differentiated by autograd",
    Variant.SLOW: "native with the vendor library disabled (torch.backends.cudnn.enabled = False)",
    Variant.NATIVE_TF32: "native; TF32 products allowed, which is PyTorch's default on NVIDIA GPUs",
    Variant.GEMM_TF32: "gemm-nhwc; TF32 products allowed",
    Variant.GEMM_AUTOTUNE: "gemm-nhwc; the fastest algorithm or kernel of each layer, by measurement",
    Variant.GEMM_COMPILED: "gemm-nhwc; with this package's GPU kernels, if there is a GPU",
}
"""Printed descriptions; the `-nhwc` variants differ in the memory layout only."""


class UnfoldConv2d(nn.Conv2d):
    """`torch.nn.Conv2d` computed by `F.unfold` and one matrix product; autograd stores the unfolded columns.

    Maps `(N, C, H, W)` to `(N, O, H', W')`. An input with one channel is expanded to the channels of the weight.
    Supports numeric zero padding and one group.
    """

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        assert self.groups == 1
        assert self.padding_mode == "zeros"
        assert not isinstance(self.padding, str)
        expanded = input.expand(-1, weight.size(1), -1, -1)
        columns = F.unfold(expanded, self.kernel_size, self.dilation, self.padding, self.stride)
        output = weight.flatten(1) @ columns
        if bias is not None:
            output = output + bias.unsqueeze(1)
        padded = input.size(2) + 2 * self.padding[0]
        height = (padded - self.dilation[0] * (self.kernel_size[0] - 1) - 1) // self.stride[0] + 1
        return output.view(*output.shape[:2], height, -1)


def variants(skip: tuple[Implementation, ...]) -> tuple[Variant, ...]:
    """Return `LAYOUTS` without the skipped implementations."""
    return tuple(variant for variant in LAYOUTS if variant.implementation not in skip)


def make_plan(variant: Variant, budget_s: float) -> Plan:
    """Return a new plan for a gemm variant, and enable the GPU kernels for the variants in `WITH_KERNELS`.

    A plan selects algorithms at the first use of each layer, which must be in a block of `kernels_of`. `budget_s`
    limits the measurements of `GEMM_AUTOTUNE` in seconds.
    """
    if variant in WITH_KERNELS and not gpu_kernels_enabled():
        enable_gpu_kernels(cache_folder() / "kernels")
    return AutotunedPlan(budget_s) if variant is Variant.GEMM_AUTOTUNE else Plan()


@contextmanager
def kernels_of(variant: Variant) -> Iterator[None]:
    """Pause the GPU kernels in the block, unless the variant uses them: all models of a process share them.

    Raises `RuntimeError` if `GEMM_COMPILED` has run without kernels: its result would be that of another variant.
    """
    with nullcontext() if variant in WITH_KERNELS else gpu_kernels_paused():
        yield
    if variant is Variant.GEMM_COMPILED and not gpu_kernels_enabled():
        raise RuntimeError("the GPU kernels cannot be used on this device; a warning contains the reason")


def convert(module: nn.Module, variant: Variant, plan: Plan) -> None:
    """Convert one convolution or a YOLOv8 graph to `variant` in place; `plan` is used by the gemm variants."""
    is_gemm = variant.implementation == "gemm"
    if not isinstance(module, nn.Conv2d):
        arrange(module, "gemm" if is_gemm else "native", variant is Variant.GEMM_RECOMPUTE, plan)
    elif is_gemm:
        swap_convs(module, plan=plan)
    if variant is Variant.UNFOLD:
        for submodule in module.modules():
            if isinstance(submodule, nn.Conv2d):
                submodule.__class__ = UnfoldConv2d
    module.to(memory_format=variant.memory_format)


@contextmanager
def libraries(variant: Variant, device: torch.device, vendor_search: bool) -> Iterator[None]:
    """Disable the vendor library for `slow` and enable it for all others; allow TF32 for the variants that use it only.

    The backward pass must run inside the context, too.
    """
    enabled = variant is not Variant.SLOW
    if device.type == "cpu":
        with warnings.catch_warnings():
            # The flag context also sets oneDNN's TF32, and torch warns that only Intel GPUs support it.
            warnings.filterwarnings("ignore", "TF32 acceleration on top of oneDNN")
            with torch.backends.mkldnn.flags(enabled=enabled):
                yield
        return
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.enabled, cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32
    # Not cudnn.flags(): that context also sets the float32 precision of all CUDA libraries.
    cudnn.enabled, cudnn.benchmark = enabled, vendor_search
    cudnn.allow_tf32 = matmul.allow_tf32 = variant.uses_tf32
    try:
        yield
    finally:
        cudnn.enabled, cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32 = before
