"""Calls a fault inside the trainer or one of its workers. The configuration of a run names it among the callbacks."""

import json
import os
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from lightning.fabric.plugins import CheckpointIO
from lightning.pytorch import Callback, LightningModule, Trainer

from faults.hangs import KINDS
from yolo_lightning.batch import Batch

FIRED_FILE = "fired.jsonl"


class Place(StrEnum):
    """Where a fault is called, and what its number counts."""

    SETUP = "setup"
    """When the trainer is set up."""
    WORKER_START = "worker start"
    """When a loader worker begins."""
    FRAME = "frame"
    """Before a training frame is read: frames read by this process."""
    FRAME_NUMBER = "frame number"
    """The same: the frame's number in the split."""
    VALIDATION_FRAME = "validation frame"
    """As `FRAME`, of a validation frame."""
    SAVE = "save"
    """While a checkpoint is written: checkpoints written by this process."""
    STEP = "step"
    """Before a training step: steps trained. Number 0 belongs to the first batch."""
    LAST_BATCH = "last batch"
    """After the last batch of an epoch: the epoch."""
    VALIDATION = "validation"
    """Before the first batch of a validation: the epoch."""
    EPOCH_END = "epoch end"
    """When all of an epoch is done, checkpoints too: the epoch."""
    EPOCH_START = "epoch start"
    """Before the first batch of an epoch: the epoch."""
    FIT_END = "fit end"
    """When all is trained."""


POISON = "poison"
"""Makes the pixels of a batch NaN; no function, as it needs the network."""


