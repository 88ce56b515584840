"""Batch samplers, which give each sample to exactly one rank, and the resumable loader of the training split."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from weakref import ReferenceType, WeakMethod, ref

from torch.utils.data import DataLoader, Sampler

from yolo_lightning.data.array_types import Int64Array
from yolo_lightning.data.occurrences import occurrences
from yolo_lightning.data.sampling.global_batches import GlobalBatches, limited
from yolo_lightning.data.sampling.mosaic_partners import MIXUP_RULER, mosaic_partners
from yolo_lightning.errors import UserError
from yolo_lightning.utils.activity import Activity, during, loading

if TYPE_CHECKING:  # Loader workers import this file, and Lightning takes seconds.
    from yolo_lightning.utils.loop_position import LoaderLoop


class SampleKey(NamedTuple):
    """Key of a training sample; with the seed, determines the sample.

    The order of an epoch determines `partners`, so that a sample depends on the seed, the sampling rules, `epoch`,
    `frame` and `occurrence` only.
    """

    epoch: int  # From 0
    frame: int  # Index of the frame in the split
    # Number of earlier occurrences of the frame in the pass, > 0 if sampling repeats the frame, plus
    # `CYCLE_OCCURRENCES` for each earlier pass of the epoch
    occurrence: int = 0
    # Indices of the other three frames of a mosaic, see `mosaic_partners`; None draws them from the whole split
    partners: tuple[int, ...] | None = None
    # Index of the second sample's frame in mixup and of its partners; None draws them from the whole split
    second: tuple[int, ...] | None = None
    has_mosaic: bool = True  # Whether mosaic, mixup and box paste are used; false in the last epochs

    @property
    def seeds(self) -> tuple[int, ...]:
        """Numbers on which the random numbers of the sample depend, besides the seed of the run."""
        if self.occurrence:
            return self.epoch, self.frame, self.occurrence
        return self.epoch, self.frame


CYCLE_OCCURRENCES = 1 << 16
"""Occurrences that are reserved for each pass of an epoch."""


@dataclass(frozen=True, slots=True)
class Position:
    """Position in the training samples."""

    epoch: int = 0
    delivered: int = 0  # Samples of the pass that all ranks together have received
    cycle: int = 0  # Earlier passes of the epoch: Lightning's CombinedLoader repeats a loader that is shorter
    mosaic_epochs: int | None = None  # Number of epochs with mosaic; None: all epochs

    @property
    def has_mosaic(self) -> bool:
        """Whether the samples of the epoch are made with mosaic, mixup and box paste."""
        return self.mosaic_epochs is None or self.epoch < self.mosaic_epochs


class EpochOrder(Protocol):
    """Order of the samples of each epoch."""

    length: int
    """Samples per epoch."""

    settings: dict[str, Any]
    """Everything on which the order depends; plain Python, compared when a run resumes."""

    def indices(self, epoch: int, cycle: int = 0) -> Int64Array:
        """Return the `(length,)` indices of the samples of a pass; an index may occur several times.

        `cycle` is the number of earlier passes of the epoch.
        """
        ...


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
        for batch in self.batches.slices(0, self.samples):
            yield list(range(batch.start, batch.stop))


class EpochBatchSampler(Sampler[list[SampleKey]]):
    """Yields batches of keys from `position` on.

    Iteration does not change `position`. Each rank has its own sampler, which yields the rank's slice of every global
    batch; positions count the samples of all ranks. With `has_mixup`, keys contain the frames of the second samples.
    """

    def __init__(
        self, order: EpochOrder, batch_size: int, rank: int = 0, processes: int = 1, *, has_mixup: bool = False
    ) -> None:
        self.order = order
        self.batch_size = batch_size
        self.batches = GlobalBatches(batch_size, rank, processes)
        self.has_mixup = has_mixup
        self.position = Position()
        self.sampler: EpochReceiver | None = None
        """Lightning calls `set_epoch` of the sampler of a batch sampler."""

    def __len__(self) -> int:
        return self.batches.count(self.order.length)

    def __iter__(self) -> Iterator[list[SampleKey]]:
        return self.from_position(self.position)

    def from_position(self, position: Position) -> Iterator[list[SampleKey]]:
        """Yield the batches of this rank from a position to the end of its pass."""
        indices = self.order.indices(position.epoch, position.cycle)
        repeats = occurrences(indices) + position.cycle * CYCLE_OCCURRENCES
        for batch in self.batches.slices(position.delivered, len(indices)):
            partners = map(tuple, mosaic_partners(indices, batch).tolist())
            members = zip(indices[batch].tolist(), repeats[batch].tolist(), partners, strict=True)
            keys = [SampleKey(position.epoch, *member, has_mosaic=position.has_mosaic) for member in members]
            if self.has_mixup:
                seconds = map(tuple, mosaic_partners(indices, batch, MIXUP_RULER).tolist())
                keys = [key._replace(second=second) for key, second in zip(keys, seconds, strict=True)]
            yield keys


class EpochReceiver:
    """Passes the epoch that Lightning, Fabric or another loop announces by `set_epoch` to a loader."""

    def __init__(self, receive: Callable[[int], None]) -> None:
        self._receive = WeakMethod(receive)  # a strong reference would keep the workers of the loader alive

    def set_epoch(self, epoch: int) -> None:
        receive = self._receive()
        if receive is not None:
            receive(epoch)


@dataclass(slots=True)
class Progress:
    """Progress of a pass."""

    start: Position
    position: Position  # after the newest batch
    before: Position  # before the newest batch; after it if the pass has ended: another loader delivers the next batch


class Iteration(Iterator[Any]):
    """One pass over a `ResumableLoader`, with its own position.

    The pass begins with the request for the first batch, because Lightning creates the iterator of a fit before the
    loops are restored.
    """

    def __init__(self, loader: "ResumableLoader", announcements: int) -> None:
        self.loader = loader
        self.announcements = announcements  # number of announced epochs when the iteration was created
        self.progress: Progress | None = None  # None before the first batch
        self._batches: Iterator[Any] = iter(())
        self._is_finished = False

    def __next__(self) -> Any:
        if self._is_finished:
            raise StopIteration
        if self.progress is None:
            with during(Activity.LOAD):  # the start of the workers
                self.progress, self._batches = self.loader.begin(self)
        try:
            batch = next(self._batches)
        except StopIteration:
            self._is_finished = True
            self.progress.before = self.progress.position
            self.loader.finish(self)
            raise
        keys = self.loader.keys
        position = self.progress.position
        delivered = keys.batches.stop(position.delivered, keys.order.length)
        self.progress.before = position
        self.progress.position = replace(position, delivered=delivered)
        return batch


class ResumableLoader(DataLoader[Any]):
    """A DataLoader that resumes at the sample after the last one that was trained.

    Every iteration has its own position. The state of the loader is the position of the iteration that the Trainer
    consumes, so that further iterations, such as `next(iter(loader))` in a callback, change neither the order nor a
    checkpoint. Without `loop`, it is the position of the newest iteration that still exists.

    Lightning saves and restores loaders with `state_dict` and `load_state_dict`, and announces each epoch by
    `set_epoch` of `batch_sampler.sampler`. In a loop without such announcements, each iteration is the next epoch. A
    state does not depend on the world size, the number of workers and their start method.

    Args:
        batch_sampler: Order of the samples; the loader changes its position.
        epoch_batches: Number of batches after which the Trainer ends an epoch, if the loader has more.
        loop: Training loop of the Trainer that uses the loader.
        mosaic_epochs: Returns the number of epochs with mosaic, which a deadline changes; None uses mosaic in all
            epochs. The loader calls the function at the start of each epoch and keeps the number within the epoch.
        prefix: Section of the configuration with the settings of the order, for messages.
        kwargs: Further arguments of `DataLoader`.
    """

    def __init__(
        self,
        dataset: Any,
        batch_sampler: EpochBatchSampler,
        collate_fn: Callable[[list[Any]], Any],
        epoch_batches: int | None = None,
        loop: "LoaderLoop | None" = None,
        mosaic_epochs: Callable[[], int] | None = None,
        prefix: str = "data.",
        **kwargs: Any,
    ) -> None:
        super().__init__(dataset, batch_sampler=batch_sampler, collate_fn=collate_fn, **kwargs)
        self.keys = batch_sampler
        self.epoch_batches = limited(len(batch_sampler), epoch_batches)
        self.loop = loop
        self.mosaic_epochs = mosaic_epochs
        self.prefix = prefix
        self._next = Position(loop.epochs_trained() if loop is not None else 0)  # start of the next trained pass
        self._is_begun = False  # whether a trained pass has begun at `_next`
        self._is_loaded = False  # whether `_next` comes from a state and still has to be trained
        self._shift = 0  # epoch of the order minus the announced epoch
        self._announcements = 0
        self._announcements_before_load = 0
        self._newest: Progress | None = None  # of the newest trained pass
        self._unfinished: list[ReferenceType[Iteration]] = []  # passes that have begun, oldest first
        self._keeper: ReferenceType[Iteration] | None = None  # the pass that uses the persistent workers
        batch_sampler.sampler = EpochReceiver(self.set_epoch)

    @property
    def epoch_samples(self) -> int:
        """Samples of each epoch, within the limit."""
        if self.epoch_batches == len(self.keys):
            return self.keys.order.length
        return self.epoch_batches * self.keys.batches.size

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        return Iteration(self, self._announcements)

    def set_epoch(self, epoch: int) -> None:
        """Announce the epoch of the next pass, as for a `DistributedSampler`.

        After `load_state_dict`, a loop that counts its epochs from 0 again continues with the epoch of the state.
        """
        if self.loop is not None:
            self.loop.announce_epoch()
        self._announcements += 1
        announced = epoch + self._shift
        if self._is_loaded and announced < self._next.epoch:
            self._shift = self._next.epoch - epoch
        elif not self._is_loaded or announced > self._next.epoch:
            self._next = Position(announced)
            self._is_loaded = False
        self._is_begun = False

    def begin(self, iteration: Iteration) -> tuple[Progress, Iterator[Any]]:
        """Return the start of a pass and its batches; called for the first batch of an iteration."""
        start = self._start_of(iteration)
        if self.mosaic_epochs is not None and (not start.delivered or start.mosaic_epochs is None):
            start = replace(start, mosaic_epochs=self.mosaic_epochs())
        progress = Progress(start, start, start)
        if self._is_trained(iteration):
            if self._is_begun or self._announcements > self._announcements_before_load:
                self._is_loaded = False
            self._next = start
            self._is_begun = True
            self._newest = progress
        keeper = None if self._keeper is None else self._keeper()
        alive = [reference for reference in self._unfinished if reference() is not None]
        self._unfinished = [*alive, ref(iteration)]
        self.keys.position = start
        if self.persistent_workers and keeper is not None:
            return progress, loading(self._get_iterator())  # the persistent workers serve one pass at a time
        self._keeper = ref(iteration)
        return progress, loading(super().__iter__())

    def finish(self, iteration: Iteration) -> None:
        """Let a further pass of an announced epoch be the next cycle; called after the last batch of an iteration."""
        self._unfinished = [reference for reference in self._unfinished if reference() is not iteration]
        if self._keeper is not None and self._keeper() is iteration:
            self._keeper = None
        assert iteration.progress is not None
        start = iteration.progress.start
        if self._announcements and start.epoch == self._next.epoch and self._is_trained(iteration):
            self._next = Position(start.epoch, cycle=start.cycle + 1)

    def _start_of(self, iteration: Iteration) -> Position:
        start = self._next
        if not self._is_trained(iteration):
            return Position(start.epoch)
        if self._is_begun:
            return start if self._announcements else Position(start.epoch + 1)
        # Lightning creates the iterator of a resumed epoch before it announces the epoch. If another loader of the
        # epoch has batches left, a complete pass stays complete. Other loops announce the epoch first.
        if start.delivered >= self.epoch_samples and iteration.announcements == self._announcements:
            self._shift += self._announcements > 0
            return Position(start.epoch + 1)
        return start

    def _is_trained(self, iteration: Iteration) -> bool:
        """Whether the Trainer consumes an iteration; every iteration counts if no fit uses the loader."""
        consumed = self._consumed()
        return not consumed or iteration in consumed

    def _consumed(self) -> list[Iteration]:
        if self.loop is None:
            return []
        iterators = self.loop.iterators()
        return [iterator for iterator in iterators if isinstance(iterator, Iteration) and iterator.loader is self]

    def _progress(self) -> Progress:
        """Return the progress of the pass that the Trainer consumes, or of the newest one that still exists."""
        for iteration in self._consumed():
            if iteration.progress is not None:
                return iteration.progress
            assert self.loop is not None
            start = self._next if self._is_loaded else Position(self.loop.epochs_trained())
            return Progress(start, start, start)
        for reference in reversed(self._unfinished):
            unfinished = reference()
            if unfinished is not None and unfinished.progress is not None:
                return unfinished.progress
        return self._newest or Progress(self._next, self._next, self._next)

    def _position_to_resume(self) -> Position:
        progress = self._progress()
        if self.loop is not None and self.loop.is_within_batch():
            return progress.before
        return progress.position

    def before_start(self, count: int) -> list[Any]:
        """Return the last `count` batches, or fewer, before the position at which the epoch was resumed, oldest first.

        The batches are equal to those that the interrupted process trained; this process computes them again.
        """
        start = self._progress().start
        size = self.keys.batches.size
        earlier = replace(start, delivered=max(0, start.delivered - count * size))
        batches = islice(self.keys.from_position(earlier), -(-(start.delivered - earlier.delivered) // size))
        return [self.collate_fn([self.dataset[key] for key in batch]) for batch in batches]

    def state_dict(self) -> dict[str, Any]:
        """Return the position and the settings on which the order depends; plain Python.

        Within a batch, for example after an exception in it, the position is that before the batch.
        """
        position = self._position_to_resume()
        return {
            "epoch": position.epoch,
            "cycle": position.cycle,
            "delivered_samples": position.delivered,
            "epoch_samples": self.epoch_samples,
            "batch_samples": self.keys.batches.size,
            "mosaic_epochs": position.mosaic_epochs,
            "settings": self._settings(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume after the last delivered sample of `state`, or at the next epoch if that epoch was complete.

        Within an epoch, the settings on which the order depends must be unchanged, except the batch size: each
        remaining sample of the epoch is delivered once.

        Raises:
            UserError: If `state` is within an epoch of another order, or beyond the end of the present epochs, or if
                the batch size has changed within an epoch of several loaders.
        """
        if not _is_state(state):
            raise UserError(f"the state of a loader must be a result of its state_dict(), got {state!r}")
        delivered = state["delivered_samples"]
        if delivered >= state["epoch_samples"]:
            delivered = max(delivered, self.epoch_samples)
        elif delivered:
            self._check_same_order(state)
        self._next = Position(state["epoch"], delivered, state.get("cycle", 0), state.get("mosaic_epochs"))
        self._is_loaded = True
        self._is_begun = False
        self._shift = 0
        self._announcements_before_load = self._announcements
        self._newest = None
        self._unfinished = []
        if 0 < delivered < self.epoch_samples and self.loop is not None and self.loop.loaders() == 1:
            self.loop.recount(self.epoch_batches - self._batches_after(delivered))

    def _check_same_order(self, state: dict[str, Any]) -> None:
        """Raise a UserError if the rest of an epoch of `state` cannot be delivered."""
        epoch = state["epoch"]
        delivered = state["delivered_samples"]
        saved = state["settings"]
        settings = self._settings()
        for name in sorted((saved.keys() | settings.keys()) - {"batch_size"}):
            if saved.get(name) != settings.get(name):
                raise UserError(
                    f"{self.prefix}{name} must be {saved.get(name)}, got {settings.get(name)}: the checkpoint was "
                    f"saved within epoch {epoch}; resume with the saved value, or from a checkpoint saved at the end "
                    "of an epoch"
                )
        size = self.keys.batches.size
        processes = self.keys.batches.processes
        if self.loop is not None and self.loop.loaders() > 1 and state.get("batch_samples", size) != size:
            raise UserError(
                f"{self.prefix}batch_size times the number of processes must be {state['batch_samples']}, got {size}: "
                f"the checkpoint was saved within epoch {epoch} of several loaders; resume with the saved value, or "
                "from a checkpoint saved at the end of an epoch"
            )
        if delivered >= self.epoch_samples:
            raise UserError(
                f"the checkpoint was saved after {delivered} samples of epoch {epoch}, but an epoch has "
                f"{self.epoch_samples} samples: raise trainer.limit_train_batches or {self.prefix}batch_size"
            )
        rest = self.keys.order.length - delivered
        if rest < processes:
            raise UserError(
                f"the checkpoint was saved {rest} samples before the end of epoch {epoch}, too few for "
                f"{processes} processes: use at most {rest}, or resume from another checkpoint"
            )

    def _batches_after(self, delivered: int) -> int:
        """Return the number of batches of the rest of an epoch."""
        rest = self.epoch_samples - delivered
        if self.epoch_samples == self.keys.order.length:
            return self.keys.batches.count(rest)
        return -(-rest // self.keys.batches.size)

    def _settings(self) -> dict[str, Any]:
        return {"batch_size": self.keys.batch_size, **self.keys.order.settings}


def _is_state(state: Any) -> bool:
    """Return whether a value can be a result of `ResumableLoader.state_dict`."""
    if not isinstance(state, dict) or not isinstance(state.get("settings"), dict):
        return False
    numbers = [state.get(name) for name in ("epoch", "delivered_samples", "epoch_samples")]
    return all(type(number) is int and number >= 0 for number in numbers)
