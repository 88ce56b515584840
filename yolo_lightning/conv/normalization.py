"""Batch normalization that never dispatches to cuDNN or MIOpen, also combined with SiLU."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from yolo_lightning.conv.algorithms.shared import exports_to_onnx
from yolo_lightning.conv.kernels import fused_norm
from yolo_lightning.errors import UserError


class _VendorFreeBatchNorm(_BatchNorm):
    """Batch normalization of `torch.nn` computed by ATen kernels, forward and backward.

    `torch.batch_norm` may dispatch to a vendor library in both directions. `torch.native_batch_norm` and its derivative
    are ATen operators without this dispatch, so that no global switch is needed. Semantics, constructor and state_dict
    are those of the layer in `torch.nn`. Half precision inputs are supported with float32 weights.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Normalize `(N, C, ...)` over all dimensions except C; the result has the shape and dtype of the input."""
        self._check_input_dim(input)  # type: ignore[no-untyped-call]
        # torch.native_batch_norm does not check the channel count.
        if input.size(1) != self.num_features:
            raise UserError(f"input must have {self.num_features} channels, got {input.size(1)}")
        momentum = self._advance_momentum()
        uses_batch = self.training or self.running_mean is None
        if uses_batch and input.numel() == input.size(1):
            raise UserError(
                f"expected more than 1 value per channel when training, got input size {tuple(input.shape)}"
            )
        if input.numel() == 0:
            # The operator rejects empty inputs; torch.nn.BatchNorm2d keeps the statistics and returns zero gradients.
            return self._scale(input)
        keeps_running = not self.training or self.track_running_stats
        running = (self.running_mean, self.running_var) if keeps_running else (None, None)
        return self._normalize(input, self.weight, self.bias, *running, uses_batch, momentum, self.eps)

    def _normalize(self, *arguments: Any) -> Tensor:
        if exports_to_onnx():
            return F.batch_norm(arguments[0], *arguments[3:5], *arguments[1:3], *arguments[5:])
        return torch.native_batch_norm(*arguments)[0]

    def _scale(self, input: Tensor) -> Tensor:
        """Return `input * weight + bias` in the dtype of the input, without normalization."""
        per_channel = (1, -1, *(1,) * (input.dim() - 2))
        output = input.clone() if self.weight is None else input * self.weight.view(per_channel)
        output = output if self.bias is None else output + self.bias.view(per_channel)
        return output.to(input.dtype)

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


class BatchNormSiLU2d(VendorFreeBatchNorm2d):
    """`torch.nn.BatchNorm2d` followed by `torch.nn.SiLU`, computed by GPU kernels (batch_norm.cu) if enabled.

    The kernels save the input only, like `RecomputedBatchNormSiLU2d`. Without them, ATen computes the two layers, and
    autograd saves the input of each. Constructor, state_dict and statistics are those of `torch.nn.BatchNorm2d`.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Normalize `(N, C, H, W)` over N, H and W and apply SiLU, in the shape and dtype of the input."""
        if self._uses_kernels(input):
            return self._fused(input)
        return super().forward(input)

    def _uses_kernels(self, input: Tensor) -> bool:
        """Return whether the kernels compute this call: in training, with parameters and a fixed momentum."""
        if not self.training or torch.compiler.is_compiling() or input.dim() != 4 or input.size(1) != self.num_features:
            return False
        statistics = [self.running_mean, self.running_var] if self.track_running_stats else []
        return (
            self.momentum is not None
            and input.numel() > self.num_features
            and fused_norm.accepts(input, self.weight, self.bias, *statistics)
        )

    def _fused(self, input: Tensor) -> Tensor:
        keeps = self.track_running_stats
        state = (self.running_mean, self.running_var, self.num_batches_tracked) if keeps else (None, None, None)
        output: Tensor | None = _FusedBatchNormSiLU.apply(
            input, self.weight, self.bias, *state, self.momentum, self.eps
        )
        return super().forward(input) if output is None else output

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
        if exports_to_onnx():
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
        ctx.uses_batch, ctx.eps = True, eps
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
            first, second = running_mean.clone(), running_var.clone()
        ctx.uses_batch, ctx.eps = uses_batch, eps
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
    variance, eps = (second.pow(-2), 0.0) if ctx.uses_batch else (second, ctx.eps)
    normalized, _, _ = torch.native_batch_norm(input, weight, bias, first, variance, False, 0.0, eps)
    grad_normalized = torch.ops.aten.silu_backward.grad_input(grad_output, normalized, grad_input=normalized)
    gradients: tuple[Tensor | None, ...] = torch.ops.aten.native_batch_norm_backward(
        grad_normalized,
        input,
        weight,
        None if ctx.uses_batch else first,
        None if ctx.uses_batch else second,
        first if ctx.uses_batch else None,
        second if ctx.uses_batch else None,
        ctx.uses_batch,
        ctx.eps,
        list(ctx.needs_input_grad[:3]),
    )
    return *gradients, None, None, None, None, None


def _gradients_with_graph(ctx: Any, saved: Sequence[Any], grad_output: Tensor) -> list[Tensor | None]:
    input, weight, bias, first, second = saved
    mean, variance = (None, None) if ctx.uses_batch else (first, second)
    normalized, _, _ = torch.native_batch_norm(input, weight, bias, mean, variance, ctx.uses_batch, 0.0, ctx.eps)
    wanted = [tensor for tensor, needed in zip((input, weight, bias), ctx.needs_input_grad, strict=False) if needed]
    found = iter(torch.autograd.grad(F.silu(normalized), wanted, grad_output, create_graph=True))
    return [next(found) if needed else None for needed in ctx.needs_input_grad[:3]]
