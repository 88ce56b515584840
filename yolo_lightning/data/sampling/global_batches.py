"""Distribution of samples to the ranks of a distributed run: each sample to exactly one rank."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch.utils.data import Sampler


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
        """Samples of a global batch."""
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
    """Batches of the indices 0 to `samples` - 1 in order: the share of this rank, without repeats."""

    def __init__(self, samples: int, batches: GlobalBatches) -> None:
        if 0 < samples < batches.processes:
            raise ValueError(f"the split has {samples} frames for {batches.processes} processes: use at most {samples}")
        self.samples = samples
        self.batches = batches

    def __len__(self) -> int:
        return self.batches.count(self.samples)

    def __iter__(self) -> Iterator[list[int]]:
        for own in self.batches.slices(0, self.samples):
            yield list(range(own.start, own.stop))
