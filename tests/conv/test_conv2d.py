"""`conv2d` against `torch.nn.functional.conv2d`."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from yolo_lightning.conv import conv2d

# (input shape, weight shape, has a bias, keyword arguments)
Case = tuple[tuple[int, ...], tuple[int, ...], bool, dict[str, Any]]
CASES: list[Case] = [
    # OpInfo samples of torch
    ((1, 3, 4, 4), (3, 3, 3, 3), True, {"stride": (2, 2), "padding": 2}),
    ((2, 4, 8, 8), (2, 2, 3, 3), True, {"stride": (3, 2), "padding": (2, 1), "groups": 2, "dilation": (4, 4)}),
    ((1, 4, 5, 5), (1, 4, 2, 3), True, {"stride": 2, "padding": 1, "dilation": (2, 3)}),
    ((1, 2, 4, 3), (4, 2, 3, 4), False, {"stride": 2, "padding": 1}),
    ((1, 4, 5, 5), (1, 4, 2, 3), True, {"stride": 2, "padding": "valid"}),
    ((1, 4, 5, 5), (1, 4, 2, 3), True, {"stride": 1, "padding": "same", "dilation": 3}),
    ((2, 4, 6, 6), (4, 1, 3, 3), True, {"groups": 4}),
    ((2, 4, 6, 6), (8, 1, 3, 3), False, {"groups": 4}),
    ((2, 4, 6, 6), (4, 1, 3, 3), True, {"groups": 4, "stride": (3, 2)}),
    ((2, 4, 6, 6), (4, 1, 3, 3), True, {"groups": 4, "padding": (1, 1)}),
    ((2, 4, 5, 5), (4, 1, 2, 2), True, {"groups": 4, "dilation": (2, 2)}),
    ((2, 4, 6, 5), (6, 2, 3, 2), True, {"groups": 2}),
    ((1, 4, 5, 5), (3, 4, 3, 3), False, {}),
    # torch's test_convolution.py
    ((1, 1, 10, 11), (1, 1, 4, 5), False, {"padding": "same"}),
    ((1, 1, 10, 11), (1, 1, 4, 4), False, {"padding": "same", "dilation": 3}),
    ((2, 6, 7, 8), (12, 2, 3, 3), True, {"groups": 3, "stride": 2, "dilation": 2}),
    ((0, 6, 7, 8), (12, 2, 3, 3), True, {"groups": 3}),
    ((2, 0, 7, 8), (12, 0, 3, 3), True, {}),
    ((0, 4, 4, 4), (4, 1, 3, 3), True, {"stride": 2, "padding": 1, "groups": 4}),
    ((2, 3, 5, 5), (3, 3, 1, 1), True, {}),
    ((2, 3, 5, 5), (4, 3, 1, 1), False, {"stride": 2}),
    ((2, 3, 5, 5), (4, 3, 1, 1), False, {"padding": 1}),
    ((1, 16, 5, 5), (1, 16, 1, 1), False, {}),
    ((1, 3, 9, 20), (1, 3, 5, 10), True, {"padding": "same"}),
    # YOLO's stem, odd sizes, a map of one pixel, uneven padding, large and even kernels
    ((2, 3, 64, 64), (16, 3, 3, 3), False, {"stride": 2, "padding": 1}),
    ((2, 16, 33, 35), (32, 16, 3, 3), False, {"stride": 2, "padding": 1}),
    ((2, 8, 1, 1), (8, 8, 3, 3), False, {"padding": 1}),
    ((2, 8, 20, 20), (8, 8, 3, 3), True, {"padding": (1, 0)}),
    ((2, 8, 9, 9), (8, 8, 5, 5), False, {"padding": 2}),
    ((2, 8, 9, 9), (8, 8, 2, 2), False, {}),
    # several tiles of samples and of image rows; padding beyond the kernel; grouped 1x1; taps that skip a remainder
    ((3, 16, 80, 80), (8, 16, 3, 3), False, {"padding": 1}),
    ((2, 4, 5, 6), (4, 4, 2, 2), False, {"padding": 3}),
    ((2, 6, 5, 5), (4, 3, 1, 1), True, {"groups": 2}),
    ((2, 4, 13, 12), (5, 4, 3, 2), False, {"stride": (4, 3), "dilation": (2, 3), "padding": 1}),
]
LAYOUTS = ["contiguous", "unbatched", "channels_last", "non_contiguous", "expanded"]


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=torch.float64).to(dtype)


def scatter(tensor: Tensor) -> Tensor:
    """Return a copy with a gap after each element."""
    return tensor.repeat_interleave(2, -1)[..., ::2]


def lay_out(tensor: Tensor, layout: str) -> Tensor:
    if layout == "channels_last" and tensor.dim() == 4:
        return tensor.contiguous(memory_format=torch.channels_last)
    if layout == "non_contiguous":
        return scatter(tensor)
    if layout == "expanded" and tensor.numel():
        return tensor[:1].expand(tensor.shape)
    return tensor


def derivatives(function: Any, tensors: list[Tensor], grad_output: Tensor, arguments: dict[str, Any]) -> list[Tensor]:
    leaves = [tensor.detach().requires_grad_() for tensor in tensors]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about its own copy for uneven "same" padding
        output = function(*leaves, **arguments)
    return [output, *torch.autograd.grad(output, leaves, grad_output)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_output_and_gradients_equal_torch(case: Case, layout: str) -> None:
    input_shape, weight_shape, has_bias, arguments = case
    if layout == "unbatched":
        input_shape = input_shape[1:]
    shapes = [input_shape, weight_shape] + [weight_shape[:1]] * has_bias
    tensors = [lay_out(random(*shape, seed=number), layout) for number, shape in enumerate(shapes)]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        grad_output = lay_out(random(*F.conv2d(*tensors, **arguments).shape, seed=9), layout)
    results = derivatives(conv2d, tensors, grad_output, arguments)
    references = derivatives(F.conv2d, tensors, grad_output, arguments)
    for name, result, reference in zip(["output", "input", "weight", "bias"], results, references, strict=False):
        torch.testing.assert_close(
            result, reference, rtol=1e-9, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("case", [case for case in CASES if case[0][0] and case[0][1] > 1], ids=str)
def test_channels_last_input_gives_channels_last_output(case: Case) -> None:
    input_shape, weight_shape, _, arguments = case
    input = random(*input_shape).contiguous(memory_format=torch.channels_last)
    weight = random(*weight_shape).contiguous(memory_format=torch.channels_last)
    assert conv2d(input, weight, **arguments).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("wanted", [(True, False), (False, True)])
def test_only_required_gradients_are_computed_and_saved(wanted: tuple[bool, bool]) -> None:
    input, weight = random(2, 3, 8, 8).requires_grad_(wanted[0]), random(4, 3, 3, 3).requires_grad_(wanted[1])
    saved: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = conv2d(input, weight)
    assert saved == [weight.numel() if wanted[0] else input.numel()]
    output.sum().backward()
    assert (input.grad is not None, weight.grad is not None) == wanted


def test_two_runs_are_bitwise_equal() -> None:
    tensors = [random(4, 16, 40, 40, dtype=torch.float32), random(16, 16, 3, 3, dtype=torch.float32)]
    grad_output = random(4, 16, 20, 20, dtype=torch.float32)
    runs = [derivatives(conv2d, tensors, grad_output, {"stride": 2, "padding": 1}) for _ in range(2)]
    assert all(torch.equal(first, second) for first, second in zip(*runs, strict=True))


def test_integers_of_numpy_are_accepted() -> None:
    input, weight = random(2, 4, 9, 9), random(4, 2, 3, 3)
    arguments = {"stride": np.int64(2), "padding": (np.int32(1), 1), "dilation": np.int8(2), "groups": np.int64(2)}
    torch.testing.assert_close(conv2d(input, weight, **arguments), F.conv2d(input, weight, None, 2, 1, 2, 2))
