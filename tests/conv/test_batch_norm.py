"""`VendorFreeBatchNorm2d`, and `RecomputedBatchNormSiLU2d` with its SiLU, against the layers of `torch.nn`."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from yolo_lightning.conv import VendorFreeBatchNorm2d, swap_convs
from yolo_lightning.conv.normalization import RecomputedBatchNormSiLU2d

KINDS = (VendorFreeBatchNorm2d, RecomputedBatchNormSiLU2d)
OPTIONS: list[dict[str, Any]] = [
    {},
    {"momentum": None},
    {"momentum": 0.5, "eps": 1e-3},
    {"affine": False},
    {"track_running_stats": False},
    {"affine": False, "track_running_stats": False},
]


def random(*shape: int, seed: int = 0) -> Tensor:
    return 3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 1


def twins(
    options: dict[str, Any], dtype: torch.dtype = torch.float64, kind: type[nn.BatchNorm2d] = RecomputedBatchNormSiLU2d
) -> tuple[Any, nn.Sequential]:
    """Return a layer, and the layers of `torch.nn` with the same parameters."""
    native = nn.BatchNorm2d(4, dtype=dtype, **options)
    for seed, parameter in enumerate(native.parameters()):
        parameter.data.copy_(random(4, seed=seed))
    converted = copy.deepcopy(native)
    converted.__class__ = kind
    return converted, nn.Sequential(native, nn.SiLU()) if kind is RecomputedBatchNormSiLU2d else nn.Sequential(native)


def kept_storages(forward: Callable[[], Tensor]) -> dict[int, int]:
    """Return the bytes of every storage that a forward pass saves for its backward pass, by address."""
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = forward()
    assert output.requires_grad
    return kept


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_three_steps_equal_torch(
    kind: type[nn.BatchNorm2d], options: dict[str, Any], training: bool, memory_format: torch.memory_format
) -> None:
    converted, native = twins(options, kind=kind)
    for step in range(3):
        results = []
        for layer in (converted, native):
            layer.train(training or step == 0)  # the first step fills the running statistics
            input = random(2, 4, 5, 6, seed=step).contiguous(memory_format=memory_format).requires_grad_()
            output = layer(input)
            leaves = [input, *layer.parameters()]
            results.append((output, *torch.autograd.grad(output.pow(3).sum(), leaves)))
        torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)
        assert results[0][0].stride() == results[1][0].stride()
        torch.testing.assert_close(converted.state_dict(), native[0].state_dict(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("affine", [True, False])
def test_first_and_second_derivatives(kind: type[nn.BatchNorm2d], training: bool, affine: bool) -> None:
    layer = twins({"affine": affine}, kind=kind)[0].train(training)
    input = random(2, 4, 3, 2).requires_grad_()

    def function(input: Tensor, *parameters: Tensor) -> Tensor:
        return torch.func.functional_call(layer, dict(zip(("weight", "bias"), parameters, strict=False)), input)

    arguments = (input, *(parameter.detach().requires_grad_() for parameter in layer.parameters()))
    assert torch.autograd.gradcheck(function, arguments)
    assert torch.autograd.gradgradcheck(function, arguments)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("affine", [True, False])
def test_half_inputs_with_float32_weights(kind: type[nn.BatchNorm2d], dtype: torch.dtype, affine: bool) -> None:
    converted, native = twins({"affine": affine}, torch.float32, kind)
    results = []
    for layer in (converted, native):
        input = random(2, 4, 5, 6).to(dtype).requires_grad_()
        output = layer(input)
        results.append((output, *torch.autograd.grad(output.float().square().sum(), [input, *layer.parameters()])))
    assert results[0][0].dtype == dtype
    torch.testing.assert_close(*results, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(converted.state_dict(), native[0].state_dict())


@pytest.mark.parametrize("kind", KINDS)
def test_empty_batch_like_torch(kind: type[nn.BatchNorm2d]) -> None:
    converted, native = twins({}, kind=kind)
    results = []
    for layer in (converted, native):
        input = torch.zeros(0, 4, 2, 2).double().requires_grad_()
        output = layer(input)
        results.append((output, *torch.autograd.grad(output.sum(), [input, *layer.parameters()])))
    torch.testing.assert_close(*results)
    torch.testing.assert_close(converted.state_dict(), native[0].state_dict())


@pytest.mark.parametrize(
    ("shape", "message"),
    [((2, 4, 5), "4D"), ((2, 3, 5, 5), "must have 4 channels, got 3"), ((1, 4, 1, 1), "more than 1 value per channel")],
)
def test_bad_inputs(shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VendorFreeBatchNorm2d(4)(torch.zeros(shape))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", [nn.BatchNorm2d, nn.InstanceNorm2d])
def test_negative_eps_is_refused(kind: type[nn.Module], training: bool) -> None:
    layer = swap_convs(kind(4, eps=-1.0)).train(training)
    with pytest.raises(ValueError, match=r"eps of a normalization must be >= 0, got -1\.0"):
        layer(torch.ones(2, 4, 3, 3))


INSTANCES = [
    (nn.InstanceNorm1d, (3, 4, 6)),
    (nn.InstanceNorm2d, (3, 4, 5, 6)),
    (nn.InstanceNorm2d, (4, 5, 6)),
    (nn.InstanceNorm3d, (2, 4, 3, 2, 4)),
]


@pytest.mark.parametrize("options", [{}, {"affine": True}, {"affine": True, "track_running_stats": True}], ids=str)
@pytest.mark.parametrize(("kind", "shape"), INSTANCES, ids=str)
def test_instance_normalization_equals_torch(
    kind: type[nn.Module], shape: tuple[int, ...], options: dict[str, Any]
) -> None:
    native = kind(4, dtype=torch.float64, **options)
    swapped = swap_convs(copy.deepcopy(native))
    results: list[Any] = []
    for layer in (native, swapped):
        input = random(*shape).requires_grad_()
        first = layer(input)
        second = layer.eval()(input)
        wanted = [input, *layer.parameters()]
        results.append((first, second, *torch.autograd.grad((first * second).sum(), wanted), layer.state_dict()))
    torch.testing.assert_close(*results)


def test_instance_normalization_of_one_pixel_is_refused() -> None:
    with pytest.raises(ValueError, match="more than 1 spatial element"):
        swap_convs(nn.InstanceNorm2d(4))(torch.ones(2, 4, 1, 1))


def test_gradient_in_another_memory_format_and_expanded() -> None:
    converted, native = twins({})
    for grad in (random(2, 4, 5, 6).contiguous(memory_format=torch.channels_last), torch.ones(()).double()):
        results = []
        for layer in (converted, native):
            input = random(2, 4, 5, 6).requires_grad_()
            results.append(torch.autograd.grad(layer(input), [input, *layer.parameters()], grad.expand(2, 4, 5, 6)))
        torch.testing.assert_close(*results)


@pytest.mark.parametrize("wanted", ["input", "weight", "bias"])
def test_only_the_required_gradient_is_computed(wanted: str) -> None:
    results = []
    for layer in twins({}):
        norm = layer[0] if isinstance(layer, nn.Sequential) else layer
        leaves = {"input": random(2, 4, 5, 6), "weight": norm.weight, "bias": norm.bias}
        for name, leaf in leaves.items():
            leaf.requires_grad_(name == wanted)
        for with_graph in (True, False):
            output = layer(leaves["input"])
            results += torch.autograd.grad(output.pow(2).sum(), leaves[wanted], create_graph=with_graph)
        layer(leaves["input"]).sum().backward()
        assert [name for name, leaf in leaves.items() if leaf.grad is not None] == [wanted]
    assert len(results) == 4
    torch.testing.assert_close(results, [results[-1]] * 4)


def test_autocast_of_the_forward_pass_alone() -> None:
    results = []
    for norm in twins({}, torch.float32):
        torch.manual_seed(0)
        block = nn.Sequential(nn.Conv2d(3, 4, 3), norm)
        input = random(2, 3, 6, 6).float().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = block(input)
        results.append((output, *torch.autograd.grad(output.float().square().sum(), [input, *block.parameters()])))
    assert results[0][0].dtype == torch.bfloat16
    torch.testing.assert_close(*results, rtol=2e-2, atol=2e-1)


def test_one_activation_is_saved_instead_of_two() -> None:
    converted, native = twins({}, torch.float32)
    input = random(8, 4, 32, 32).float().requires_grad_()
    map_bytes = input.untyped_storage().nbytes()
    maps = [
        sum(size == map_bytes for size in kept_storages(lambda: layer(input)).values())  # noqa: B023
        for layer in (converted, native)
    ]
    assert maps == [1, 2]


def test_running_statistics_may_change_before_the_backward_pass() -> None:
    layer = twins({})[0].eval()
    input = random(2, 4, 5, 6).requires_grad_()
    (expected,) = torch.autograd.grad(layer(input).sum(), input)
    output = layer(input)
    layer.train()(random(2, 4, 5, 6, seed=1))
    torch.testing.assert_close(torch.autograd.grad(output.sum(), input), (expected,))


def test_input_changed_before_the_backward_pass_raises() -> None:
    layer, input = twins({})[0], random(2, 4, 5, 6).requires_grad_() * 1
    output = layer(input)
    input.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


def test_input_is_not_modified() -> None:
    input = random(2, 4, 5, 6)
    for training in (True, False):
        with torch.no_grad():
            twins({})[0].train(training)(input)
    assert torch.equal(input, random(2, 4, 5, 6))


def test_constant_channel_and_no_eps() -> None:
    layer = RecomputedBatchNormSiLU2d(4, eps=0.0).double()
    input = torch.ones(2, 4, 3, 3).double().requires_grad_()
    (grad,) = torch.autograd.grad(layer(input).sum(), input)
    assert grad.isfinite().all()


def test_equals_the_two_layers_bit_for_bit_in_the_forward_pass() -> None:
    converted, native = twins({}, torch.float32)
    input = random(2, 4, 32, 32).float()
    assert torch.equal(
        converted(input),
        F.silu(
            torch.native_batch_norm(input, native[0].weight, native[0].bias, None, None, True, 0.1, native[0].eps)[0]
        ),
    )
