"""Batch samplers, which give each sample to exactly one rank, and the resumable loader of the training split."""

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from torch.utils.data import DataLoader, Sampler

from yolo_lightning.data.sampling.epoch_order import occurrences
from yolo_lightning.data.sampling.mosaic_partners import MIXUP_RULER, mosaic_partners
from yolo_lightning.errors import UserError
from yolo_lightning.utils.activity import loading


class SampleKey(NamedTuple):
    """Key of a training sample; with the seed, determines the sample.

    The order of an epoch determines `partners`, so that a sample depends on the seed, the sampling rules, `epoch`,
    `frame` and `occurrence` only.
    """

    epoch: int  # From 0
    frame: int  # Index of the frame in the split
    occurrence: int = 0  # Number of earlier occurrences of the frame in the epoch, > 0 if sampling repeats the frame
    # Indices of the other three frames of a mosaic, see `mosaic_partners`; None draws them from the whole split
    partners: tuple[int, ...] | None = None
    # Index of the second sample's frame in mixup and of its partners; None draws them from the whole split
    second: tuple[int, ...] | None = None
    mosaic_epochs: int | None = None  # Number of epochs with mosaic; None: that of the dataset


class EpochOrder(Protocol):
    """Order of the samples of each epoch."""

    length: int
    """Samples per epoch."""

    settings: dict[str, Any]
    """Everything on which the order depends; plain Python, compared when a run resumes."""

    def indices(self, epoch: int) -> npt.NDArray[np.int64]:
        """Return the `(length,)` indices of the samples of an epoch; an index may occur several times."""
        ...


ASSUMED: dict[str, Any] = {
    "sampling.every_frame_of": [],
    "sampling.balance": "none",
    "sampling.repeat_threshold": 0.0,
    "sampling.repeat_scope": "split",
}
"""Values of settings that this or an earlier version lacks; until version 0.3."""


