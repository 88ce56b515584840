"""Convolution implementations that the benchmark compares."""

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum

import torch
from torch import nn

from yolo_lightning.conv import AutotunedPlan, Plan, enable_gpu_kernels, swap_convs
from yolo_lightning.conv.kernels import gpu_kernels_enabled, gpu_kernels_paused
from yolo_lightning.model.layers import arrange
from yolo_lightning.utils.files import cache_folder

AUTOTUNE_S = 12.0


class Variant(StrEnum):
    """An implementation in one memory layout. All `gemm` variants and `native-nhwc` use PyTorch's `channels_last`.

    The implementations of this package come first, and those that may hang last.
    """

    GEMM = "gemm"
    GEMM_KERNELS = "gemm-kernels"
    GEMM_AUTOTUNE = "gemm-autotune"
    GEMM_TF32 = "gemm-tf32"
    GEMM_CHECKPOINTING = "gemm-checkpointing"
    SLOW = "slow"
    NATIVE_NHWC = "native-nhwc"
    NATIVE = "native"
    NATIVE_TF32 = "native-tf32"

    @property
    def implementation(self) -> str:
        """The implementation without its options."""
        return self.value.partition("-")[0]

    @property
    def memory_format(self) -> torch.memory_format:
        """The memory format of images, activations and weights."""
        nhwc = self.implementation == "gemm" or self is Variant.NATIVE_NHWC
        return torch.channels_last if nhwc else torch.contiguous_format

    @property
    def uses_tf32(self) -> bool:
        """Whether NVIDIA GPUs may compute float32 products with TF32 inputs."""
        return self in (Variant.NATIVE_TF32, Variant.GEMM_TF32)

    @property
    def uses_kernels(self) -> bool:
        """Whether the variant uses the GPU kernels of this package."""
        return self in (Variant.GEMM_KERNELS, Variant.GEMM_AUTOTUNE)


def convert(module: nn.Module, variant: Variant) -> None:
    """Convert one convolution or a YOLOv8 graph to `variant` in place, with a new plan.

    The plan selects algorithms at the first use of each layer, which must be in a block of `settings_of`.
    """
    if variant.uses_kernels and not gpu_kernels_enabled():
        enable_gpu_kernels(cache_folder() / "kernels")
    plan = AutotunedPlan(AUTOTUNE_S) if variant is Variant.GEMM_AUTOTUNE else Plan()
    is_gemm = variant.implementation == "gemm"
    if not isinstance(module, nn.Conv2d):
        arrange(module, "gemm" if is_gemm else "native", variant is Variant.GEMM_CHECKPOINTING, plan)
    elif is_gemm:
        swap_convs(module, plan=plan)
    module.to(memory_format=variant.memory_format)


def absent(device: torch.device) -> set[Variant]:
    """Return the variants that a device does not have: TF32 is NVIDIA's, and the GPU kernels need CUDA or HIP."""
    found: set[Variant] = set()
    if device.type != "cuda" or torch.version.hip:
        found |= {Variant.NATIVE_TF32, Variant.GEMM_TF32}
    if device.type != "cuda":
        found |= {Variant.GEMM_KERNELS, Variant.GEMM_AUTOTUNE}
    return found if device.type in ("cuda", "cpu") else found | {Variant.SLOW}


@contextmanager
def settings_of(variant: Variant, device: torch.device) -> Iterator[None]:
    """Set the global switches of a variant in the block, which must include the backward pass.

    Disables the vendor library for `slow` and enables it for all others, allows TF32 for the variants that use it only,
    and pauses the GPU kernels of this package, which all models of a process share, unless the variant uses them.
    Raises `RuntimeError` if `GEMM_KERNELS` has run without kernels: its result would be that of another variant.
    """
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.enabled, cudnn.allow_tf32, matmul.allow_tf32
    with ExitStack() as stack:
        if not variant.uses_kernels:
            stack.enter_context(gpu_kernels_paused())
        if device.type == "cpu":
            # The flag context also sets oneDNN's TF32, and torch warns that only Intel GPUs support it.
            stack.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", "TF32 acceleration on top of oneDNN")
            stack.enter_context(torch.backends.mkldnn.flags(enabled=variant is not Variant.SLOW))
        try:
            # Not cudnn.flags(): that context also sets the float32 precision of all CUDA libraries.
            cudnn.enabled = variant is not Variant.SLOW
            cudnn.allow_tf32 = matmul.allow_tf32 = variant.uses_tf32
            yield
        finally:
            cudnn.enabled, cudnn.allow_tf32, matmul.allow_tf32 = before
    if variant is Variant.GEMM_KERNELS and not gpu_kernels_enabled():
        raise RuntimeError("the GPU kernels cannot be used on this device; a warning contains the reason")
