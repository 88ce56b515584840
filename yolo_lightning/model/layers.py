"""Implementation of the layers of a detection graph; parameters, buffers and their names never change.

A block is Ultralytics' `Conv`: a module with a convolution `conv`, a normalization `bn` and an activation `act`,
applied in this order.
"""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from yolo_lightning.conv import DEFAULT_PLAN, GemmConv2d, Plan, swap_convs, unswap_convs
from yolo_lightning.conv.algorithms.problem import memory_format_of
from yolo_lightning.conv.algorithms.shared import is_under_autocast, without_autocast
from yolo_lightning.conv.layer import GrayConv2d, GrayGemmConv2d
from yolo_lightning.conv.normalization import BatchNormSiLU2d, RecomputedBatchNormSiLU2d
from yolo_lightning.data.image_size import STRIDE
from yolo_lightning.model.convolution_settings import Convolution, MemoryFormat

INPUT_CHANNELS = 3
"""Input channels of the first weight, as in published weights. `GrayConv2d` also accepts gray images."""


def arrange(
    graph: Any,
    convolution: Convolution,
    activation_checkpointing: bool = False,
    plan: Plan = DEFAULT_PLAN,
    memory_format: MemoryFormat = "auto",
) -> Any:
    """Set the implementation of all layers of a detection graph, in place, from any other one; return the graph.

    The layers that read the image also accept images with one channel.

    Args:
        graph: The graph.
        convolution: `gemm` computes convolutions and batch normalization without a vendor library; `native` uses
            the layers of PyTorch. `auto` uses them as well, until the device is known and `auto` is replaced.
        activation_checkpointing: Each block stores two activations for the backward pass instead of three, and
            recomputes the third. Batch normalization then uses the kernels of ATen for any `convolution`.
        plan: Selects the algorithm of `gemm` convolutions.
        memory_format: Memory format of weights and activations. `auto` is channels_last for `gemm`, whose algorithms
            are faster with it, and contiguous for `native`.
    """
    restore(graph)
    is_gemm = convolution == "gemm"
    if is_gemm:
        swap_convs(graph, plan=plan)
    for layer in image_layers(graph):
        layer.__class__ = GrayGemmConv2d if is_gemm else GrayConv2d
    channels_last = memory_format == "channels_last" or (memory_format == "auto" and is_gemm)
    graph.to(memory_format=memory_format_of(channels_last))
    if is_gemm or activation_checkpointing:
        for block in blocks(graph):
            if isinstance(block.act, nn.SiLU):
                block.bn.__class__ = RecomputedBatchNormSiLU2d if activation_checkpointing else BatchNormSiLU2d
                # All blocks of all graphs share one SiLU: it is replaced in this block and never modified.
                block.act = nn.Identity()
    return graph


def restore(graph: Any) -> None:
    """Set all layers to the classes that Ultralytics created, for files that Ultralytics opens."""
    for layer in image_layers(graph):
        if type(layer) in (GrayConv2d, GrayGemmConv2d):
            layer.__class__ = type(layer).__base__
    _split_activations(graph)
    unswap_convs(graph)


def image_layers(graph: nn.Module) -> list[Any]:
    """Return the convolutions that read the image; yolov9e has two.

    They are the only ones with three input channels: all other channel counts are multiples of 8, or those of groups.
    """
    layers = [layer for layer in graph.modules() if isinstance(layer, nn.Conv2d)]
    return [layer for layer in layers if layer.in_channels == INPUT_CHANNELS and layer.groups == 1]


def has_one_to_one_branch(graph: Any) -> bool:
    """Whether the head has a one-to-one branch beside the one-to-many branch."""
    return getattr(graph.model[-1], "one2one_cv2", None) is not None


def keep_branch(graph: Any, *, one_to_one: bool) -> None:
    """Make one branch of the head the only one, in place, for inference without loss."""
    head = graph.model[-1]
    if not has_one_to_one_branch(graph):
        return
    if one_to_one:
        head.cv2 = head.one2one_cv2
        head.cv3 = head.one2one_cv3
    head.one2one_cv2 = None
    head.one2one_cv3 = None


