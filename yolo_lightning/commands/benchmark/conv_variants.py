"""Convolution implementations that the benchmark compares."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from enum import StrEnum

import torch
from torch import nn

from yolo_lightning.conv import AutotunedPlan, Plan, enable_gpu_kernels, swap_convs
from yolo_lightning.conv.kernels import gpu_kernels_enabled, gpu_kernels_paused
from yolo_lightning.model.layers import arrange
from yolo_lightning.utils.files import cache_folder

AUTOTUNE_S = 12.0


class Variant(StrEnum):
    """An implementation in one memory layout. All variants except `native` use PyTorch's `channels_last`.

    The implementations of this package come first, and those that may hang last.
    """

    GEMM = "gemm"
    GEMM_KERNELS = "gemm-kernels"
    GEMM_AUTOTUNE = "gemm-autotune"
    GEMM_CHECKPOINTING = "gemm-checkpointing"
    NATIVE_NHWC = "native-nhwc"
    NATIVE_GRAPH = "native-graph"  # recorded as CUDA graphs: `model.convolution.cuda_graph`
    NATIVE = "native"

    @property
    def implementation(self) -> str:
        """The implementation without its options."""
        return self.value.partition("-")[0]

    @property
    def memory_format(self) -> torch.memory_format:
        """The memory format of images, activations and weights."""
        return torch.contiguous_format if self is Variant.NATIVE else torch.channels_last

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
    """Return the variants that a device does not have; GPU kernels and recorded passes need CUDA or HIP."""
    needs_cuda = {Variant.GEMM_KERNELS, Variant.GEMM_AUTOTUNE, Variant.NATIVE_GRAPH}
    return set() if device.type == "cuda" else needs_cuda


@contextmanager
def settings_of(variant: Variant) -> Iterator[None]:
    """Pause the GPU kernels of this package, which all models of a process share, unless the variant uses them.

    The block must include the backward pass.

    Raises:
        RuntimeError: If `GEMM_KERNELS` has run without kernels. Its result would be that of another variant.
    """
    with nullcontext() if variant.uses_kernels else gpu_kernels_paused():
        yield
    if variant is Variant.GEMM_KERNELS and not gpu_kernels_enabled():
        raise RuntimeError("the GPU kernels cannot be used on this device; a warning contains the reason")
