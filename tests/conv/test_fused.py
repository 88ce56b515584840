"""The kernels of fused.cu, compiled for the CPU, against `torch.nn.functional.conv2d` in float64."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from torch import Tensor
from torch.nn import functional as F

from tests.conv.emulation import Guarded
from tests.conv.test_conv2d import CASES, Case, random
from yolo_lightning.conv.algorithms.algorithm import Operation
from yolo_lightning.conv.algorithms.problem import Problem, make_problem
from yolo_lightning.conv.kernels import fused_launch, launcher
from yolo_lightning.conv.kernels.launcher import Launch, Launcher, LaunchRecorder

DENSE = [case for case in CASES if case[3].get("groups", 1) == 1 and 0 not in case[0]]


def nhwc(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last)


def problem_of(input: Tensor, weight: Tensor, arguments: dict[str, Any]) -> Problem:
    settings = {"stride": 1, "padding": 0, "dilation": 1} | arguments
    return replace(make_problem(input, weight, None, groups=1, **settings), channels_last=True)


# Largest error, relative to the largest value: the sums are float32, the results are rounded once.
TOLERANCES = {torch.float32: 5e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


class Products(NamedTuple):
    """Tensors and arguments of a convolution, and its output and gradients by autograd in float64."""

    input: Tensor
    weight: Tensor
    grad_output: Tensor
    problem: Problem
    expected: list[Tensor]


def make_products(
    input_shape: Sequence[int],
    weight_shape: Sequence[int],
    arguments: dict[str, Any],
    dtype: torch.dtype = torch.float32,
) -> Products:
    input, weight = random(*input_shape, dtype=dtype), random(*weight_shape, seed=1, dtype=dtype)
    problem = problem_of(input, weight, arguments)
    exact = [input.double().requires_grad_(), weight.double().requires_grad_()]
    output = F.conv2d(*exact, **arguments)
    grad_output = random(*output.shape, seed=2, dtype=dtype)
    expected = [output.detach(), *torch.autograd.grad(output, exact, grad_output.double())]
    return Products(nhwc(input), weight, nhwc(grad_output), problem, expected)


def compare(launch: Launcher, products: Products) -> None:
    """Compare each product, which takes one launch, with the expected one."""
    input, weight, grad_output, problem, expected = products
    results = [
        fused_launch.forward(launch, input, weight, problem),
        fused_launch.input_gradient(launch, grad_output, weight, problem),
        fused_launch.weight_gradient(launch, input, grad_output, problem),
    ]
    for name, result, other in zip(("output", "input", "weight"), results, expected, strict=True):
        assert result.shape == other.shape
        assert result.dtype == input.dtype
        difference = (result - other).abs().max() / other.abs().max().clamp(min=1)
        assert difference < TOLERANCES[input.dtype], f"{name} is off by {difference:.2g}"


LAUNCH_FUNCTIONS = (fused_launch.forward, fused_launch.input_gradient, fused_launch.weight_gradient)


def check_counted_launches(products: Products, launches: Sequence[Launch]) -> None:
    """Compare launches with those that a `LaunchRecorder` counts for tensors on the meta device, and their bytes."""
    input, weight, grad_output, problem, _ = products
    recorder = LaunchRecorder()
    for function, tensors in zip(
        LAUNCH_FUNCTIONS, ((input, weight), (grad_output, weight), (input, grad_output)), strict=True
    ):
        function(recorder, *(tensor.to("meta") for tensor in tensors), problem)  # type: ignore[call-arg]
    launched, counted = (
        [(launch.name, launch.grid, launch.operands.bytes) for launch in some] for some in (launches, recorder.launches)
    )
    assert launched == counted
    assert len(counted) == 3


def check(
    launch: Launcher,
    input_shape: Sequence[int],
    weight_shape: Sequence[int],
    arguments: dict[str, Any],
    dtype: torch.dtype = torch.float32,
) -> None:
    compare(launch, make_products(input_shape, weight_shape, arguments, dtype))


@pytest.mark.parametrize("case", DENSE, ids=str)
@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_results_equal_torch(case: Case, emulated: Launcher, unwritten_is_nan: None) -> None:
    check(emulated, case[0], case[1], case[3])


SUMS = fused_launch.KernelTile(64, 64, 4)
DIRECT_TILES = [tile for tile in {*fused_launch.TILES, *fused_launch.SUM_TILES} if not tile.is_winograd]


@pytest.mark.parametrize("channels", [12, 7], ids=["by four", "by one"])
@pytest.mark.parametrize("tile", sorted(DIRECT_TILES), ids=lambda tile: f"{tile.rows}x{tile.columns}")
def test_every_tile(
    tile: fused_launch.KernelTile,
    channels: int,
    emulated: Guarded,
    monkeypatch: pytest.MonkeyPatch,
    unwritten_is_nan: None,
) -> None:
    only_tile(monkeypatch, tile)
    # More than one tile each way; 5 * 5 taps make more rows of the weight gradient than the largest tile has.
    check(emulated, (2, channels, 15, 14), (tile.columns + channels, channels, 5, 5), {"padding": 2})
    products = [
        product
        for product, tiles in (("correlate", fused_launch.TILES), ("sum_products", fused_launch.SUM_TILES))
        if tile in tiles
    ]
    suffix = f"{tile.rows}x{tile.columns}_{'by_four' if channels == 12 else 'by_one'}"
    launches = [launch for launch in emulated.launches[-3:] if launch.name.endswith(suffix)]
    assert {launch.name for launch in launches} == {f"{product}_{suffix}" for product in products}
    assert all(math.prod(launch.grid) > 1 for launch in launches)


WINOGRAD = {
    "partial patches": ((2, 8, 7, 6), 40, {"padding": 1}),
    "several blocks": ((2, 24, 15, 14), 72, {"padding": 1}),
    "no padding": ((1, 16, 3, 9), 8, {}),
    "other padding": ((1, 8, 5, 3), 8, {"padding": (2, 3)}),
    "1 x 1 images": ((3, 8, 1, 1), 8, {"padding": 1}),
    "odd channels": ((2, 5, 6, 9), 7, {"padding": 1}),
}


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("case", WINOGRAD)
def test_winograd(
    case: str,
    dtype: torch.dtype,
    emulated: Guarded,
    monkeypatch: pytest.MonkeyPatch,
    unwritten_is_nan: None,
) -> None:
    only_tile(monkeypatch, fused_launch.WINOGRAD, fused_launch.WINOGRAD_SUMS)
    monkeypatch.setattr(fused_launch, "PIXELS_PER_SPLIT", 32)  # several splits, in groups
    monkeypatch.setattr(fused_launch, "SPLITS_PER_GROUP", 2)
    shape, outputs, arguments = WINOGRAD[case]
    products = make_products(shape, (outputs, shape[1], 3, 3), arguments, dtype)
    whole = nhwc(torch.full((shape[0], shape[1] + 3, *shape[2:]), torch.nan, dtype=dtype))
    part = whole[:, 2:-1].copy_(products.input)  # channels are adjacent, but not aligned
    for changed in (products, products._replace(input=part, weight=nhwc(products.weight))):
        compare(emulated, changed)
        names = [launch.name for launch in emulated.launches[-3:]]
        assert ["winograd" in name for name in names] == [case != "odd channels"] * 2 + [True]


def test_winograd_is_as_exact_as_the_other_kernels(emulated: Guarded) -> None:
    """Activations of SiLU, with a mean that is not zero."""
    activations = F.silu(random(2, 64, 10, 10, dtype=torch.float32) + 0.5)
    weight = random(16, 64, 3, 3, seed=1, dtype=torch.float32)
    products = make_products((2, 64, 10, 10), (16, 64, 3, 3), {})._replace(input=nhwc(activations), weight=weight)
    leaves = [activations.double().requires_grad_(), weight.double().requires_grad_()]
    output = F.conv2d(*leaves)
    exact = (output, torch.autograd.grad(output, leaves, products.grad_output.double())[1])
    errors = []
    for tiles in ((fused_launch.WINOGRAD, fused_launch.WINOGRAD_SUMS), (fused_launch.KernelTile(256, 16, 4), SUMS)):
        results = (
            fused_launch.forward(emulated, products.input, weight, products.problem, tiles[:1]),
            fused_launch.weight_gradient(emulated, products.input, products.grad_output, products.problem, tiles[1:]),
        )
        errors.append([(result - other).square().mean().sqrt() for result, other in zip(results, exact, strict=True)])
    assert errors[0][0] < 2 * errors[1][0]
    assert errors[0][1] < 4 * errors[1][1]


def test_winograd_needs_its_shape_and_32_bit_offsets() -> None:
    for channels, kernel, arguments, height in (
        (12, 3, {}, 9),
        (8, 2, {}, 9),
        (8, 3, {"stride": 2}, 9),
        (8, 3, {"dilation": 2}, 9),
        (64, 3, {}, 1 << 17),
    ):
        input = torch.empty(1, channels, height, 64, device="meta").to(memory_format=torch.channels_last)
        weight = torch.empty(64, channels, kernel, kernel, device="meta")
        tiles = fused_launch.tiles_for(Operation.FORWARD, problem_of(input, weight, arguments), torch.float32)
        assert tiles != [fused_launch.WINOGRAD]


@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_shape(emulated: Guarded, data: st.DataObject) -> None:
    products = make_products(*draw_convolution(data), dtype=data.draw(st.sampled_from(list(TOLERANCES))))
    if data.draw(st.booleans()):
        products = products._replace(weight=nhwc(products.weight))
    before = len(emulated.launches)
    compare(emulated, products)
    check_counted_launches(products, emulated.launches[before:])


def only_tile(monkeypatch: pytest.MonkeyPatch, *tiles: fused_launch.KernelTile) -> None:
    """Select one of these tiles for every product that it supports."""
    monkeypatch.setattr(fused_launch.KernelTile, "clocks", lambda self, *_, **__: 1e9 * (self not in tiles))
    for function in ("_split", "_fastest"):  # without the cache
        monkeypatch.setattr(fused_launch, function, getattr(fused_launch, function).__wrapped__)


def draw_convolution(data: st.DataObject) -> tuple[Sequence[int], Sequence[int], dict[str, Any]]:
    """Draw shapes of an input and a weight, and further arguments, with a non-empty output."""

    def draw(low: int, high: int) -> int:
        return data.draw(st.integers(low, high))

    kernel, dilation = (draw(1, 4), draw(1, 4)), (draw(1, 3), draw(1, 3))
    padding = (draw(0, 4), draw(0, 4))
    least = [max(1, d * (k - 1) + 1 - 2 * p) for k, d, p in zip(kernel, dilation, padding, strict=True)]
    size = [draw(smallest, smallest + 9) for smallest in least]
    arguments = {"stride": (draw(1, 4), draw(1, 4)), "padding": padding, "dilation": dilation}
    channels = draw(1, 9)
    return (draw(1, 3), channels, *size), (draw(1, 9), channels, *kernel), arguments


def test_infinity_affects_only_the_windows_that_contain_it(emulated: Guarded) -> None:
    # 27 numbers in a window, where the kernel multiplies 32.
    input, weight = nhwc(random(1, 3, 9, 9, dtype=torch.float32)), random(4, 3, 3, 3, dtype=torch.float32)
    input[0, 0, 4, 4] = torch.inf
    output = fused_launch.forward(emulated, input, weight, problem_of(input, weight, {}))
    assert torch.equal(output.isfinite(), F.conv2d(input, weight).isfinite())


def test_channel_slices_are_read_without_a_copy(emulated: Guarded) -> None:
    whole, weight = nhwc(random(2, 12, 6, 7, dtype=torch.float32)), random(8, 4, 3, 3, dtype=torch.float32)
    grads = nhwc(random(2, 16, 4, 5, dtype=torch.float32))
    input, grad_output = whole[:, 4:8], grads[:, 8:]
    problem = problem_of(input, weight, {})
    output = fused_launch.forward(emulated, input, weight, problem)
    grad_weight = fused_launch.weight_gradient(emulated, input, grad_output, problem)
    leaf = weight.requires_grad_()
    expected = F.conv2d(input, leaf)
    torch.testing.assert_close(output, expected.detach(), rtol=0, atol=2e-5)
    torch.testing.assert_close(grad_weight, *torch.autograd.grad(expected, leaf, grad_output), rtol=0, atol=1e-4)
    read, read_again = (launch.operands.reads for launch in emulated.launches[-2:])
    assert read[0] is read_again[0] is input
    assert read_again[1] is grad_output


def test_gray_images_are_read_without_a_copy(emulated: Guarded) -> None:
    """A contiguous image has a distance between channels that is not 1, and there is no second channel."""
    input, weight = random(2, 1, 7, 6, dtype=torch.float32), random(4, 1, 3, 3, dtype=torch.float32)
    output = fused_launch.forward(emulated, input, weight, problem_of(input, weight, {}))
    torch.testing.assert_close(output, F.conv2d(input, weight), rtol=0, atol=1e-5)
    assert emulated.launches[-1].operands.reads[0] is input


def test_counters_are_filled_once_and_grow() -> None:
    like = torch.empty(1)
    first = launcher.counters(like, 3)
    assert launcher.counters(like, first.numel()) is first
    larger = launcher.counters(like, first.numel() + 1)
    assert larger.numel() > first.numel()
    assert not larger.any()


def test_counters_of_a_captured_graph_are_not_used_outside_of_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    like = torch.empty(1)
    before = launcher.counters(like, 3)
    monkeypatch.setattr(launcher, "is_capturing", lambda device: True)
    captured = launcher.counters(like, before.numel() + 1)
    assert captured is not launcher.counters(like, before.numel() + 1), "a graph has one set per launch"
    monkeypatch.undo()
    assert launcher.counters(like, 3) is before


@pytest.mark.parametrize("layout", ["crop", "expanded"])
def test_unevenly_spaced_pixels_are_copied_first(layout: str, emulated: Guarded) -> None:
    whole, weight = nhwc(random(2, 4, 9, 9, dtype=torch.float32)), random(8, 4, 3, 3, dtype=torch.float32)
    input = whole[:, :, 1:7, 2:8] if layout == "crop" else whole[:1, :, :1, :1].expand(2, 4, 6, 6)
    output = fused_launch.forward(emulated, input, weight, problem_of(input, weight, {}))
    torch.testing.assert_close(output, F.conv2d(input, weight), rtol=0, atol=2e-5)


def test_unaligned_tensors_are_read_one_by_one(emulated: Guarded) -> None:
    input = nhwc(random(1, 8, 5, 5, dtype=torch.float32))[:, 1:5]
    weight = random(4, 4, 1, 1, dtype=torch.float32)
    output = fused_launch.forward(emulated, input, weight, problem_of(input, weight, {}))
    torch.testing.assert_close(output, F.conv2d(input, weight), rtol=0, atol=1e-5)
    assert emulated.launches[-1][0].endswith("by_one")


def test_weight_gradient_is_split_over_pixels_and_gives_equal_bits(emulated: Guarded) -> None:
    input, grad_output = (nhwc(random(4, channels, 20, 20, dtype=torch.float32)) for channels in (3, 5))
    problem = problem_of(input, torch.empty(5, 3, 1, 1), {})
    first, second = (fused_launch.weight_gradient(emulated, input, grad_output, problem) for _ in range(2))
    assert torch.equal(first, second)
    assert emulated.launches[-1].grid == (1, 1, 5)


@pytest.mark.parametrize("per_group", [1, 4, 5, 16])
def test_splits_are_added_in_groups(per_group: int, emulated: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine splits of two tiles; the emulation runs the blocks of every second launch in reverse order."""
    only_tile(monkeypatch, fused_launch.KernelTile(64, 64, 4))
    monkeypatch.setattr(fused_launch, "SPLITS_PER_GROUP", per_group)
    monkeypatch.setattr(fused_launch, "PIXELS_PER_SPLIT", 16)
    products = make_products((2, 8, 15, 14), (72, 8, 1, 1), {})
    compare(emulated, products)
    input, _, grad_output, problem, _ = products
    launches = [fused_launch.weight_gradient(emulated, input, grad_output, problem) for _ in range(2)]
    assert torch.equal(*launches)
    assert emulated.launches[-1].grid == (1, 2, 9)


