"""Operators that a training step with the GPU kernels launches, counted on the meta device, which computes nothing."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from yolo_lightning.conv import Plan
from yolo_lightning.conv.kernels.verified import assume_available
from yolo_lightning.model.graph import build_graph
from yolo_lightning.model.layers import arrange

VIEWS = set(
    "view expand permute transpose slice select unsqueeze squeeze t as_strided detach alias unfold split "  # noqa: SIM905
    "_unsafe_view empty new_empty empty_like split_with_sizes unbind _reshape_alias empty_strided "
    "new_empty_strided".split()
)
CARDS = {"RX 5600 XT": (288e9 * 0.8, 7.2e12 * 0.5, 12e-6), "H100": (3.35e12 * 0.8, 60e12 * 0.6, 6e-6)}
"""Attainable bytes/s and FLOP/s, and seconds per launch."""


class StepCounter(TorchDispatchMode):
    """Counts operators, bytes of their tensors and floating-point operations of matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: Counter[str] = Counter()
        self.dispatches = self.bytes = self.operations = 0
        self.seconds = dict.fromkeys(CARDS, 0.0)

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operator(*args, **(kwargs or {}))
        name = str(operator).split(".")[1]
        self.dispatches += 1
        assert name not in ("lift_fresh", "_local_scalar_dense"), "a transfer between host and device"
        if name in VIEWS:
            return result
        self.kernels[name] += 1
        tensors = {id(leaf): leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, Tensor)}
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        operations = product_operations(name, args, result)
        self.bytes, self.operations = self.bytes + size, self.operations + operations
        for card, (bandwidth, rate, launch) in CARDS.items():
            self.seconds[card] += max(size / bandwidth, operations / rate, launch)
        return result


def product_operations(name: str, args: Any, result: Any) -> int:
    if name in ("mm", "bmm"):
        return 2 * args[0].numel() * args[1].shape[-1]
    if name == "fused_conv_forward":
        return 2 * result.numel() * args[1][0].numel()
    if name == "fused_conv_input_gradient":
        return 2 * args[0].numel() * args[1][0].numel()
    if name == "fused_conv_weight_gradient":
        return 2 * args[1].numel() * result[0].numel()
    return 0


@pytest.fixture(scope="module")
def step() -> StepCounter:
    """Forward and backward pass of YOLOv8n, batch 8, 640 x 640 pixels, one channel, float32."""
    graph = build_graph("yolov8n", ("a", "b", "c", "d"), "gemm")
    arrange(graph, "gemm", plan=Plan())  # its own decisions: those on the meta device must not leave this test
    graph = graph.train().to("meta")
    counter = StepCounter()
    with assume_available("meta"), counter:
        output = graph(torch.empty(8, 1, 640, 640, device="meta"))
        (output["boxes"].sum() + output["scores"].sum()).backward()
    return counter


def test_every_product_and_normalisation_is_one_operator(step: StepCounter) -> None:
    assert step.kernels["batch_norm_silu"] == step.kernels["batch_norm_silu_backward"] == 57
    products = ("fused_conv_forward", "fused_conv_input_gradient", "fused_conv_weight_gradient", "mm")
    # 63 convolutions; the images need no gradient.
    assert sum(step.kernels[name] for name in products) == 3 * 63 - 1
    assert round(step.operations / 1e9) == 192


def test_step_is_within_its_budget(step: StepCounter) -> None:
    assert sum(step.kernels.values()) <= 400
    assert step.dispatches <= 1_200
    assert step.bytes <= 7e9
    assert step.seconds["RX 5600 XT"] <= 75e-3
    assert step.seconds["H100"] <= 8e-3
