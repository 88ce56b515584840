"""How a row of samples is dealt to the processes of a distributed training: each sample to exactly one of them."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch.utils.data import Sampler


@dataclass(frozen=True, slots=True)
class GlobalBatches:
    """Cuts a row of samples into global batches, and each of these into one slice per process.

    A global batch is what one process would take that had `batch_size * processes` samples at once, so the row is dealt
    in the same portions whatever the number of processes. All processes have equally many batches, and none of these is
    empty: processes wait for each other in every step. So a rest of fewer samples than processes is dealt with the
    global batch before it; in any other rest some processes have one sample fewer than others. Nothing is left out and
    nothing repeated.

    Attributes:
        batch_size: Samples per batch and process.
        rank: Number of this process, from 0.
        processes: How many there are.
    """

    batch_size: int
    rank: int = 0
    processes: int = 1

    @property
    def size(self) -> int:
        """Samples of a global batch."""
        return self.batch_size * self.processes

    def count(self, samples: int) -> int:
        """Batches that `samples` make, the same for each process."""
        full, rest = divmod(samples, self.size)
        return full + (rest >= self.processes) if full else int(samples > 0)

    def stop(self, first: int, samples: int) -> int:
        """Where the global batch ends that begins at place `first` of a row of `samples`."""
        stop = first + self.size
        return stop if samples - stop >= self.processes else samples

    def own(self, first: int, stop: int) -> slice:
        """This process' slice of the global batch from `first` up to `stop`."""
        samples = stop - first
        begin, end = (rank * samples // self.processes for rank in (self.rank, self.rank + 1))
        return slice(first + begin, first + end)

    def slices(self, first: int, samples: int) -> Iterator[slice]:
        """This process' slices of the row from place `first` on."""
        while first < samples:
            stop = self.stop(first, samples)
            yield self.own(first, stop)
            first = stop


class FileOrderBatches(Sampler[list[int]]):
    """Batches of places 0 to `samples` - 1 in their order: this process' share, without repeats.

    Args:
        samples: How many there are.
        deal: How they are dealt.

    Raises:
        ValueError: If some process would have none, and the others would wait for it.
    """

    def __init__(self, samples: int, deal: GlobalBatches) -> None:
        if 0 < samples < deal.processes:
            raise ValueError(f"the split has {samples} frames for {deal.processes} processes: use at most {samples}")
        self.samples = samples
        self.deal = deal

    def __len__(self) -> int:
        return self.deal.count(self.samples)

    def __iter__(self) -> Iterator[list[int]]:
        for places in self.deal.slices(0, self.samples):
            yield list(range(places.start, places.stop))