@pytest.mark.parametrize("stride", [1, 2])
def test_a_weight_is_read_in_any_layout_without_a_copy(stride: int, emulated: Guarded) -> None:
    products = make_products((2, 8, 9, 8), (12, 8, 3, 3), {"padding": 1, "stride": stride})
    whole = random(12, 3, 3, 16, dtype=torch.float32).permute(0, 3, 1, 2)
    part = whole[:, 5:13].copy_(products.weight)  # channels are adjacent, but not aligned
    for weight in (products.weight, nhwc(products.weight), part):
        compare(emulated, products._replace(weight=weight))
        assert all(launch.operands.reads[1] is weight for launch in emulated.launches[-3:-1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_types_keep_special_values_and_round_to_even(dtype: torch.dtype, emulated: Guarded) -> None:
    # A 1x1 convolution with the weight 1 copies; with a weight of other sizes it rounds the product once.
    subnormal = torch.finfo(dtype).smallest_normal / 4
    values = [0.0, -0.0, 1.0, torch.inf, -torch.inf, torch.nan, torch.finfo(dtype).max, subnormal, -3 * subnormal]
    input = torch.tensor(values, dtype=dtype).view(1, 1, 3, 3)
    for factor in (1.0, 1.125, 0.7, 1e-3, 1e3):
        weight = torch.full((1, 1, 1, 1), factor, dtype=dtype)
        output = fused_launch.forward(emulated, input, weight, problem_of(input, weight, {}))
        expected = (input.float() * weight.float()).to(dtype)
        torch.testing.assert_close(output, expected, rtol=0, atol=0, equal_nan=True)


def test_weight_gradient_has_the_layout_of_a_channels_last_parameter(emulated: Guarded) -> None:
    input, grad_output = (nhwc(random(2, channels, 6, 6, dtype=torch.float32)) for channels in (8, 4))
    weight = nhwc(torch.empty(4, 8, 3, 3))
    result = fused_launch.weight_gradient(emulated, input, grad_output, problem_of(input, weight, {"padding": 1}))
    assert result.stride() == weight.stride()


def test_tiles_for_lists_the_tiles_of_the_launches(emulated: Guarded) -> None:
    input, weight = nhwc(random(1, 8, 9, 9, dtype=torch.float32)), random(20, 8, 3, 3, dtype=torch.float32)
    problem = problem_of(input, weight, {"padding": 1, "stride": 2})
    before = len(emulated.launches)
    fused_launch.input_gradient(emulated, nhwc(random(1, 20, 5, 5, dtype=torch.float32)), weight, problem)
    used = {name.split("_")[1] for name, *_ in emulated.launches[before:]}
    tiles = fused_launch.tiles_for(Operation.INPUT_GRADIENT, problem, torch.float32)
    assert {f"{tile.rows}x{tile.columns}" for tile in tiles} == used
