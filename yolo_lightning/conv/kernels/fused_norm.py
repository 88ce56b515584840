"""Optional batch normalization followed by SiLU on a GPU (batch_norm.cu): two launches forward, two backward."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from yolo_lightning.conv.algorithms.problem import Tensors, memory_format_of
from yolo_lightning.conv.algorithms.shared import have_data
from yolo_lightning.conv.kernels import batch_norm_launch
from yolo_lightning.conv.kernels.launcher import ELEMENTS, MOST_ELEMENTS
from yolo_lightning.conv.kernels.verified import OptionalKernels, Pairs, generated, is_accelerator, operator

KERNELS = OptionalKernels("fused batch normalization kernels")


def accepts(input: Tensor, *parameters: Tensor | None) -> bool:
    """Return whether the kernels support a batch.

    They support a GPU, float32, float16 and bfloat16, a non-empty batch, 32-bit offsets, and float32 parameters.
    """
    return (
        is_accelerator(input.device.type)
        and input.dtype in ELEMENTS
        and 0 < input.numel() <= MOST_ELEMENTS
        and all(parameter is not None and parameter.dtype == torch.float32 for parameter in parameters)
        and have_data((input,))
        and KERNELS.available(input.device)
    )


def forward(
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    num_batches_tracked: Tensor | None,
    momentum: float,
    eps: float,
) -> Tensors | None:
    """Return the output and `(2, C)` mean and 1 / standard deviation of a batch, or None without kernels."""
    arguments = (input, weight, bias, running_mean, running_var, num_batches_tracked, momentum, eps)
    return KERNELS.run(
        _key("forward", input), input.device, lambda: _forward(*arguments), lambda: _compared(input, eps, _FORWARD)
    )


def backward(grad_output: Tensor, input: Tensor, weight: Tensor, bias: Tensor, statistics: Tensor) -> Tensors | None:
    """Return the input gradient and `(2, C)` the gradients of bias and weight, or None without kernels."""
    arguments = (grad_output, input, weight, bias, statistics)
    return KERNELS.run(
        _key("backward", input), input.device, lambda: _backward(*arguments), lambda: _compared(input, 1e-3, _BACKWARD)
    )


def _key(operation: str, input: Tensor) -> tuple[Any, ...]:
    """Return what the selection of kernels and of their threads depends on."""
    return f"batch normalization {operation}", input.size(1), batch_norm_launch.is_channels_last(input), input.dtype


_FORWARD = slice(0, 4)  # of the pairs of `_compared`
_BACKWARD = slice(4, 6)


def _compared(input: Tensor, eps: float, results: slice) -> Pairs:
    """Return results of the kernels for a small batch of generated values, each with the result of ATen in float32."""
    channels = input.size(1)
    device = input.device
    launcher = KERNELS.required(device)
    by_four = input.size(2) * input.size(3) % 4 == 0
    size = (3, channels, 10, 12 if by_four else 13)
    batch, grads = (generated(*size, dtype=input.dtype, device=device, seed=seed) for seed in (1, 2))
    if batch_norm_launch.is_channels_last(input):
        batch, grads = (tensor.contiguous(memory_format=torch.channels_last) for tensor in (batch, grads))
    weight, bias, mean, var = (
        generated(channels, dtype=torch.float32, device=device, seed=seed).abs() + 0.5 for seed in range(4)
    )
    exact = [tensor.detach().float().requires_grad_() for tensor in (batch, weight, bias)]
    expected_mean = mean.clone()
    expected_var = var.clone()
    with torch.enable_grad():
        normalized = torch.native_batch_norm(exact[0], exact[1], exact[2], expected_mean, expected_var, True, 0.3, eps)
        expected = F.silu(normalized[0])
        by_input, by_weight, by_bias = torch.autograd.grad(expected, exact, grads.float())
    output, statistics = batch_norm_launch.forward(launcher, batch, weight, bias, mean, var, None, 0.3, eps)
    grad_input, sums = batch_norm_launch.backward(launcher, grads, batch, weight, bias, statistics)
    pairs: list[tuple[Tensor, Tensor]] = [
        (output.float(), expected.detach()),
        (statistics[0], normalized[1]),
        (mean, expected_mean),
        (var, expected_var),
        (grad_input.float(), by_input),
        (sums, torch.stack([by_bias, by_weight])),
    ]
    return pairs[results]


def _fake(input: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    memory_format = memory_format_of(batch_norm_launch.is_channels_last(input))
    return torch.empty_like(input, memory_format=memory_format), weight.new_empty(2, input.size(1))


_forward = operator(
    "batch_norm_silu(Tensor input, Tensor weight, Tensor bias, Tensor(a!)? running_mean, Tensor(b!)? running_var, "
    "Tensor(c!)? num_batches_tracked, float momentum, float eps) -> (Tensor, Tensor)",
    lambda input, weight, *others: _fake(input, weight),
    KERNELS,
)(batch_norm_launch.forward)
_backward = operator(
    "batch_norm_silu_backward(Tensor grad_output, Tensor input, Tensor weight, Tensor bias, Tensor statistics) "
    "-> (Tensor, Tensor)",
    lambda grad_output, input, weight, *others: _fake(input, weight),
    KERNELS,
)(batch_norm_launch.backward)
