"""Batch and instance normalization without cuDNN and MIOpen, also combined with SiLU."""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.fx import Proxy
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from yolo_lightning.conv.algorithms.shared import exports_to_onnx, is_traced
from yolo_lightning.conv.kernels import fused_norm
from yolo_lightning.conv.vendor_free_layer import VendorFreeLayer
from yolo_lightning.errors import UserError


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Compute `torch.nn.functional.batch_norm` by kernels of ATen, forward and backward.

    `torch.batch_norm` may dispatch to a vendor library in both directions. `torch.native_batch_norm` and its derivative
    are ATen operators without this dispatch, so that no global switch is needed.
    """
    for values in (running_mean, running_var, weight, bias):
        if values is not None:
            _check_channels(input, values.numel())
    _check_values(input, training, eps)
    if _is_empty(input):
        return _scale(input, weight, bias)
    return torch.native_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)[0]


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Compute `torch.nn.functional.instance_norm` by kernels of ATen, forward and backward.

    Like `torch.instance_norm`, this is a batch normalization of one sample that has the channels of all samples.
    """
    if exports_to_onnx():
        return F.instance_norm(input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)
    if _is_empty(input):
        return _scale(input, weight, bias)
    samples, channels, *size = input.shape
    if use_input_stats and not is_traced() and prod(size) == 1:
        raise UserError(f"expected more than 1 spatial element when training, got input size {tuple(input.shape)}")
    mean, variance, weights, biases = (
        None if values is None else values.repeat(samples) for values in (running_mean, running_var, weight, bias)
    )
    images = input.reshape(1, samples * channels, *size)
    output = batch_norm(images, mean, variance, weights, biases, use_input_stats, momentum, eps)
    if use_input_stats:
        for running, of_samples in ((running_mean, mean), (running_var, variance)):
            if running is not None and of_samples is not None:
                running.copy_(of_samples.view(samples, channels).mean(0))
    return output.view(input.shape)


def _check_channels(input: Tensor, channels: int) -> None:
    # torch.native_batch_norm does not check the channel count. In a trace, sizes are tensors.
    if not is_traced() and input.size(1) != channels:
        raise UserError(f"input must have {channels} channels, got {input.size(1)}")


def _check_values(input: Tensor, uses_batch: bool, eps: float) -> None:
    if not eps >= 0:
        raise UserError(f"eps of a normalization must be >= 0, got {eps}")
    if uses_batch and not is_traced() and input.numel() == input.size(1):
        raise UserError(f"expected more than 1 value per channel when training, got input size {tuple(input.shape)}")


def _is_empty(input: Tensor) -> bool:
    """Return whether the operator would reject an input that `torch.nn.BatchNorm2d` accepts.

    It keeps the statistics and returns zero gradients.
    """
    return not is_traced() and input.numel() == 0


