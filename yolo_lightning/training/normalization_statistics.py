"""Running statistics of batch normalization, computed anew for fixed weights.

During training the running mean and variance are exponential averages over the last batches, in which the weights were
still changing; with `EMA`, they are averaged once more. Source of the method: "Rethinking 'Batch' in BatchNorm" (Wu and
Johnson 2021, arXiv 2105.07576, section 3, PreciseBN).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from yolo_lightning.training.freezing import in_parts
from yolo_lightning.utils.activity import Activity, during
from yolo_lightning.utils.distributed import broadcast_of_first_rank, sum_over_ranks


class StatisticsError(RuntimeError):
    """The statistics of batch normalization cannot be computed from the batches."""


COUNTER = "num_batches_tracked"
STATISTICS = ("running_mean", "running_var")


def has_single_values(images: Tensor, stride: int) -> bool:
    """Return whether the deepest layers have one value per channel, without a variance, for inputs `(B, C, H, W)`."""
    return len(images) == 1 and max(images.shape[-2:]) <= stride


@contextmanager
def running_statistics(network: nn.Module) -> Iterator[None]:
    """Normalize by the running statistics in training, too, and keep them.

    Layers that are synchronized over ranks are not changed, because they have a value of each rank.
    """
    layers = [
        layer
        for layer in network.modules()
        if isinstance(layer, _BatchNorm) and layer.training and not isinstance(layer, nn.SyncBatchNorm)
    ]
    for layer in layers:
        layer.eval()
    try:
        yield
    finally:
        for layer in layers:
            layer.train()


def statistics_of(network: nn.Module, frozen: tuple[str, ...] = ()) -> dict[str, Tensor]:
    """Return the running means and variances `(C,)` of a network by name, without those of frozen parts."""
    buffers = dict(network.named_buffers())
    return {name: buffers[name] for name in buffers if name.endswith(STATISTICS) and not in_parts(name, frozen)}


def _exchange(statistics: Mapping[str, Tensor], exchanged: Callable[[Tensor], Tensor]) -> None:
    """Replace the statistics by what the ranks exchange, in one message; a collective call."""
    values = exchanged(torch.cat([*statistics.values()]))
    sizes = [len(statistic) for statistic in statistics.values()]
    for statistic, value in zip(statistics.values(), torch.split(values, sizes), strict=True):
        statistic.copy_(value)


@torch.no_grad()
def share_statistics(network: nn.Module) -> None:
    """Replace the running statistics of all ranks by those of the first rank; a collective call.

    The statistics of the first rank are those of a checkpoint. Therefore a resumed fit validates the same network.
    """
    statistics = statistics_of(network)
    if statistics:
        _exchange(statistics, broadcast_of_first_rank)


def _mean_over_ranks(statistics: Mapping[str, Tensor], *, has_batches: bool) -> bool:
    """Replace the statistics by their means over the ranks with batches; a collective call.

    Returns:
        Whether a rank has batches.
    """
    tensors = [*statistics.values()]
    ranks = tensors[0].new_tensor([has_batches])
    if not has_batches:
        torch._foreach_zero_(tensors)
    _exchange({**statistics, "ranks": ranks}, sum_over_ranks)
    with during(Activity.DEVICE_WAIT):
        is_known = bool(ranks > 0)
    if is_known:
        torch._foreach_div_(tensors, ranks.squeeze())
    return is_known


@torch.no_grad()
def recompute_statistics(
    network: nn.Module, batches: Iterable[Tensor], frozen: tuple[str, ...] = (), ranks: int = 1
) -> int:
    """Replace the running statistics of batch normalization layers by their means over the batches.

    All batches have the same weight, as with `momentum=None` of `torch.nn.BatchNorm2d`. Weights, counters
    (`num_batches_tracked`) and momentums are not changed. The network is in evaluation mode afterwards. After an error,
    the statistics are those before the call.

    Args:
        network: The network.
        batches: Inputs of the network, `(B, C, H, W)` floating point, at least one batch.
        frozen: Names of parts whose statistics are kept, see `freeze_parts`.
        ranks: Number of ranks that call the function, each with its own batches; all get the mean of the ranks that
            have a batch, at least one.

    Returns:
        Number of batches of this rank; 0 without a layer that has running statistics.

    Raises:
        StatisticsError: If there is no batch, or a statistic is not finite.
    """
    layers = [
        layer
        for name, layer in network.named_modules()
        if isinstance(layer, _BatchNorm) and layer.running_mean is not None and not in_parts(name, frozen)
    ]
    network.eval()
    if not layers:
        return 0
    with _restored(network, layers):
        for layer in layers:
            layer.reset_running_stats()
            layer.train()
        count = 0
        for count, batch in enumerate(batches, start=1):
            for layer in layers:
                # The cumulative average, also for layers whose kernels need a number as momentum.
                layer.momentum = 1 / count
            network(batch)
        statistics = statistics_of(network, frozen)
        has_batches = count > 0
        if ranks > 1:  # also in a rank without a batch, for which the other ranks would wait
            has_batches = _mean_over_ranks(statistics, has_batches=has_batches)
        if not has_batches:
            raise StatisticsError("there is no batch of images")
        with during(Activity.DEVICE_WAIT):
            is_finite = bool(torch.cat([*statistics.values()]).isfinite().all())  # one wait for all layers
        if not is_finite:
            name = next(name for name, statistic in statistics.items() if not statistic.isfinite().all())
            raise StatisticsError(f"the statistics of {name.rpartition('.')[0]} are not finite")
    return count


@contextmanager
def _restored(network: nn.Module, layers: Sequence[_BatchNorm]) -> Iterator[None]:
    """Restore evaluation mode, momentums and counters after the block, and after an error the statistics, too."""
    earlier_buffers = [{name: buffer.clone() for name, buffer in layer.named_buffers()} for layer in layers]
    earlier_momentums = [layer.momentum for layer in layers]
    is_complete = False
    try:
        yield
        is_complete = True
    finally:
        network.eval()
        for layer, buffers, momentum in zip(layers, earlier_buffers, earlier_momentums, strict=True):
            layer.momentum = momentum
            for name, buffer in layer.named_buffers():
                if name == COUNTER or not is_complete:
                    buffer.copy_(buffers[name])
