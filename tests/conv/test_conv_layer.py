"""`GemmConv2d` as a layer."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from yolo_lightning.conv import GemmConv2d, swap_convs


def random(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=dtype)


@pytest.mark.parametrize("padding_mode", ["zeros", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("padding", [0, 1, (2, 1), "same", "valid"])
@pytest.mark.parametrize("kernel_size", [3, (2, 4)])
def test_padding_modes_equal_torch(padding_mode: str, padding: Any, kernel_size: Any) -> None:
    native = nn.Conv2d(4, 6, kernel_size, padding=padding, padding_mode=padding_mode, groups=2, dtype=torch.float64)
    gemm = GemmConv2d(4, 6, kernel_size, padding=padding, padding_mode=padding_mode, groups=2, dtype=torch.float64)
    gemm.load_state_dict(native.state_dict())
    results = []
    for layer in (gemm, native):
        input = random(2, 4, 8, 9).requires_grad_()
        output = layer(input)
        results.append((output, *torch.autograd.grad(output.square().sum(), [input, *layer.parameters()])))
    torch.testing.assert_close(*results)


def test_functional_call_uses_the_given_weights() -> None:
    layer, input = GemmConv2d(3, 4, 3), random(2, 3, 6, 6, dtype=torch.float32)
    doubled = {name: 2 * value for name, value in layer.state_dict().items()}
    torch.testing.assert_close(torch.func.functional_call(layer, doubled, input), 2 * layer(input))


def test_channels_last_weight_keeps_its_layout_and_gets_a_gradient() -> None:
    layer = GemmConv2d(4, 8, 3, padding=1).to(memory_format=torch.channels_last)
    input = random(2, 4, 6, 6, dtype=torch.float32).contiguous(memory_format=torch.channels_last)
    output = layer(input)
    output.sum().backward()
    assert output.is_contiguous(memory_format=torch.channels_last)
    assert layer.weight.is_contiguous(memory_format=torch.channels_last)
    assert layer.weight.grad.shape == layer.weight.shape


# Input, weight and other arguments. Layouts differ where a size is 1.
SHAPES = [
    ((2, 3, 6, 6), {"out_channels": 4, "kernel_size": 3}),
    ((2, 1, 6, 6), {"out_channels": 4, "kernel_size": 3}),
    ((2, 4, 6, 6), {"out_channels": 1, "kernel_size": 3}),
    ((2, 4, 6, 6), {"out_channels": 4, "kernel_size": 3, "groups": 4}),
    ((1, 4, 6, 6), {"out_channels": 6, "kernel_size": 1}),
    ((2, 4, 1, 1), {"out_channels": 6, "kernel_size": 1}),
]


@pytest.mark.parametrize("weight_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("input_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("shape", "arguments"), SHAPES, ids=str)
def test_outputs_have_the_strides_of_torch(
    shape: tuple[int, ...],
    arguments: dict[str, int],
    input_format: torch.memory_format,
    weight_format: torch.memory_format,
) -> None:
    layer = nn.Conv2d(shape[1], **arguments).to(memory_format=weight_format)
    input = random(*shape, dtype=torch.float32).to(memory_format=input_format)
    expected = layer(input)
    assert swap_convs(layer)(input).stride() == expected.stride()
