"""Winograd with images of several tiles: no result depends on data of an earlier tile or call."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv2d as native

from yolo_lightning.conv import conv2d
from yolo_lightning.conv.algorithms import winograd

SHAPES = [(2, 32, 40, 24), (1, 48, 9, 70), (3, 32, 8, 8), (2, 32, 40, 24), (1, 32, 100, 100)]


def results(shape: tuple[int, ...], padding: int, operator: object) -> list[Tensor]:
    generator = torch.Generator().manual_seed(sum(shape))
    input = torch.randn(shape, generator=generator).contiguous(memory_format=torch.channels_last).requires_grad_()
    weight = (torch.randn(32, shape[1], 3, 3, generator=generator) / 17).requires_grad_()
    output = operator(input, weight, padding=padding)  # type: ignore[operator]
    output.backward(torch.ones_like(output))
    assert input.grad is not None
    assert weight.grad is not None
    return [output.detach(), input.grad, weight.grad]


def assert_equals(found: Tensor, expected: Tensor) -> None:
    """Compare with float32 tolerance: an element may be a sum of 10,000 products with cancellation."""
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the calls of Winograd's algorithm, which must compute the shapes of these tests."""
    counted: list[int] = []
    convolve = winograd._convolve

    def counting(*arguments: Any) -> Any:
        counted.append(1)
        return convolve(*arguments)

    monkeypatch.setattr(winograd, "_convolve", counting)
    return counted


@pytest.mark.parametrize("padding", [0, 1])
def test_calls_with_many_shapes_are_independent(padding: int, calls: list[int]) -> None:
    for shape in SHAPES * 2:
        for found, expected in zip(results(shape, padding, conv2d), results(shape, padding, native), strict=True):
            assert_equals(found, expected)
    assert len(calls) == 2 * len(SHAPES * 2)


def test_training_after_inference_mode() -> None:
    """Lightning validates in inference mode, whose tensors cannot be written outside of inference mode."""
    shape = (1, 40, 24, 24)
    with torch.inference_mode():
        conv2d(torch.rand(shape).contiguous(memory_format=torch.channels_last), torch.rand(32, 40, 3, 3), padding=1)
    results(shape, 1, conv2d)
