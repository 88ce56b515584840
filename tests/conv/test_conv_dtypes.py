"""Half types, the error of float32, and autocast."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from yolo_lightning.conv import conv2d
from yolo_lightning.conv.algorithms import shared

# The error that one rounding of a result of size 1 allows, doubled: facts of the types, not of this machine.
ROUNDING = {torch.bfloat16: 2**-7, torch.float16: 2**-10}


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def results(function: object, input: Tensor, weight: Tensor, **arguments: int) -> list[Tensor]:
    leaves = [input.detach().requires_grad_(), weight.detach().requires_grad_()]
    output = function(*leaves, **arguments)  # type: ignore[operator]
    return [output, *torch.autograd.grad(output.sum(), leaves)]


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_weight_gradient_of_many_tiles_is_summed_in_float32(
    dtype: torch.dtype, memory_format: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every sample adds 1 to the gradient: a sum in a half type would stop at 256 or 2048."""
    monkeypatch.setattr(shared, "CPU_TILE_ELEMENTS", 1)  # one sample for each tile
    input = torch.ones(4097, 2, 3, 3, dtype=dtype).contiguous(memory_format=memory_format)
    weight = torch.zeros(1, 2, 3, 3, dtype=dtype, requires_grad=True)
    conv2d(input, weight).sum().backward()
    torch.testing.assert_close(weight.grad, torch.full_like(weight, len(input)))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("stride", [1, 2])
def test_float32_error_is_that_of_a_matrix_product(stride: int, memory_format: torch.memory_format) -> None:
    input = random(2, 64, 20, 20).contiguous(memory_format=memory_format)
    weight = random(64, 64, 3, 3, seed=1).contiguous(memory_format=memory_format)
    references = results(F.conv2d, input.double(), weight.double(), stride=stride, padding=1)
    for result, reference in zip(results(conv2d, input, weight, stride=stride, padding=1), references, strict=True):
        torch.testing.assert_close(result.double(), reference, rtol=4e-6, atol=4e-6 * reference.abs().max().item())


def test_autocast_casts_like_the_native_operator() -> None:
    input, weight, bias = random(2, 3, 8, 8).requires_grad_(), random(4, 3, 3, 3).requires_grad_(), random(4)
    with torch.autocast("cpu", torch.bfloat16):
        output, reference = conv2d(input, weight, bias), F.conv2d(input, weight, bias)
        double = conv2d(input.double(), weight.double())
    assert output.dtype == reference.dtype == torch.bfloat16
    assert double.dtype == torch.float64
    largest = reference.abs().max().item()
    torch.testing.assert_close(output, reference, rtol=0, atol=ROUNDING[torch.bfloat16] * largest)
    gradients = torch.autograd.grad(output.float().square().sum(), (input, weight))
    references = torch.autograd.grad(reference.float().square().sum(), (input, weight))
    assert [gradient.dtype for gradient in gradients] == [torch.float32, torch.float32]
    for gradient, native in zip(gradients, references, strict=True):
        torch.testing.assert_close(gradient, native, rtol=0.03, atol=0.03 * native.abs().max().item())


def test_backward_under_autocast_keeps_the_precision_of_the_forward() -> None:
    input, weight = random(2, 3, 8, 8).requires_grad_(), random(4, 3, 3, 3).requires_grad_()
    outside = torch.autograd.grad(conv2d(input, weight).square().sum(), (input, weight))
    output = conv2d(input, weight).square().sum()
    with torch.autocast("cpu", torch.bfloat16):
        inside = torch.autograd.grad(output, (input, weight))
    torch.testing.assert_close(inside, outside, rtol=0, atol=0)
