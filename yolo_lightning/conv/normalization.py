"""`torch.nn.BatchNorm2d` that never dispatches to cuDNN or MIOpen."""

from typing import Any

import torch
from torch import Tensor, nn


class VendorFreeBatchNorm2d(nn.BatchNorm2d):
    """`torch.nn.BatchNorm2d` computed by ATen kernels, forward and backward.

    `torch.batch_norm` may dispatch to a vendor library in both directions. `torch.native_batch_norm` and its derivative
    are ATen operators without this dispatch, so that no global switch is needed. Semantics, constructor and state_dict
    are those of `torch.nn.BatchNorm2d`. Half precision inputs are supported with float32 weights.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Normalise `(N, C, H, W)` over N, H and W; the result has the shape and dtype of the input.

        Raises:
            ValueError: If the input is not 4-D, its channel count differs from `num_features`, or it has one value per
                channel in training.
        """
        self._check_input_dim(input)
        # torch.native_batch_norm does not check the channel count.
        if input.size(1) != self.num_features:
            raise ValueError(f"input must have {self.num_features} channels, got {input.size(1)}")
        momentum = self._advance_momentum()
        uses_batch = self.training or self.running_mean is None
        if uses_batch and input.numel() == input.size(1):
            raise ValueError(
                f"expected more than 1 value per channel when training, got input size {tuple(input.shape)}"
            )
        if input.numel() == 0:
            # The operator rejects empty inputs; torch.nn.BatchNorm2d keeps the statistics and returns zero gradients.
            return self._scale(input)
        keeps_running = not self.training or self.track_running_stats
        running = (self.running_mean, self.running_var) if keeps_running else (None, None)
        return self._normalise(input, self.weight, self.bias, *running, uses_batch, momentum, self.eps)

    def _normalise(self, *arguments: Any) -> Tensor:
        """Return the output of `torch.native_batch_norm` for its arguments."""
        return torch.native_batch_norm(*arguments)[0]

    def _scale(self, input: Tensor) -> Tensor:
        """Return `input * weight + bias` in the dtype of the input, without normalisation."""
        output = input.clone() if self.weight is None else input * self.weight.view(1, -1, 1, 1)
        output = output if self.bias is None else output + self.bias.view(1, -1, 1, 1)
        return output.to(input.dtype)

    def _advance_momentum(self) -> float:
        """Count the batch and return the momentum of the running statistics."""
        if not (self.training and self.track_running_stats and self.num_batches_tracked is not None):
            return 0.0 if self.momentum is None else self.momentum
        self.num_batches_tracked.add_(1)
        return 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
