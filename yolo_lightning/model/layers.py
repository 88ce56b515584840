"""Chooses how the layers of a graph compute; parameters, buffers and their names stay the same.

A block is what Ultralytics calls `Conv`: a module with a convolution `conv`, a normalisation `bn` and an activation
`act`, applied in this order.
"""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any, Literal, get_args

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn

from yolo_lightning.conv import DEFAULT_PLAN, AutotunedPlan, Plan, enable_compiled_kernels, swap_convs, unswap_convs
from yolo_lightning.conv.layer import GrayConv2d, GrayGemmConv2d
from yolo_lightning.conv.probe import probe_native
from yolo_lightning.conv.recompute import BatchNormSiLU2d
from yolo_lightning.utils.files import cache_folder

Convolution = Literal["auto", "gemm", "native"]
ConvAlgorithm = Literal["table", "autotune", "compiled"]
MemoryFormat = Literal["auto", "contiguous", "channels_last"]

BLOCK_PARTS = (nn.Conv2d, nn.BatchNorm2d, nn.Module)


def arrange(
    graph: Any,
    convolution: Convolution,
    activation_checkpointing: bool = False,
    plan: Plan = DEFAULT_PLAN,
    memory_format: MemoryFormat = "auto",
) -> None:
    """Give the layers of a graph the classes that compute as asked, whatever they were before.

    Args:
        graph: A YOLOv8 graph; changed in place. Its first layer takes images of one channel, too.
        convolution: `gemm` computes convolutions and batch normalisation without a vendor library; `native` is
            PyTorch's own, and so is `auto` as long as the device is unknown.
        activation_checkpointing: Whether each block stores two maps for the backward pass instead of three, and
            recomputes the third. Batch normalisation then runs on ATen's own kernels, whatever `convolution` is.
        plan: Decides which algorithm computes a `gemm` convolution.
        memory_format: Layout of the weights, and so of the maps between layers. `auto` is channels_last for `gemm`,
            whose algorithms are faster with it, and contiguous for `native`.
    """
    restore(graph)
    if convolution == "gemm":
        swap_convs(graph, plan=plan)
    graph.model[0].conv.__class__ = GrayGemmConv2d if convolution == "gemm" else GrayConv2d
    channels_last = memory_format == "channels_last" or (memory_format == "auto" and convolution == "gemm")
    graph.to(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
    if activation_checkpointing:
        for block in blocks(graph):
            if isinstance(block.act, nn.SiLU):
                block.bn.__class__ = BatchNormSiLU2d
                # One SiLU serves all blocks of all graphs: replaced in this block, never changed.
                block.act = nn.Identity()


def restore(graph: Any) -> None:
    """Give the layers PyTorch's own classes again, as Ultralytics made them: for files that others are to open."""
    stem = graph.model[0].conv
    if type(stem) in (GrayConv2d, GrayGemmConv2d):
        stem.__class__ = type(stem).__base__
    _split_activations(graph)
    unswap_convs(graph)


def blocks(graph: nn.Module) -> Iterator[Any]:
    """The blocks of convolution, batch normalisation and activation."""
    for module in graph.modules():
        parts = [getattr(module, name, None) for name in ("conv", "bn", "act")]
        if all(isinstance(part, kind) for part, kind in zip(parts, BLOCK_PARTS, strict=True)):
            yield module


def _split_activations(graph: nn.Module) -> None:
    shared = nn.SiLU()
    for block in blocks(graph):
        has_both = type(block.bn) is BatchNormSiLU2d
        if has_both:
            block.bn.__class__ = nn.BatchNorm2d
            block.act = shared


class FoldedGraph:
    """A copy of a graph for inference: batch normalisation is folded into the convolutions before it.

    No module, so that it never becomes part of a checkpoint. Later changes of the graph do not reach the copy.

    Args:
        graph: A YOLOv8 graph; stays as it is.
    """

    def __init__(self, graph: Any) -> None:
        self._graph: Any = deepcopy(graph)
        self._graph.eval()
        # A layer that joins normalisation and activation would take the activation with it.
        _split_activations(self._graph)
        folding = list(blocks(self._graph))
        self._graph.fuse(verbose=False)
        for block in folding:
            if isinstance(block.act, nn.SiLU):
                block.act = nn.SiLU(inplace=True)

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Any:
        """What the graph returns in evaluation, within rounding, for `(B, 1 or 3, H, W)` float images."""
        return self._graph(images)


def choose_convolution(device: torch.device, timeout_s: float) -> Literal["gemm", "native"]:
    """What `auto` means on a device; says so in one line.

    PyTorch's convolutions on a CPU need no vendor library for a GPU and are the faster ones: nothing is tried there.

    Args:
        device: Where the network will compute.
        timeout_s: Seconds after which native convolutions count as hung, above 0.
    """
    if device.type == "cpu":
        rank_zero_info("model.conv_backend auto: native, on a CPU")
        return "native"
    rank_zero_info(f"model.conv_backend auto: trying native convolutions on {device}, for at most {timeout_s:g} s")
    result = probe_native(device, timeout_s, cache_folder() / "convolution_probe.json")
    convolution: Literal["gemm", "native"] = "native" if result.works else "gemm"
    rank_zero_info(f"model.conv_backend auto: {convolution}; {result}")
    return convolution


def make_plan(kind: ConvAlgorithm, budget_s: float) -> Plan:
    """The plan that all convolutions of a graph share; what it builds or measures is kept in the user's cache folder.

    Args:
        kind: `table` uses a fixed table; `compiled` does so too, with kernels compiled at first use where a GPU
            can run them or a C++ compiler can build them for the CPU; `autotune` measures the candidates.
        budget_s: Seconds that `autotune` may spend, 0 or more.

    Raises:
        ValueError: If a value is not allowed.
    """
    if kind == "compiled":
        enable_compiled_kernels(cache_folder() / "kernels")
    if kind in ("table", "compiled"):
        return DEFAULT_PLAN
    if kind != "autotune":
        raise ValueError(f"model.conv_algorithm is {kind!r}, allowed are {', '.join(get_args(ConvAlgorithm))}")
    if not budget_s >= 0:
        raise ValueError(f"model.conv_algorithm_budget_s is {budget_s}, allowed are 0 and more")
    return AutotunedPlan(budget_s, cache_folder() / "convolution_plan.json")
