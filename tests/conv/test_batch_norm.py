"""`VendorFreeBatchNorm2d` against `torch.nn.BatchNorm2d`."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from yolo_lightning.conv import VendorFreeBatchNorm2d, swap_convs

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


def twins(options: dict[str, Any], dtype: torch.dtype = torch.float64) -> tuple[nn.BatchNorm2d, nn.BatchNorm2d]:
    native = nn.BatchNorm2d(4, dtype=dtype, **options)
    for seed, parameter in enumerate(native.parameters()):
        parameter.data.copy_(random(4, seed=seed))
    return swap_convs(copy.deepcopy(native)), native


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_three_steps_equal_torch(options: dict[str, Any], training: bool, memory_format: torch.memory_format) -> None:
    ours, native = twins(options)
    assert type(ours) is VendorFreeBatchNorm2d
    for step in range(3):
        results = []
        for layer in (ours, native):
            layer.train(training or step == 0)  # the first step fills the running statistics
            input = random(2, 4, 5, 6, seed=step).contiguous(memory_format=memory_format).requires_grad_()
            output = layer(input)
            leaves = [input, *layer.parameters()]
            results.append((output, *torch.autograd.grad(output.pow(3).sum(), leaves)))
        torch.testing.assert_close(*results)
        assert results[0][0].stride() == results[1][0].stride()
        torch.testing.assert_close(ours.state_dict(), native.state_dict())


@pytest.mark.parametrize("training", [True, False])
def test_second_derivatives(training: bool) -> None:
    layer = twins({})[0].train(training)
    assert torch.autograd.gradgradcheck(layer, random(2, 4, 3, 2).requires_grad_(), fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_inputs_with_float32_weights(dtype: torch.dtype) -> None:
    ours, native = twins({}, torch.float32)
    results = []
    for layer in (ours, native):
        input = random(2, 4, 5, 6).to(dtype).requires_grad_()
        output = layer(input)
        results.append((output, *torch.autograd.grad(output.float().square().sum(), [input, *layer.parameters()])))
    assert results[0][0].dtype == dtype
    torch.testing.assert_close(*results)
    torch.testing.assert_close(ours.state_dict(), native.state_dict())


def test_empty_batch_like_torch() -> None:
    ours, native = twins({})
    torch.testing.assert_close(ours(torch.zeros(0, 4, 2, 2).double()), native(torch.zeros(0, 4, 2, 2).double()))
    torch.testing.assert_close(ours.state_dict(), native.state_dict())


@pytest.mark.parametrize(
    ("shape", "message"),
    [((2, 4, 5), "4D"), ((2, 3, 5, 5), "must have 4 channels, got 3"), ((1, 4, 1, 1), "more than 1 value per channel")],
)
def test_bad_inputs(shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VendorFreeBatchNorm2d(4)(torch.zeros(shape))
