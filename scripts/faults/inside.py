"""Faults inside the trainer or one of its workers. Imports nothing that a worker does not need anyway."""

import json
import os
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from faults.hangs import KINDS

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
