"""Memory and launches of passes with known values."""

import functools

import pytest
import torch
from torch import Tensor

from yolo_lightning.commands.benchmark.baselines import Variant
from yolo_lightning.commands.benchmark.comparison import Pass, measure_footprint
from yolo_lightning.commands.benchmark.passes import Layer, find_layers, layer_pass, make_module
from yolo_lightning.conv import Plan

CPU = torch.device("cpu")
FLOAT_BYTES = 4
AUTOCAST = functools.partial(torch.autocast, "cpu", dtype=torch.bfloat16, enabled=False)


@pytest.fixture(scope="module")
def layers() -> dict[str, Layer]:
    found = find_layers(make_module(0).graph, 64, 3)
    return {layer.name: layer for layer in found}


def squares(one: Tensor, known: tuple[Tensor, ...] = ()) -> Pass:
    """Return `(a * a)`, which saves `a`, then its square, which saves the product: twice the size of `a`."""

    def forward(_: None) -> Tensor:
        return (one * one).square()

    def backward(output: Tensor) -> None:
        output.backward(torch.ones_like(output))
        one.grad = None

    return Pass((("forward", forward), ("backward", backward)), known)


def test_saved_bytes_count_each_storage_once_and_no_parameter() -> None:
    one = torch.ones(1000, requires_grad=True)
    assert measure_footprint(squares(one), CPU, profiled=False).saved_bytes == 2 * 1000 * FLOAT_BYTES
    assert measure_footprint(squares(one, (one,)), CPU, profiled=False).saved_bytes == 1000 * FLOAT_BYTES


def test_bytes_saved_during_the_backward_pass_are_not_counted() -> None:
    one = torch.ones(1000, requires_grad=True)

    def forward(_: None) -> Tensor:
        return torch.utils.checkpoint.checkpoint(lambda leaf: (leaf * leaf).exp(), one, use_reentrant=False)

    def backward(output: Tensor) -> None:
        output.sum().backward()

    footprint = measure_footprint(Pass((("forward", forward), ("backward", backward)), ()), CPU, profiled=False)
    assert footprint.saved_bytes <= 1000 * FLOAT_BYTES


def test_views_are_not_counted_as_launches() -> None:
    one, two = torch.ones(4, 6), torch.ones(4, 6)

    def forward(_: None) -> Tensor:
        return torch.relu(one @ two.t().reshape(6, 4).view(6, 4)).transpose(0, 1)[1:]

    # The product, and the clamp_min that computes relu.
    assert measure_footprint(Pass((("forward", forward),), ()), CPU, profiled=True).launches == 2


def test_unfold_saves_nine_times_the_input(layers: dict[str, Layer]) -> None:
    layer = layers["model.2.m.0.cv1.conv"]
    saved = {}
    for variant in (Variant.NATIVE, Variant.GEMM, Variant.UNFOLD):
        one_pass = layer_pass(layer, make_module(0).graph, variant, Plan(), CPU, 2, AUTOCAST)
        one_pass.run()
        saved[variant] = measure_footprint(one_pass, CPU, profiled=False).saved_bytes
    input_bytes = 2 * torch.Size(layer.input_size).numel() * FLOAT_BYTES
    assert saved == {Variant.NATIVE: input_bytes, Variant.GEMM: input_bytes, Variant.UNFOLD: 9 * input_bytes}


def test_only_the_first_layer_needs_no_input_gradient(layers: dict[str, Layer]) -> None:
    assert [name for name, layer in layers.items() if not layer.needs_input_gradient] == ["model.0.conv"]


def test_operations_of_two_layers(layers: dict[str, Layer]) -> None:
    # 3 to 16 channels, 3x3, stride 2 on 64 px: 2 * 27 * 16 * 32 * 32 per product; the image needs no gradient.
    assert layers["model.0.conv"].operations == 3 * 2 * (2 * 27 * 16 * 32 * 32)
    assert layers["model.1.conv"].operations == 3 * 3 * (2 * 9 * 16 * 32 * 16 * 16)


def test_selection_of_six_layers() -> None:
    found = find_layers(make_module(0).graph, 640, 1)
    assert [layer.label for layer in found] == [
        "3 to 16, 3x3, stride 2, 640 px",
        "16 to 32, 3x3, stride 2, 320 px",
        "16 to 16, 3x3, stride 1, 160 px",
        "64 to 64, 3x3, stride 1, 80 px",
        "64 to 64, 3x3, stride 1, 40 px",
        "384 to 256, 1x1, stride 1, 20 px",
    ]
