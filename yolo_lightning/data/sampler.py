"""Training order that survives interruptions: a batch sampler and a loader whose whole state is two integers."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import DataLoader, Sampler

from yolo_lightning.batch import Batch, Sample

Key = tuple[int, int]

ORDER_STREAM = 1
"""Keeps the random numbers of the order apart from those of the samples."""


def epoch_order(count: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """The order of `count` samples in `epoch`: a permutation that depends on (seed, epoch) alone."""
    return np.random.default_rng((ORDER_STREAM, seed, epoch)).permutation(count)


class EpochBatchSampler(Sampler[list[Key]]):
    """Yields batches of (epoch, index), from batch `start` of the epoch's permutation on.

    `start` is kept, not consumed: a DataLoader with workers asks for the iterator twice.

    Args:
        count: Samples in the split.
        batch_size: Samples per batch; the last batch of an epoch may be smaller.
        seed: Seed of the run.
    """

    def __init__(self, count: int, batch_size: int, seed: int) -> None:
        self.count = count
        self.batch_size = batch_size
        self.seed = seed
        self.epoch = 0
        self.start = 0

    def __len__(self) -> int:
        return -(-self.count // self.batch_size)

    def __iter__(self) -> Iterator[list[Key]]:
        order = epoch_order(self.count, self.seed, self.epoch).tolist()
        for first in range(self.start * self.batch_size, self.count, self.batch_size):
            yield [(self.epoch, index) for index in order[first : first + self.batch_size]]


class ResumableLoader(DataLoader[Sample]):
    """A DataLoader that continues at the batch after the last one it delivered.

    Lightning saves and restores loaders that have `state_dict` and `load_state_dict`. The state is the epoch and the
    number of batches delivered in it, whatever the number of workers or their start method. The loader keeps count of
    epochs itself, from the one its order stands at: Lightning calls `set_epoch` only after workers began to prefetch.

    Args:
        dataset: Map-style dataset over (epoch, index).
        batch_sampler: The order; owned by this loader.
        collate_fn: Samples to batch.
        epoch_batches: Batches after which an epoch is over, if fewer than the loader has (Trainer's limit).
        kwargs: Further arguments of `DataLoader`.
    """

    def __init__(
        self,
        dataset: Any,
        batch_sampler: EpochBatchSampler,
        collate_fn: Callable[[list[Sample]], Batch],
        epoch_batches: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(dataset, batch_sampler=batch_sampler, collate_fn=collate_fn, **kwargs)
        self.order = batch_sampler
        self.epoch_batches = len(batch_sampler) if epoch_batches is None else min(len(batch_sampler), epoch_batches)
        self._delivered = 0
        self._positioned = True

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        if not self._positioned:
            self.order.epoch += 1
            self.order.start = self._delivered = 0
        self._positioned = False
        for batch in super().__iter__():
            self._delivered += 1
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Position in the order, and what it refers to; plain Python."""
        return {
            "epoch": self.order.epoch,
            "delivered_batches": self._delivered,
            "epoch_batches": self.epoch_batches,
            "batch_size": self.order.batch_size,
            "seed": self.order.seed,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after the batch that `state` was saved at; a finished epoch rolls over to the next.

        Raises:
            ValueError: If the state stands inside an epoch of another order.
        """
        epoch, delivered = int(state["epoch"]), int(state["delivered_batches"])
        if delivered >= int(state["epoch_batches"]):
            epoch, delivered = epoch + 1, 0
        for name, now in (("batch_size", self.order.batch_size), ("seed", self.order.seed)):
            if delivered and state[name] != now:
                raise ValueError(
                    f"the checkpoint stands inside epoch {epoch} with {name} {state[name]}, now {now}: keep {name} "
                    f"{state[name]}, or resume from a checkpoint of an epoch's end"
                )
        self.order.epoch, self.order.start, self._delivered = epoch, delivered, delivered
        self._positioned = True
