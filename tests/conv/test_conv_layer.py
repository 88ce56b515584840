"""`GemmConv2d` as a layer, its memory, and its profiler events."""

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from yolo_lightning.conv import DEFAULT_PLAN, AutotunedPlan, GemmConv2d, Plan, swap_convs

VENDOR_OPERATORS = ("aten::convolution", "aten::_convolution", "aten::conv2d", "aten::thnn_conv2d", "aten::slow_conv")
VENDOR_NAMES = ("cudnn", "miopen", "mkldnn_convolution", "onednn", "nnpack", "convolution_backward")


def random(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=dtype)


def stack(channels: int = 8) -> nn.Sequential:
    """Convolutions of every kind with batch norm and SiLU between them, as in YOLO."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for arguments in (
        {"kernel_size": 3, "stride": 2, "padding": 1},
        {"kernel_size": 1},
        {"kernel_size": 3, "padding": 1},
        {"kernel_size": 3, "padding": 1, "groups": channels},
        {"kernel_size": 3, "padding": 2, "dilation": 2, "groups": 2, "padding_mode": "reflect"},
    ):
        layers += [nn.Conv2d(channels, channels, bias=False, **arguments), nn.BatchNorm2d(channels), nn.SiLU()]
    return nn.Sequential(*layers, nn.Conv2d(channels, 3, 1))


@pytest.mark.parametrize("padding_mode", ["zeros", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("padding", [0, 1, (2, 1), "same", "valid"])
@pytest.mark.parametrize("kernel_size", [3, (2, 4)])
def test_padding_modes_equal_torch(padding_mode: str, padding: Any, kernel_size: Any) -> None:
    native = nn.Conv2d(4, 6, kernel_size, padding=padding, padding_mode=padding_mode, groups=2, dtype=torch.float64)
    ours = GemmConv2d(4, 6, kernel_size, padding=padding, padding_mode=padding_mode, groups=2, dtype=torch.float64)
    ours.load_state_dict(native.state_dict())
    results = []
    for layer in (ours, native):
        input = random(2, 4, 8, 9).requires_grad_()
        output = layer(input)
        results.append((output, *torch.autograd.grad(output.square().sum(), [input, *layer.parameters()])))
    torch.testing.assert_close(*results)


def test_layer_is_a_conv2d_and_survives_copies() -> None:
    layer = GemmConv2d(3, 4, 3, padding=1)
    input = random(1, 3, 5, 5, dtype=torch.float32)
    assert isinstance(layer, nn.Conv2d)
    assert list(layer.state_dict()) == ["weight", "bias"]
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert type(twin) is GemmConv2d
        assert torch.equal(twin(input), layer(input))


def test_functional_call_uses_the_given_weights() -> None:
    layer, input = GemmConv2d(3, 4, 3), random(2, 3, 6, 6, dtype=torch.float32)
    doubled = {name: 2 * value for name, value in layer.state_dict().items()}
    torch.testing.assert_close(torch.func.functional_call(layer, doubled, input), 2 * layer(input))


def test_layer_works_on_the_meta_device() -> None:
    layer = GemmConv2d(3, 4, 3, stride=2, padding=1, device="meta")
    assert layer(torch.empty(2, 3, 9, 9, device="meta")).shape == (2, 4, 5, 5)


@pytest.mark.whole_run
@pytest.mark.parametrize("plan", [DEFAULT_PLAN, AutotunedPlan(10)], ids=["fixed", "timed"])
def test_compiled_layer_equals_eager(plan: Plan) -> None:
    layer, input = GemmConv2d(3, 4, 3, padding=1), random(2, 3, 8, 8, dtype=torch.float32).requires_grad_()
    layer.plan = plan
    results = []
    for function in (layer, torch.compile(layer, backend="aot_eager")):
        output = function(input)
        results.append((output, *torch.autograd.grad(output.square().sum(), [input, *layer.parameters()])))
    torch.testing.assert_close(*results)
    torch._dynamo.reset()


def test_frozen_weight_and_bias_get_no_gradient() -> None:
    layer, input = GemmConv2d(3, 4, 3), random(2, 3, 6, 6, dtype=torch.float32).requires_grad_()
    layer.weight.requires_grad_(False)
    layer(input).sum().backward()
    assert layer.weight.grad is None
    assert layer.bias.grad is not None
    assert input.grad is not None
    layer.requires_grad_(False)
    assert not layer(input.detach()).requires_grad


def test_two_layers_with_one_weight_add_their_gradients() -> None:
    one, two, input = GemmConv2d(3, 3, 3, padding=1), GemmConv2d(3, 3, 3, padding=1), random(2, 3, 6, 6)
    two.weight, two.bias = one.double().weight, one.bias
    two(one(input)).square().sum().backward()
    leaves = [one.weight.detach().clone().requires_grad_(), one.bias.detach().clone().requires_grad_()]
    F.conv2d(F.conv2d(input, *leaves, padding=1), *leaves, padding=1).square().sum().backward()
    torch.testing.assert_close([one.weight.grad, one.bias.grad], [leaf.grad for leaf in leaves])


def test_channels_last_weight_keeps_its_layout_and_gets_a_gradient() -> None:
    layer = GemmConv2d(4, 8, 3, padding=1).to(memory_format=torch.channels_last)
    input = random(2, 4, 6, 6, dtype=torch.float32).contiguous(memory_format=torch.channels_last)
    output = layer(input)
    output.sum().backward()
    assert output.is_contiguous(memory_format=torch.channels_last)
    assert layer.weight.is_contiguous(memory_format=torch.channels_last)
    assert layer.weight.grad.shape == layer.weight.shape


@pytest.mark.parametrize("strict", [True, False])
def test_state_dict_round_trip_with_a_native_layer(strict: bool, tmp_path: Path) -> None:
    ours, native = GemmConv2d(3, 4, 3, padding="same"), nn.Conv2d(3, 4, 3, padding="same")
    ours.plan = AutotunedPlan(0)
    torch.save(ours.state_dict(), tmp_path / "weights.pt")
    native.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True), strict=strict)
    back = GemmConv2d(3, 4, 3)
    back.load_state_dict(native.state_dict(), strict=strict)
    assert torch.equal(back.weight, ours.weight)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("plan", [DEFAULT_PLAN, AutotunedPlan(10)], ids=["fixed", "timed"])
def test_layer_can_be_traced_to_torchscript(plan: Plan) -> None:
    layer, input = GemmConv2d(3, 4, 3, stride=2, padding=1), random(2, 3, 9, 9, dtype=torch.float32)
    layer.plan = plan
    traced = torch.jit.trace(layer, input, check_trace=False)
    assert getattr(plan, "spent_s", 0) == 0, "no timing while tracing"
    torch.testing.assert_close(traced(2 * input), layer(2 * input))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_a_trace_holds_no_vendor_operator(memory_format: torch.memory_format) -> None:
    model = swap_convs(stack()).to(memory_format=memory_format)
    input = random(2, 8, 16, 16, dtype=torch.float32).contiguous(memory_format=memory_format).requires_grad_()
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        model(input).square().sum().backward()
    names = {event.name for event in trace.events()}
    assert "aten::native_batch_norm" in names, "the trace contains the model"
    found = [name for name in names if name in VENDOR_OPERATORS or any(part in name for part in VENDOR_NAMES)]
    assert found == []
    assert {"aten::batch_norm", "aten::_batch_norm_impl_index"}.isdisjoint(names)


def saved_bytes(model: nn.Module, input: Tensor) -> int:
    """Return the bytes saved for the backward pass; each storage counts once."""
    storages: dict[int, int] = {}
    held: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        held.append(tensor)  # a storage freed in between could be counted as another one
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = model(input)
    held.append(output)
    return sum(storages.values())


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_as_little_is_saved_for_backward_as_by_torch(memory_format: torch.memory_format) -> None:
    model = stack().to(memory_format=memory_format)
    input = random(2, 8, 64, 64, dtype=torch.float32).contiguous(memory_format=memory_format)
    native = saved_bytes(model, input)
    ours = saved_bytes(swap_convs(model), input)
    assert input.nbytes < ours <= 1.05 * native