def of_branch(graph: Any, output: Any, *, one_to_one: bool) -> Any:
    """Return the output of a graph in evaluation mode with the decoded boxes of one branch of the head.

    Ultralytics decodes the one-to-many branch, and keeps only the best boxes if it decodes the one-to-one branch. Under
    autocast, the boxes are decoded in float32.
    """
    weight = next(graph.parameters())
    is_mixed = is_under_autocast(weight.device.type)
    if not one_to_one and not is_mixed:
        return output
    head = graph.model[-1]
    _, raw = output
    branch = raw
    if has_one_to_one_branch(graph):
        branch = raw["one2one" if one_to_one else "one2many"]
    if is_mixed:
        branch = in_float32(branch)
        head.shape = None  # the head has stored the anchors in the dtype of its features
    with without_autocast(weight):
        return head._inference(branch), raw


def in_float32(raw: dict[str, Any]) -> dict[str, Any]:
    """Return raw predictions of a network under autocast for boxes and a loss in float32.

    bfloat16 has 8 significant bits: beyond 64 cells of the grid, a coordinate would be rounded to half a cell, which is
    4 pixels at stride 8. Of the feature maps, only shape and dtype are used.
    """
    if "one2many" in raw:
        return {name: in_float32(branch) for name, branch in raw.items()}
    features = [feature.new_empty((), dtype=torch.float32).expand(feature.shape) for feature in raw["feats"]]
    return {"boxes": raw["boxes"].float(), "scores": raw["scores"].float(), "feats": features}


def blocks(graph: nn.Module) -> Iterator[Any]:
    """Yield the blocks of a graph."""
    for module in graph.modules():
        has_convolution = isinstance(getattr(module, "conv", None), nn.Conv2d)
        has_normalization = isinstance(getattr(module, "bn", None), nn.BatchNorm2d)
        if has_convolution and has_normalization and isinstance(getattr(module, "act", None), nn.Module):
            yield module


def _split_activations(graph: nn.Module) -> None:
    shared = nn.SiLU()
    for block in blocks(graph):
        has_activation = isinstance(block.bn, BatchNormSiLU2d)
        if has_activation:
            block.bn.__class__ = nn.BatchNorm2d
            block.act = shared


def graph_stride(graph: Any) -> int:
    """Return the number of pixels of which all sides of the input must be multiples, >= 32, as in Ultralytics."""
    return max(*map(int, graph.stride.tolist()), STRIDE)


class FoldedGraph:
    """Copy of a graph for inference, with batch normalization folded into the convolutions.

    It is not a module, so that it never becomes part of a checkpoint. Later changes of the graph do not affect it.

    Args:
        graph: The graph.
        one_to_one: Whether to decode the boxes of the one-to-one branch.
        with_loss: Whether the raw predictions of both branches are needed, for a loss.
    """

    def __init__(self, graph: Any, *, one_to_one: bool = False, with_loss: bool = True) -> None:
        self._graph: Any = deepcopy(graph)
        self._graph.eval()
        self.stride = graph_stride(graph)
        self._decodes_one_to_one = one_to_one and with_loss
        if with_loss:
            self._graph.model[-1].fuse = _keep_branches
        else:
            keep_branch(self._graph, one_to_one=one_to_one)
        # Folding a layer that includes the activation would remove the activation.
        _split_activations(self._graph)
        folding = list(blocks(self._graph))
        plans = [layer.plan for layer in self._graph.modules() if isinstance(layer, GemmConv2d)]
        self._graph.fuse(verbose=False)
        if plans:  # Ultralytics replaces parallel convolutions by a new one
            swap_convs(self._graph, plan=plans[0])
        for block in folding:
            if isinstance(block.act, nn.SiLU):
                block.act = nn.SiLU(inplace=True)

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Any:
        """Return the output of the graph in evaluation mode, up to rounding, for `(B, 1 or 3, H, W)` float images."""
        return of_branch(self._graph, self._graph(images), one_to_one=self._decodes_one_to_one)


def _keep_branches() -> None:
    """Replace Ultralytics' `fuse` of a head, which removes a branch."""
