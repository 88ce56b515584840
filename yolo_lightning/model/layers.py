"""Implementation of the layers of a YOLOv8 graph; parameters, buffers and their names never change.

A block is Ultralytics' `Conv`: a module with a convolution `conv`, a normalisation `bn` and an activation `act`,
applied in this order.
"""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any, Literal

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn

from yolo_lightning.conv import (
    DEFAULT_PLAN,
    AutotunedPlan,
    Plan,
    enable_compiled_kernels,
    enable_gpu_kernels,
    swap_convs,
    unswap_convs,
)
from yolo_lightning.conv.layer import GrayConv2d, GrayGemmConv2d
from yolo_lightning.conv.normalization import BatchNormSiLU2d, RecomputedBatchNormSiLU2d
from yolo_lightning.conv.probe import probe_native
from yolo_lightning.utils.choices import check_choices, check_range
from yolo_lightning.utils.files import cache_folder

Convolution = Literal["auto", "gemm", "native"]
ConvAlgorithm = Literal["auto", "table", "autotune", "compiled"]
MemoryFormat = Literal["auto", "contiguous", "channels_last"]

BLOCK_PARTS = (nn.Conv2d, nn.BatchNorm2d, nn.Module)


def arrange(
    graph: Any,
    convolution: Convolution,
    activation_checkpointing: bool = False,
    plan: Plan = DEFAULT_PLAN,
    memory_format: MemoryFormat = "auto",
) -> None:
    """Set the implementation of all layers of a YOLOv8 graph, in place, whatever implementation they have.

    The first layer also accepts images with one channel.

    Args:
        graph: The graph.
        convolution: `gemm` computes convolutions and batch normalisation without a vendor library; `native` uses
            PyTorch's own layers, and so does `auto`, which is replaced when the device is known.
        activation_checkpointing: Whether each block stores two activations for the backward pass instead of three and
            recomputes the third. Batch normalisation then runs on ATen's own kernels for any `convolution`.
        plan: Selects the algorithm of `gemm` convolutions.
        memory_format: Memory format of weights and activations. `auto` is channels_last for `gemm`, whose algorithms
            are faster with it, and contiguous for `native`.
    """
    check_choices("model.conv_backend", [convolution], Convolution)
    check_choices("model.memory_format", [memory_format], MemoryFormat)
    restore(graph)
    if convolution == "gemm":
        swap_convs(graph, plan=plan)
    graph.model[0].conv.__class__ = GrayGemmConv2d if convolution == "gemm" else GrayConv2d
    channels_last = memory_format == "channels_last" or (memory_format == "auto" and convolution == "gemm")
    graph.to(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
    if convolution == "gemm" or activation_checkpointing:
        for block in blocks(graph):
            if isinstance(block.act, nn.SiLU):
                block.bn.__class__ = RecomputedBatchNormSiLU2d if activation_checkpointing else BatchNormSiLU2d
                # All blocks of all graphs share one SiLU: it is replaced in this block and never modified.
                block.act = nn.Identity()


def restore(graph: Any) -> None:
    """Set all layers to the classes that Ultralytics created, for files that Ultralytics opens."""
    stem = graph.model[0].conv
    if type(stem) in (GrayConv2d, GrayGemmConv2d):
        stem.__class__ = type(stem).__base__
    _split_activations(graph)
    unswap_convs(graph)


def blocks(graph: nn.Module) -> Iterator[Any]:
    for module in graph.modules():
        parts = [getattr(module, name, None) for name in ("conv", "bn", "act")]
        if all(isinstance(part, kind) for part, kind in zip(parts, BLOCK_PARTS, strict=True)):
            yield module


def _split_activations(graph: nn.Module) -> None:
    shared = nn.SiLU()
    for block in blocks(graph):
        has_activation = isinstance(block.bn, BatchNormSiLU2d)
        if has_activation:
            block.bn.__class__ = nn.BatchNorm2d
            block.act = shared


class FoldedGraph:
    """Copy of a graph for inference, with batch normalisation folded into the convolutions.

    It is not a module, so that it never becomes part of a checkpoint. Later changes of the graph do not affect it.
    """

    def __init__(self, graph: Any) -> None:
        self._graph: Any = deepcopy(graph)
        self._graph.eval()
        # Folding a layer that includes the activation would remove the activation.
        _split_activations(self._graph)
        folding = list(blocks(self._graph))
        self._graph.fuse(verbose=False)
        for block in folding:
            if isinstance(block.act, nn.SiLU):
                block.act = nn.SiLU(inplace=True)

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Any:
        """Return the output of the graph in evaluation mode, up to rounding, for `(B, 1 or 3, H, W)` float images."""
        return self._graph(images)


def choose_convolution(device: torch.device, timeout_s: float) -> Literal["gemm", "native"]:
    """Return the convolution implementation that `auto` selects on a device, and log it.

    On a CPU nothing is tested: PyTorch's convolutions need no vendor library of a GPU and are faster. On other devices
    the test of native convolutions counts as hung after `timeout_s` seconds.
    """
    if device.type == "cpu":
        rank_zero_info("model.conv_backend auto: native, on a CPU")
        return "native"
    rank_zero_info(f"model.conv_backend auto: testing native convolutions on {device}, for at most {timeout_s:g} s")
    result = probe_native(device, timeout_s, cache_folder() / "convolution_probe.json")
    convolution: Literal["gemm", "native"] = "native" if result.works else "gemm"
    rank_zero_info(f"model.conv_backend auto: {convolution}; {result}")
    return convolution


def make_plan(algorithm: ConvAlgorithm, budget_s: float) -> Plan:
    """Return the plan for all `gemm` convolutions of a graph; its results are stored in the user's cache folder.

    On a GPU, `auto` and `autotune` use the verified kernels of this package where they can be built. On a CPU, `auto`
    is the table. `budget_s` is the time limit in seconds for the measurements of `autotune`, >= 0.
    """
    check_choices("model.conv_algorithm", [algorithm], ConvAlgorithm)
    if algorithm == "compiled":
        enable_compiled_kernels(cache_folder() / "kernels")
    elif algorithm in ("auto", "autotune"):
        enable_gpu_kernels(cache_folder() / "kernels")
    if algorithm != "autotune":
        return DEFAULT_PLAN
    check_range("model.conv_algorithm_budget_s", budget_s, ">= 0")
    return AutotunedPlan(budget_s, cache_folder() / "convolution_plan.json")
