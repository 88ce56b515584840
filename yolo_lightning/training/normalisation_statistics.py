"""Recalibration of batch normalization: its running statistics computed anew for fixed weights.

During training the running mean and variance are exponential averages over the last batches, in which the weights were
still changing; with `EMA`, they are averaged once more. Source of the method: "Rethinking 'Batch' in BatchNorm" (Wu and
Johnson 2021, arXiv 2105.07576, section 3, PreciseBN).
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


@torch.no_grad()
def recompute_statistics(network: nn.Module, batches: Iterable[Tensor]) -> int:
    """Replace the running statistics of all batch normalization layers by their means over the batches.

    All batches have the same weight, as with `momentum=None` of `torch.nn.BatchNorm2d`. Weights, counters
    (`num_batches_tracked`) and momentums are not changed. The network is in evaluation mode afterwards.

    Args:
        network: The network.
        batches: Inputs of the network, `(B, C, H, W)` floating point, at least one batch.

    Returns:
        Number of batches.

    Raises:
        ValueError: If the network has no layer with running statistics, there is no batch, or a statistic is not
            finite.
    """
    layers = {
        name: layer
        for name, layer in network.named_modules()
        if isinstance(layer, _BatchNorm) and layer.running_mean is not None
    }
    if not layers:
        raise ValueError("the network has no batch normalization with running statistics")
    network.eval()
    momentums = [layer.momentum for layer in layers.values()]
    counters = [None if one.num_batches_tracked is None else one.num_batches_tracked.clone() for one in layers.values()]
    count = 0
    try:
        for layer in layers.values():
            layer.reset_running_stats()
            layer.train()
        for count, batch in enumerate(batches, start=1):
            for layer in layers.values():
                # The cumulative average, also for layers whose kernels need a number as momentum.
                layer.momentum = 1 / count
            network(batch)
    finally:
        network.eval()
        for layer, momentum, counter in zip(layers.values(), momentums, counters, strict=True):
            layer.momentum = momentum
            if counter is not None and layer.num_batches_tracked is not None:
                layer.num_batches_tracked.copy_(counter)
    if not count:
        raise ValueError("there is no batch of images")
    for name, layer in layers.items():
        assert layer.running_mean is not None
        assert layer.running_var is not None
        if not (layer.running_mean.isfinite().all() and layer.running_var.isfinite().all()):
            raise ValueError(f"the statistics of {name} are not finite")
    return count
