"""`torch.nn.BatchNorm2d` that never goes to cuDNN or MIOpen."""

import torch
from torch import Tensor, nn


class VendorFreeBatchNorm2d(nn.BatchNorm2d):
    """`torch.nn.BatchNorm2d` computed by ATen's own kernels, forward and backward.

    `torch.batch_norm` may hand over to a vendor library, and its backward pass follows. `torch.native_batch_norm` is
    the operator behind that choice, and its derivative is ATen's own too, so no global switch has to be turned.
    Semantics, constructor and state_dict are those of `torch.nn.BatchNorm2d`; half inputs may meet float32 weights.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Normalise `(N, C, H, W)` over N, H and W; the result has the input's shape and dtype.

        Raises:
            ValueError: If the input is not 4-D, has another channel count, or has one value per channel in training.
        """
        self._check_input_dim(input)
        # The operator below trusts its caller with this check.
        if input.size(1) != self.num_features:
            raise ValueError(f"input has {input.size(1)} channels; this layer normalises {self.num_features}")
        momentum = self._advance_momentum()
        uses_batch = self.training or self.running_mean is None
        if uses_batch and input.numel() == input.size(1):
            raise ValueError(
                f"expected more than 1 value per channel when training, got input size {tuple(input.shape)}"
            )
        if input.numel() == 0:
            # The operator refuses it; torch leaves the statistics as they are and the gradients at zero.
            return self._scale(input)
        keeps_running = not self.training or self.track_running_stats
        return self._normalise(
            input,
            self.running_mean if keeps_running else None,
            self.running_var if keeps_running else None,
            uses_batch,
            momentum,
        )

    def _normalise(
        self,
        input: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        uses_batch: bool,
        momentum: float,
    ) -> Tensor:
        """Normalise by the batch's statistics, which then enter the running ones, or else by the running ones."""
        output, _, _ = torch.native_batch_norm(
            input, self.weight, self.bias, running_mean, running_var, uses_batch, momentum, self.eps
        )
        return output

    def _scale(self, input: Tensor) -> Tensor:
        """`input * weight + bias` in the input's dtype, without normalisation."""
        output = input.clone() if self.weight is None else input * self.weight.view(1, -1, 1, 1)
        output = output if self.bias is None else output + self.bias.view(1, -1, 1, 1)
        return output.to(input.dtype)

    def _advance_momentum(self) -> float:
        """Count the batch and return the weight of its statistics in the running ones."""
        if not (self.training and self.track_running_stats and self.num_batches_tracked is not None):
            return 0.0 if self.momentum is None else self.momentum
        self.num_batches_tracked.add_(1)
        return 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