def _scale(input: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Return `input * weight + bias` in the dtype of the input, without normalization."""
    per_channel = (1, -1, *(1,) * (input.dim() - 2))
    output = input.clone()
    if weight is not None:
        output = input * weight.view(per_channel)
    if bias is not None:
        output = output + bias.view(per_channel)
    return output.to(input.dtype)


class _VendorFreeBatchNorm(VendorFreeLayer, _BatchNorm):
    """Batch normalization of `torch.nn` computed by ATen kernels, forward and backward; see `batch_norm`.

    Semantics, constructor and state_dict are those of the layer in `torch.nn`. Half precision inputs are supported with
    float32 weights.
    """

    def forward(self, input: Any) -> Any:
        """Normalize `(N, C, ...)` over all dimensions except C; the result has the shape and dtype of the input."""
        if isinstance(input, Proxy):
            return self._as_node(input)
        self._check_input_dim(input)  # type: ignore[no-untyped-call]
        _check_channels(input, self.num_features)
        momentum = self._advance_momentum()
        uses_batch = self.training or self.running_mean is None
        _check_values(input, uses_batch, self.eps)
        if _is_empty(input):
            return self._scale(input)
        running: tuple[Tensor | None, Tensor | None] = (None, None)
        if not self.training or self.track_running_stats:
            running = (self.running_mean, self.running_var)
        return self._normalize(input, self.weight, self.bias, *running, uses_batch, momentum, self.eps)

    def _normalize(self, *arguments: Any) -> Tensor:
        if exports_to_onnx():
            return F.batch_norm(arguments[0], *arguments[3:5], *arguments[1:3], *arguments[5:])
        return torch.native_batch_norm(*arguments)[0]

    def _scale(self, input: Tensor) -> Tensor:
        return _scale(input, self.weight, self.bias)

    def _advance_momentum(self) -> float:
        """Count the batch and return the momentum of the running statistics."""
        if not (self.training and self.track_running_stats and self.num_batches_tracked is not None):
            return 0.0 if self.momentum is None else self.momentum
        self.num_batches_tracked.add_(1)
        return 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum


class VendorFreeBatchNorm1d(_VendorFreeBatchNorm, nn.BatchNorm1d):
    """`torch.nn.BatchNorm1d` without a vendor library, for `(N, C)` and `(N, C, L)`."""


class VendorFreeBatchNorm2d(_VendorFreeBatchNorm, nn.BatchNorm2d):
    """`torch.nn.BatchNorm2d` without a vendor library, for `(N, C, H, W)`."""


class VendorFreeBatchNorm3d(_VendorFreeBatchNorm, nn.BatchNorm3d):
    """`torch.nn.BatchNorm3d` without a vendor library, for `(N, C, D, H, W)`."""


class _VendorFreeInstanceNorm(VendorFreeLayer, _InstanceNorm):
    """Instance normalization of `torch.nn` computed by ATen kernels; see `instance_norm`."""

    def forward(self, input: Any) -> Any:
        """Normalize each channel of each sample; the result has the shape and dtype of the input."""
        if isinstance(input, Proxy):
            return self._as_node(input)
        return super().forward(input)

    def _apply_instance_norm(self, input: Tensor) -> Tensor:
        uses_input = self.training or not self.track_running_stats
        momentum = 0.0 if self.momentum is None else self.momentum
        running = self.running_mean, self.running_var
        return instance_norm(input, *running, self.weight, self.bias, uses_input, momentum, self.eps)


class VendorFreeInstanceNorm1d(_VendorFreeInstanceNorm, nn.InstanceNorm1d):
    """`torch.nn.InstanceNorm1d` without a vendor library, for `(N, C, L)` and `(C, L)`."""


class VendorFreeInstanceNorm2d(_VendorFreeInstanceNorm, nn.InstanceNorm2d):
    """`torch.nn.InstanceNorm2d` without a vendor library, for `(N, C, H, W)` and `(C, H, W)`."""


class VendorFreeInstanceNorm3d(_VendorFreeInstanceNorm, nn.InstanceNorm3d):
    """`torch.nn.InstanceNorm3d` without a vendor library, for `(N, C, D, H, W)` and `(C, D, H, W)`."""


class BatchNormSiLU2d(VendorFreeBatchNorm2d):
    """`torch.nn.BatchNorm2d` followed by `torch.nn.SiLU`, computed by GPU kernels (batch_norm.cu) if enabled.

    The kernels save the input only, like `RecomputedBatchNormSiLU2d`. Without them, ATen computes the two layers, and
    autograd saves the input of each. Constructor, state_dict and statistics are those of `torch.nn.BatchNorm2d`.
    """

    def forward(self, input: Any) -> Any:
        """Normalize `(N, C, H, W)` over N, H and W and apply SiLU, in the shape and dtype of the input."""
        if isinstance(input, Tensor) and self._uses_kernels(input):
            return self._fused(input)
        return super().forward(input)

    def _uses_kernels(self, input: Tensor) -> bool:
        """Return whether the kernels compute this call: in training, with parameters and a fixed momentum."""
        if not self.training or torch.compiler.is_compiling() or is_traced():
            return False
        if input.dim() != 4 or input.size(1) != self.num_features:
            return False
        statistics = []
        if self.track_running_stats:
            statistics = [self.running_mean, self.running_var]
        return (
            self.momentum is not None
            and input.numel() > self.num_features
            and fused_norm.accepts(input, self.weight, self.bias, *statistics)
        )

    def _fused(self, input: Tensor) -> Tensor:
        state: tuple[Tensor | None, ...] = (None, None, None)
        if self.track_running_stats:
            state = (self.running_mean, self.running_var, self.num_batches_tracked)
        output: Tensor | None = _FusedBatchNormSiLU.apply(
            input, self.weight, self.bias, *state, self.momentum, self.eps
        )
        if output is None:
            output = super().forward(input)
        assert output is not None
        return output

    def _scale(self, input: Tensor) -> Tensor:
        return F.silu(super()._scale(input))

    def _normalize(self, *arguments: Any) -> Tensor:
        return F.silu(super()._normalize(*arguments))


class RecomputedBatchNormSiLU2d(BatchNormSiLU2d):
    """`BatchNormSiLU2d` that saves less memory for the backward pass also without kernels.

    A convolution, its batch normalization and its SiLU save three activations: the input of each. The input of the SiLU
    is a per-channel affine function of the input of the normalization, so this layer does not save it and recomputes it
    in the backward pass. The SiLU is computed in place in the forward pass; the saved allocation compensates for the
    recomputation. Derivatives of any order are supported; higher ones save what autograd saves.
    """

    def _normalize(self, *arguments: Any) -> Tensor:
        if is_traced() or exports_to_onnx():
            return super()._normalize(*arguments)
        output: Tensor = _BatchNormSiLU.apply(*arguments)
        return output


class _FusedBatchNormSiLU(Function):
    """Saves the input, the parameters, and mean and 1 / deviation per channel. Returns None if the kernels failed."""

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight: Tensor,
        bias: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        num_batches_tracked: Tensor | None,
        momentum: float,
        eps: float,
    ) -> Tensor | None:
        results = fused_norm.forward(input, weight, bias, running_mean, running_var, num_batches_tracked, momentum, eps)
        if results is None:
            return None
        output, statistics = results
        ctx.uses_batch = True
        ctx.eps = eps
        ctx.save_for_backward(input, weight, bias, statistics)
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        input, weight, bias, statistics = ctx.saved_tensors
        results = None
        if not torch.is_grad_enabled():
            results = fused_norm.backward(grad_output, input, weight, bias, statistics)
        if results is None:
            return _gradients(ctx, (input, weight, bias, *statistics), grad_output)
        grad_input, (grad_bias, grad_weight) = results
        return grad_input, grad_weight, grad_bias, None, None, None, None, None


class _BatchNormSiLU(Function):
    """Saves the input, the parameters and two values per channel: mean and 1 / deviation, or mean and variance."""

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        uses_batch: bool,
        momentum: float,
        eps: float,
    ) -> Tensor:
        output, first, second = torch.native_batch_norm(
            input, weight, bias, running_mean, running_var, uses_batch, momentum, eps
        )
        if not uses_batch:
            assert running_mean is not None
            assert running_var is not None
            # Copies, because a training step before the backward pass changes the running statistics in place.
            first = running_mean.clone()
            second = running_var.clone()
        ctx.uses_batch = uses_batch
        ctx.eps = eps
        ctx.save_for_backward(input, weight, bias, first, second)
        return F.silu(output, inplace=True)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        return _gradients(ctx, ctx.saved_tensors, grad_output)


def _gradients(ctx: Any, saved: Sequence[Any], grad_output: Tensor) -> tuple[Tensor | None, ...]:
    """Return the gradients of input, weight and bias, and None for the five other arguments of a function."""
    if torch.is_grad_enabled():  # with create_graph=True, autograd differentiates the native operators
        return *_gradients_with_graph(ctx, saved, grad_output), None, None, None, None, None
    input, weight, bias, first, second = saved
    # Recompute the affine function from the saved statistics, without a second reduction over the batch.
    variance = second
    eps = ctx.eps
    running: tuple[Tensor | None, ...] = (first, second)
    of_batch: tuple[Tensor | None, ...] = (None, None)
    if ctx.uses_batch:
        variance = second.pow(-2)
        eps = 0.0
        running = (None, None)
        of_batch = (first, second)
    normalized, _, _ = torch.native_batch_norm(input, weight, bias, first, variance, False, 0.0, eps)
    grad_normalized = torch.ops.aten.silu_backward.grad_input(grad_output, normalized, grad_input=normalized)
    gradients: tuple[Tensor | None, ...] = torch.ops.aten.native_batch_norm_backward(
        grad_normalized,
        input,
        weight,
        *running,
        *of_batch,
        ctx.uses_batch,
        ctx.eps,
        list(ctx.needs_input_grad[:3]),
    )
    return *gradients, None, None, None, None, None


def _gradients_with_graph(ctx: Any, saved: Sequence[Any], grad_output: Tensor) -> list[Tensor | None]:
    input, weight, bias, first, second = saved
    mean = None if ctx.uses_batch else first
    variance = None if ctx.uses_batch else second
    normalized, _, _ = torch.native_batch_norm(input, weight, bias, mean, variance, ctx.uses_batch, 0.0, ctx.eps)
    wanted = [tensor for tensor, needed in zip((input, weight, bias), ctx.needs_input_grad, strict=False) if needed]
    gradients = iter(torch.autograd.grad(F.silu(normalized), wanted, grad_output, create_graph=True))
    return [next(gradients) if needed else None for needed in ctx.needs_input_grad[:3]]
