"""Global batches of an epoch: their number, and the slice of each rank. Without torch."""

from collections.abc import Iterator
from dataclasses import dataclass


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
        if not full:
            return int(samples > 0)
        return full + (rest >= self.processes)

    def stop(self, first: int, samples: int) -> int:
        """Return the end of the global batch that begins at sample `first` of `samples`."""
        stop = first + self.size
        if samples - stop < self.processes:
            return samples
        return stop

    def slices(self, first: int, samples: int) -> Iterator[slice]:
        """Yield the slices of this rank, from sample `first` of `samples` on."""
        start = first
        while start < samples:
            stop = self.stop(start, samples)
            count = stop - start
            yield slice(start + self.rank * count // self.processes, start + (self.rank + 1) * count // self.processes)
            start = stop


def limited(batches: int, limit: float | int | None) -> int:
    """Return the batches per epoch under `trainer.limit_train_batches`: an int is a count, a float a fraction."""
    if limit is None:
        return batches
    if isinstance(limit, int):
        return min(batches, limit)
    return int(batches * limit)