@dataclass(frozen=True, slots=True)
class GlobalBatches:
    """Divides a sequence of samples into global batches, and each global batch into one slice per rank.

    A global batch has `batch_size * processes` samples, so the world size does not change which samples share a batch.
    All ranks have equally many batches and no batch is empty, because ranks wait for each other in every step. A last
    global batch with fewer samples than ranks is merged into the previous one; in any other incomplete batch some ranks
    have one sample fewer. No sample is dropped or repeated.
    """

    batch_size: int  # Samples per batch and rank
    rank: int = 0  # Rank of this process, from 0
    processes: int = 1  # World size

    @property
    def size(self) -> int:
        return self.batch_size * self.processes

    def count(self, samples: int) -> int:
        """Return the number of batches of `samples` samples, equal for all ranks."""
        full, rest = divmod(samples, self.size)
        return full + (rest >= self.processes) if full else int(samples > 0)

    def stop(self, first: int, samples: int) -> int:
        """Return the end of the global batch that begins at sample `first` of `samples`."""
        stop = first + self.size
        return stop if samples - stop >= self.processes else samples

    def slices(self, first: int, samples: int) -> Iterator[slice]:
        """Yield the slices of this rank, from sample `first` of `samples` on."""
        while first < samples:
            stop = self.stop(first, samples)
            begin, end = (rank * (stop - first) // self.processes for rank in (self.rank, self.rank + 1))
            yield slice(first + begin, first + end)
            first = stop


class FileOrderBatches(Sampler[list[int]]):
    """Batches of the indices 0 to `samples` - 1 in order: the share of this rank, without repeats.

    Every rank needs a sample, because the other ranks would wait for it.
    """

    def __init__(self, samples: int, batches: GlobalBatches) -> None:
        if 0 < samples < batches.processes:
            raise UserError(f"the split has {samples} frames for {batches.processes} processes: use at most {samples}")
        self.samples = samples
        self.batches = batches

    def __len__(self) -> int:
        return self.batches.count(self.samples)

    def __iter__(self) -> Iterator[list[int]]:
        for own in self.batches.slices(0, self.samples):
            yield list(range(own.start, own.stop))


class EpochBatchSampler(Sampler[list[SampleKey]]):
    """Yields batches of keys from sample `start` of epoch `epoch` on.

    Iteration does not change `start`, because a DataLoader with workers creates the iterator twice. Each rank has its
    own sampler, which yields the rank's slice of every global batch; `start` counts the samples of all ranks. With
    `has_mixup`, keys contain the frames of the second samples.
    """

    def __init__(
        self, order: EpochOrder, batch_size: int, rank: int = 0, processes: int = 1, *, has_mixup: bool = False
    ) -> None:
        self.order = order
        self.batch_size = batch_size
        self.batches = GlobalBatches(batch_size, rank, processes)
        self.has_mixup = has_mixup
        self.epoch = 0
        self.start = 0
        self.mosaic_epochs: int | None = None

    def __len__(self) -> int:
        return self.batches.count(self.order.length)

    def __iter__(self) -> Iterator[list[SampleKey]]:
        epoch, indices = self.epoch, self.order.indices(self.epoch)
        repeats = occurrences(indices)
        for own in self.batches.slices(self.start, len(indices)):
            partners = map(tuple, mosaic_partners(indices, own).tolist())
            members = zip(indices[own].tolist(), repeats[own].tolist(), partners, strict=True)
            keys = [SampleKey(epoch, *member) for member in members]
            if self.has_mixup:
                seconds = map(tuple, mosaic_partners(indices, own, MIXUP_RULER).tolist())
                keys = [key._replace(second=second) for key, second in zip(keys, seconds, strict=True)]
            yield (
                keys if self.mosaic_epochs is None else [key._replace(mosaic_epochs=self.mosaic_epochs) for key in keys]
            )


class ResumableLoader(DataLoader[Any]):
    """A DataLoader that resumes at the sample after the last delivered one.

    Lightning saves and restores loaders with `state_dict` and `load_state_dict`. The state is the epoch and the number
    of samples delivered to all ranks in that epoch; it is independent of the world size, of the number of workers and
    of their start method. The loader counts epochs itself, from `batch_sampler.epoch` on, because Lightning calls
    `set_epoch` after workers have begun to prefetch.

    Args:
        batch_sampler: Order of the samples; the loader changes its position.
        epoch_batches: Number of batches after which the Trainer ends an epoch, if the loader has more.
        repositioned: Called with the number of batches of the epoch that count as done when training resumes within an
            epoch. With a changed batch size, this is the number after which the remaining batches complete the epoch.
        first_epoch: Called at the first iteration unless a state was loaded; returns the number of trained epochs. For
            a loader that is made before its Trainer restores a checkpoint saved at the end of an epoch.
        mosaic_epochs: Returns the number of epochs with mosaic, which a deadline changes. The loader calls the function
            at the start of each epoch and stores the number for the rest of the epoch.
        prefix: Section of the configuration with the settings of the order, for messages.
        kwargs: Further arguments of `DataLoader`.
    """

    def __init__(
        self,
        dataset: Any,
        batch_sampler: EpochBatchSampler,
        collate_fn: Callable[[list[Any]], Any],
        epoch_batches: int | None = None,
        repositioned: Callable[[int], None] | None = None,
        first_epoch: Callable[[], int] | None = None,
        mosaic_epochs: Callable[[], int] | None = None,
        prefix: str = "data.",
        **kwargs: Any,
    ) -> None:
        super().__init__(dataset, batch_sampler=batch_sampler, collate_fn=collate_fn, **kwargs)
        self.keys = batch_sampler
        self.epoch_batches = len(batch_sampler) if epoch_batches is None else min(len(batch_sampler), epoch_batches)
        self.repositioned = repositioned
        self.first_epoch = first_epoch
        self.mosaic_epochs = mosaic_epochs
        self.prefix = prefix
        self._delivered = 0
        self._positioned = True

    @property
    def epoch_samples(self) -> int:
        """Samples of each epoch, within the limit."""
        whole = self.epoch_batches == len(self.keys)
        return self.keys.order.length if whole else self.epoch_batches * self.keys.batches.size

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        if not self._positioned:
            self.keys.epoch += 1
            self.keys.start = self._delivered = 0
        elif self.first_epoch is not None:
            self.keys.epoch = self.first_epoch()
        self._positioned, self.first_epoch = False, None
        if self.mosaic_epochs is not None and (not self.keys.start or self.keys.mosaic_epochs is None):
            self.keys.mosaic_epochs = self.mosaic_epochs()
        for batch in loading(super().__iter__()):
            self._delivered = self.keys.batches.stop(self._delivered, self.keys.order.length)
            yield batch

    def before_start(self, count: int) -> list[Any]:
        """Return the last `count` batches, or fewer, before the position at which the epoch was resumed, oldest first.

        The batches are equal to those that the interrupted process trained; this process computes them again.
        """
        keys = copy(self.keys)
        keys.start = max(0, self.keys.start - count * self.keys.batches.size)
        batches = islice(keys, -(-(self.keys.start - keys.start) // self.keys.batches.size))
        return [self.collate_fn([self.dataset[key] for key in batch]) for batch in batches]

    def state_dict(self) -> dict[str, Any]:
        """Return the position and the settings on which the order depends; plain Python."""
        return {
            "epoch": self.keys.epoch,
            "delivered_samples": self._delivered,
            "epoch_samples": self.epoch_samples,
            "mosaic_epochs": self.keys.mosaic_epochs,
            "settings": self._settings(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume after the last delivered sample of `state`, or at the next epoch if that epoch was complete.

        Within an epoch, the settings on which the order depends must be unchanged, except the batch size: each
        remaining sample of the epoch is delivered once.

        Raises:
            UserError: If `state` is within an epoch of another order, or beyond the end of the present epochs.
        """
        names = ("epoch", "delivered_samples", "epoch_samples")
        numbers = [state.get(name) for name in names] if isinstance(state, dict) else [None]
        if not all(type(one) is int and one >= 0 for one in numbers) or not isinstance(state.get("settings"), dict):
            raise UserError(f"the state of a loader must be a result of its state_dict(), got {state!r}")
        epoch, delivered = state["epoch"], state["delivered_samples"]
        if delivered >= int(state["epoch_samples"]):
            epoch, delivered = epoch + 1, 0
        saved, now = state["settings"], self._settings()
        for name in sorted((saved.keys() | now.keys()) - {"batch_size"}) if delivered else ():
            before, after = (settings.get(name, ASSUMED.get(name)) for settings in (saved, now))
            if before != after:
                raise UserError(
                    f"{self.prefix}{name} must be {before}, got {after}: the checkpoint was saved "
                    f"within epoch {epoch}; resume with the saved value, or from a checkpoint saved at the end of an "
                    "epoch"
                )
        samples, batches = self.keys.order.length, self.keys.batches
        left = self.epoch_samples - delivered
        if left <= 0:
            raise UserError(
                f"the checkpoint was saved after {delivered} samples of epoch {epoch}, but an epoch has "
                f"{self.epoch_samples} samples: raise trainer.limit_train_batches or {self.prefix}batch_size"
            )
        if samples - delivered < batches.processes:
            raise UserError(
                f"the checkpoint was saved {samples - delivered} samples before the end of epoch {epoch}, too few for "
                f"{batches.processes} processes: use at most {samples - delivered}, or resume from another checkpoint"
            )
        self.keys.epoch, self.keys.start, self._delivered = epoch, delivered, delivered
        self.keys.mosaic_epochs = state.get("mosaic_epochs")
        self._positioned, self.first_epoch = True, None
        if delivered and self.repositioned is not None:
            whole = self.epoch_samples == samples
            self.repositioned(self.epoch_batches - (batches.count(left) if whole else -(-left // batches.size)))

    def _settings(self) -> dict[str, Any]:
        return {"batch_size": self.keys.batch_size, **self.keys.order.settings}


def limited(batches: int, limit: float | int | None) -> int:
    """Return the batches per epoch under `trainer.limit_train_batches`: an int is a count, a float a fraction."""
    if limit is None:
        return batches
    return min(batches, limit) if isinstance(limit, int) else int(batches * limit)