@dataclass(frozen=True, slots=True)
class InsideFault:
    """One fault, in a configuration `KIND @ PLACE [NUMBER] [always]`.

    Attributes:
        kind: Name of a function of `hangs`, or `poison`.
        place: Where.
        number: When.
        always: Whether it happens every time, not once in all attempts together.
    """

    kind: str
    place: Place
    number: int = 0
    always: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """From the text of a configuration."""
        kind, _, rest = text.partition(" @ ")
        always = rest.endswith(" always")
        where = rest.removesuffix(" always")
        place, _, number = where.rpartition(" ")
        if not number.isdigit():
            place, number = where, "0"
        if kind not in KINDS and kind != POISON:
            raise ValueError(f"fault kind is {kind!r}, allowed are {', '.join([*KINDS, POISON])}")
        return cls(kind, Place(place), int(number), always)

    def __str__(self) -> str:
        return f"{self.kind} @ {self.place} {self.number}" + (" always" if self.always else "")

    def happens(self, place: Place, number: int, folder: Path) -> bool:
        """Whether it is due; notes that it has happened."""
        if place is not self.place or number != self.number:
            return False
        if not self.always:
            try:
                os.close(os.open(folder / f"{self} has fired", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return False
        note_fired(folder, str(self))
        return True


def note_fired(folder: Path, fault: str) -> None:
    """Say when a fault has happened, in a line that processes may append at the same time."""
    line = {"fault": fault, "at_s": time.monotonic(), "process": os.getpid()}
    with (folder / FIRED_FILE).open("a") as file:
        file.write(json.dumps(line) + "\n")


class FaultySource:
    """A frame source that hangs or dies before some frame.

    Args:
        source: Reads frames.
        names: File names of the split, in its order.
        place: `FRAME` or `VALIDATION_FRAME`.
        faults: What happens.
        folder: Where it is noted.
    """

    def __init__(self, source: Any, names: list[str], place: Place, faults: list[InsideFault], folder: Path) -> None:
        self.source, self.names, self.place, self.faults, self.folder = source, names, place, faults, folder
        self.count = 0

    def read(self, file_name: str) -> Any:
        """As `source` does."""
        call_due(self.faults, self.place, self.count, self.folder)
        if self.place is Place.FRAME:
            call_due(self.faults, Place.FRAME_NUMBER, self.names.index(file_name), self.folder)
        self.count += 1
        return self.source.read(file_name)


class FaultyCheckpointIO(CheckpointIO):
    """Something happens while a checkpoint is written.

    Args:
        inner: Writes it.
        faults: What happens.
        folder: Where it is noted.
    """

    def __init__(self, inner: CheckpointIO, faults: list[InsideFault], folder: Path) -> None:
        self.inner, self.faults, self.folder = inner, faults, folder
        self.count = 0

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """As `inner` does."""
        call_due(self.faults, Place.SAVE, self.count, self.folder)
        self.count += 1
        self.inner.save_checkpoint(checkpoint, path, storage_options)

    def load_checkpoint(self, path: Any, *arguments: Any, **options: Any) -> dict[str, Any]:
        """As `inner` does."""
        return self.inner.load_checkpoint(path, *arguments, **options)

    def remove_checkpoint(self, path: Any) -> None:
        """As `inner` does."""
        self.inner.remove_checkpoint(path)


class FaultyStart:
    """A start of a loader worker that hangs; takes the place of the loader's `worker_init_fn`."""

    def __init__(self, start: Any, faults: list[InsideFault], folder: Path) -> None:
        self.start, self.faults, self.folder = start, faults, folder

    def __call__(self, worker: int) -> None:
        """Start worker number `worker`."""
        call_due(self.faults, Place.WORKER_START, worker, self.folder)
        self.start(worker)


def call_due(faults: list[InsideFault], place: Place, number: int, folder: Path) -> None:
    """Call the faults that are due."""
    for fault in faults:
        if fault.happens(place, number, folder):
            KINDS[fault.kind]()


def poison(module: Any) -> None:
    """Make the pixels of the batch at hand NaN on their way into the network."""

    def spoil(graph: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        handle.remove()
        return (inputs[0] * float("nan"), *inputs[1:])

    handle = module.graph.register_forward_pre_hook(spoil)


class Injector(Callback):
    """Calls faults from the hooks of the trainer, and puts them into its loaders and its writer of checkpoints.

    Args:
        faults: Texts of `InsideFault`.
        folder: Where it is noted which of them have happened.
    """

    def __init__(self, faults: list[str], folder: str) -> None:
        self.faults = [InsideFault.parse(text) for text in faults]
        self.folder = Path(folder)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Wrap what reads and writes."""
        self._call(Place.SETUP, 0)
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        for name, place in (("train_dataloader", Place.FRAME), ("val_dataloader", Place.VALIDATION_FRAME)):
            setattr(data, name, self._faulty(getattr(data, name), place))
        recorded: Any = trainer.strategy.checkpoint_io
        recorded.inner = FaultyCheckpointIO(recorded.inner, self.faults, self.folder)

    def _faulty(self, make_loader: Any, place: Place) -> Any:
        def make() -> Any:
            loader = make_loader()
            frames = loader.dataset.frames
            names = [frames.index.file_name(number) for number in range(len(frames.index))]
            frames.source = FaultySource(frames.source, names, place, self.faults, self.folder)
            if place is Place.FRAME:
                loader.worker_init_fn = FaultyStart(loader.worker_init_fn, self.faults, self.folder)
            return loader

        return make

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Batch, batch_idx: int) -> None:
        """Before a step."""
        step = trainer.current_epoch * int(trainer.num_training_batches) + batch_idx
        for fault in self.faults:
            if fault.kind == POISON and fault.happens(Place.STEP, step, self.folder):
                poison(pl_module)
        self._call(Place.STEP, step)

    def on_train_batch_end(self, trainer: Trainer, *arguments: Any) -> None:
        """After a step."""
        if trainer.is_last_batch:
            self._call(Place.LAST_BATCH, trainer.current_epoch)

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Batch, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Within a validation."""
        if batch_idx == 0:
            self._call(Place.VALIDATION, trainer.current_epoch)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The last callback of all: checkpoints are written."""
        self._call(Place.EPOCH_END, trainer.current_epoch)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Before the first batch."""
        self._call(Place.EPOCH_START, trainer.current_epoch)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """All is trained."""
        self._call(Place.FIT_END, 0)

    def _call(self, place: Place, number: int) -> None:
        call_due([fault for fault in self.faults if fault.kind != POISON], place, number, self.folder)
