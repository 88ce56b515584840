"""The ways of computing a convolution that are compared."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from yolo_lightning.commands.benchmark.benchmark_settings import Rival
from yolo_lightning.conv import Plan, swap_convs
from yolo_lightning.model.layers import Activations, arrange


class Variant(StrEnum):
    """A rival in one memory layout, nhwc being torch's channels_last; the last of ours computes activations again."""

    NATIVE = "native"
    NATIVE_NHWC = "native-nhwc"
    GEMM = "gemm"
    GEMM_NHWC = "gemm-nhwc"
    GEMM_RECOMPUTE = "gemm-recompute"
    UNFOLD = "unfold"
    SLOW = "slow"

    @property
    def rival(self) -> Rival:
        """The rival without its layout."""
        return _RIVALS[self]

    @property
    def memory_format(self) -> torch.memory_format:
        """The layout of images, activations and weights."""
        nhwc = self in (Variant.NATIVE_NHWC, Variant.GEMM_NHWC, Variant.GEMM_RECOMPUTE)
        return torch.channels_last if nhwc else torch.contiguous_format


_RIVALS: dict[Variant, Rival] = {
    Variant.NATIVE: "native",
    Variant.NATIVE_NHWC: "native",
    Variant.GEMM: "gemm",
    Variant.GEMM_NHWC: "gemm",
    Variant.GEMM_RECOMPUTE: "gemm",
    Variant.UNFOLD: "unfold",
    Variant.SLOW: "slow",
}

DESCRIPTIONS = {
    Variant.NATIVE: "PyTorch as it is: cuDNN, MIOpen or oneDNN",
    Variant.GEMM: "this project's matrix products, forward and backward",
    Variant.GEMM_RECOMPUTE: "in channels_last, batch norm computed again in the backward pass",
    Variant.UNFOLD: "F.unfold and one matrix product, differentiated by autograd",
    Variant.SLOW: "native with the vendor library switched off",
}
"""In words; what ends in nhwc is the same in channels_last layout."""


class UnfoldConv2d(nn.Conv2d):
    """`torch.nn.Conv2d` as `F.unfold` and one matrix product; autograd keeps the unfolded columns.

    Input `(N, C, H, W)` gives `(N, O, H', W')`; of one channel it is repeated to as many as the weight has. Zero
    padding in numbers and one group only.
    """

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        assert self.groups == 1
        assert self.padding_mode == "zeros"
        assert not isinstance(self.padding, str)
        repeated = input.expand(-1, weight.size(1), -1, -1)
        columns = F.unfold(repeated, self.kernel_size, self.dilation, self.padding, self.stride)
        output = weight.flatten(1) @ columns
        if bias is not None:
            output = output + bias.unsqueeze(1)
        height, width = (
            (input.size(2 + axis) + 2 * self.padding[axis] - self.dilation[axis] * (self.kernel_size[axis] - 1) - 1)
            // self.stride[axis]
            + 1
            for axis in (0, 1)
        )
        return output.view(input.size(0), weight.size(0), height, width)


def variants(skip: tuple[Rival, ...]) -> tuple[Variant, ...]:
    """All variants but those of skipped rivals."""
    return tuple(variant for variant in Variant if variant.rival not in skip)


def convert_graph(graph: nn.Module, variant: Variant, plan: Plan) -> None:
    """Make a YOLOv8 graph compute its convolutions as `variant` does, in place; `plan` is for those of this project."""
    gemm = variant.rival == "gemm"
    activations: Activations = "recompute" if variant is Variant.GEMM_RECOMPUTE else "keep"
    arrange(graph, "gemm" if gemm else "native", activations, plan)
    _finish(graph, variant)


def convert_layer(layer: nn.Conv2d, variant: Variant, plan: Plan) -> None:
    """As `convert_graph`, for one convolution."""
    if variant.rival == "gemm":
        swap_convs(layer, plan=plan)
    _finish(layer, variant)


def _finish(module: nn.Module, variant: Variant) -> None:
    if variant.rival == "unfold":
        for submodule in module.modules():
            if isinstance(submodule, nn.Conv2d):
                submodule.__class__ = UnfoldConv2d
    module.to(memory_format=variant.memory_format)


@contextmanager
def libraries(variant: Variant, device: torch.device, vendor_search: bool) -> Iterator[None]:
    """Switch the vendor library off for `slow`, on for the others, during the block; backward passes belong in it."""
    enabled = variant.rival != "slow"
    if device.type == "cpu":
        with warnings.catch_warnings():
            # The switch sets oneDNN's TF32 too, and torch warns that only Intel GPUs have it.
            warnings.filterwarnings("ignore", "TF32 acceleration on top of oneDNN")
            with torch.backends.mkldnn.flags(enabled=enabled):
                yield
        return
    cudnn = torch.backends.cudnn
    before = cudnn.enabled, cudnn.benchmark
    # Not cudnn.flags(): it would also set TF32, which belongs to the whole benchmark.
    cudnn.enabled, cudnn.benchmark = enabled, vendor_search
    try:
        yield
    finally:
        cudnn.enabled, cudnn.benchmark = before


@contextmanager
def numerics(tf32: bool) -> Iterator[None]:
    """Allow or forbid TF32 in matrix products and convolutions alike during the block."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = tf32
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
