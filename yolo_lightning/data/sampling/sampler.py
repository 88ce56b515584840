"""Training order that survives interruptions: a batch sampler and a loader whose whole state is two integers."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from torch.utils.data import DataLoader, Sampler

from yolo_lightning.data.batch import Batch, Sample
from yolo_lightning.data.dataset import SampleKey
from yolo_lightning.data.sampling.global_batches import GlobalBatches
from yolo_lightning.data.sampling.sampling_rules import Integers, occurrences


class EpochOrder(Protocol):
    """Which samples an epoch holds, in which order: a function of the epoch and of `settings` alone."""

    @property
    def length(self) -> int:
        """Samples in every epoch."""
        ...

    @property
    def settings(self) -> Mapping[str, Any]:
        """All that the order depends on besides the data; plain Python, compared when a run resumes."""
        ...

    def indices(self, epoch: int) -> Integers:
        """`(length,)` indices of the samples of `epoch`; one may occur several times."""
        ...


class EpochBatchSampler(Sampler[list[SampleKey]]):
    """Yields batches of keys, from sample `start` of the epoch's order on.

    `start` is kept, not consumed: a DataLoader with workers asks for the iterator twice. Among several processes, each
    has a sampler of its own, which yields its share of every global batch; `start` counts samples of all.

    Args:
        order: The order of each epoch.
        batch_size: Samples per batch and process; the last batch of an epoch may be smaller.
        rank: Number of this process, from 0.
        processes: How many there are.
    """

    def __init__(self, order: EpochOrder, batch_size: int, rank: int = 0, processes: int = 1) -> None:
        self.order = order
        self.batch_size = batch_size
        self.deal = GlobalBatches(batch_size, rank, processes)
        self.epoch = 0
        self.start = 0

    def __len__(self) -> int:
        return self.deal.count(self.order.length)

    def __iter__(self) -> Iterator[list[SampleKey]]:
        epoch, indices = self.epoch, self.order.indices(self.epoch)
        repeats = occurrences(indices)
        for batch in self.deal.slices(self.start, len(indices)):
            members = zip(indices[batch].tolist(), repeats[batch].tolist(), strict=True)
            yield [SampleKey(epoch, frame, occurrence) for frame, occurrence in members]


class ResumableLoader(DataLoader[Sample]):
    """A DataLoader that continues at the sample after the last one it delivered.

    Lightning saves and restores loaders that have `state_dict` and `load_state_dict`. The state is the epoch and the
    number of samples delivered in it to all processes, whatever the number of processes, of workers or their start
    method. The loader keeps count of
    epochs itself, from the one its sampler stands at: Lightning calls `set_epoch` only after workers began to prefetch.

    Args:
        dataset: Map-style dataset over `SampleKey`.
        batch_sampler: The order; owned by this loader.
        collate_fn: Samples to batch.
        epoch_batches: Batches after which an epoch is over, if fewer than the loader has (Trainer's limit).
        repositioned: Told, when an epoch is resumed, how many batches of it count as done: the rest of its samples is
            dealt in batches of today's size, and together they are as many as in any epoch.
        kwargs: Further arguments of `DataLoader`.
    """

    def __init__(
        self,
        dataset: Any,
        batch_sampler: EpochBatchSampler,
        collate_fn: Callable[[list[Sample]], Batch],
        epoch_batches: int | None = None,
        repositioned: Callable[[int], None] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(dataset, batch_sampler=batch_sampler, collate_fn=collate_fn, **kwargs)
        self.keys = batch_sampler
        self.epoch_batches = len(batch_sampler) if epoch_batches is None else min(len(batch_sampler), epoch_batches)
        self.repositioned = repositioned
        self._delivered = 0
        self._positioned = True

    @property
    def epoch_samples(self) -> int:
        """Samples in every epoch, within the limit."""
        whole = self.epoch_batches == len(self.keys)
        return self.keys.order.length if whole else self.epoch_batches * self.keys.deal.size

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        if not self._positioned:
            self.keys.epoch += 1
            self.keys.start = self._delivered = 0
        self._positioned = False
        for batch in super().__iter__():
            self._delivered = self.keys.deal.stop(self._delivered, self.keys.order.length)
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Position in the order, and what it refers to; plain Python."""
        return {
            "epoch": self.keys.epoch,
            "delivered_samples": self._delivered,
            "epoch_samples": self.epoch_samples,
            "settings": self._settings(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after the sample that `state` was saved at; a finished epoch rolls over to the next.

        Inside an epoch nothing may change that decides the order of its samples. The batch size may: no sample is
        dealt twice, none is left out.

        Raises:
            ValueError: If the state stands inside an epoch of another order, or beyond the end of today's epochs.
        """
        epoch, delivered = int(state["epoch"]), int(state["delivered_samples"])
        if delivered >= int(state["epoch_samples"]):
            epoch, delivered = epoch + 1, 0
        saved, now = state["settings"], self._settings()
        for name in sorted((saved.keys() | now.keys()) - {"batch_size"}) if delivered else ():
            if saved.get(name) != now.get(name):
                raise ValueError(
                    f"the checkpoint stands inside epoch {epoch} with {name} {saved.get(name)}, now {now.get(name)}: "
                    f"keep {name} {saved.get(name)}, or resume from a checkpoint of an epoch's end"
                )
        left = self.epoch_samples - delivered
        if left <= 0:
            raise ValueError(
                f"the checkpoint stands after {delivered} samples of epoch {epoch}, an epoch now ends after "
                f"{self.epoch_samples}: raise trainer.limit_train_batches or data.batch_size"
            )
        rest, processes = self.keys.order.length - delivered, self.keys.deal.processes
        if rest < processes:
            raise ValueError(
                f"the checkpoint stands {rest} samples before the end of epoch {epoch}, too few for {processes} "
                f"processes: resume with at most {rest}, or from another checkpoint"
            )
        self.keys.epoch, self.keys.start, self._delivered = epoch, delivered, delivered
        self._positioned = True
        if delivered and self.repositioned is not None:
            deal, whole = self.keys.deal, self.epoch_samples == self.keys.order.length
            self.repositioned(self.epoch_batches - (deal.count(left) if whole else -(-left // deal.size)))

    def _settings(self) -> dict[str, Any]:
        return {"batch_size": self.keys.batch_size, **self.keys.order.settings}


def limited(batches: int, limit: float | int | None) -> int:
    """Batches per epoch under Trainer's limit: an integer counts batches, a float is a share."""
    if limit is None:
        return batches
    return min(batches, limit) if isinstance(limit, int) else int(batches * limit)
