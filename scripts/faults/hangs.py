"""Faults called inside the trainer or a loader worker: how the process hangs or ends, and at which point.

Loader workers import this file, so it imports the standard library only.
"""

import atexit
import ctypes
import faulthandler
import json
import os
import re
import resource
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Self

FIRED_FILE = "fired.jsonl"
LIBRARY_VARIABLE = "FAULTS_LIBRARY"
"""Environment variable with the path of the compiled `hang.c`."""
MEMORY_LEFT_BYTES = 64 << 20


def library(*, with_lock: bool = False) -> ctypes.CDLL:
    """Return `hang.c`, whose functions are called with or without the interpreter lock."""
    return (ctypes.PyDLL if with_lock else ctypes.CDLL)(os.environ[LIBRARY_VARIABLE])


def sleep() -> None:
    while True:
        time.sleep(1000)


def lock() -> None:
    held = threading.Lock()
    held.acquire()
    held.acquire()


def compute() -> None:
    while True:
        pass


def c_call() -> None:
    library().c_call()


def c_call_with_lock() -> None:
    library(with_lock=True).c_call()


def d_state() -> None:
    library().d_state()


def d_state_with_lock() -> None:
    library(with_lock=True).d_state()


def segfault() -> None:
    faulthandler.disable()
    ctypes.string_at(0)


def needs_space() -> None:
    """Write to the full disk of the run folder until the write fails."""
    with open("run/needed", "wb", buffering=0) as file:
        while file.write(bytes(1 << 20)):
            pass


def error() -> None:
    """Raise an error like a decoder, of a type that does not mean a mistake of the user."""
    raise RuntimeError("the decoder has failed")


def typo() -> None:
    """Raise the error of a misspelled name."""
    raise AttributeError("'Injector' object has no attribute 'sate'")


def memory() -> None:
    """Leak memory until the limit of the process is reached."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    size = pages * resource.getpagesize() + MEMORY_LEFT_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (size, resource.getrlimit(resource.RLIMIT_AS)[1]))
    leaked = []
    while True:
        leaked.append(bytearray(1 << 20))


def stuck_child_at_exit() -> None:
    """Start a child that stays in state D; multiprocessing waits for the child when the interpreter ends."""
    child = get_context("spawn").Process(target=_d_state_without_sigterm, daemon=True)
    child.start()
    in_state_d = 0
    while in_state_d < 5:  # in state D only once, the child may be reading a file
        state = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0]
        in_state_d = in_state_d + 1 if state == "D" else 0
        time.sleep(0.1)


def _d_state_without_sigterm() -> None:
    """Enter a state D that only SIGKILL ends, like that of a device driver."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    d_state()


KINDS: dict[str, Callable[[], Any]] = {
    "abort": os.abort,
    "backtrack": partial(re.match, r"(a?){40}a{40}", "a" * 40),
    "exit_3": partial(os._exit, 3),
    "half_a_second": partial(time.sleep, 0.5),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "sleep_at_exit": partial(atexit.register, sleep),
    "slow": partial(time.sleep, 5),
}
for function in (
    *(sleep, lock, compute, c_call, c_call_with_lock, d_state, d_state_with_lock),
    *(segfault, needs_space, error, typo, memory, stuck_child_at_exit),
):
    KINDS[function.__name__] = function


class Place(StrEnum):
    """Point at which a fault is called. The comments say what the number of a fault counts."""

    SETUP = "setup"
    WORKER_START = "worker start"  # worker ids
    FRAME = "frame"  # training frames read before by this process
    FRAME_NUMBER = "frame number"  # positions in the training split
    VALIDATION_FRAME = "validation frame"  # validation frames read before by this process
    SAVE = "save"  # checkpoints written before by this process
    EPOCH_START = "epoch start"  # epochs; before the first batch
    STEP = "step"  # steps; step 0 is part of the first-batch phase
    LAST_BATCH = "last batch"  # epochs; after the last batch
    VALIDATION = "validation"  # epochs; before the first validation batch
    EPOCH_END = "epoch end"  # epochs; after the checkpoints are written
    FIT_END = "fit end"
    RESUME = "resume"


@dataclass(frozen=True, slots=True)
class InsideFault:
    """One fault, written `KIND @ PLACE [NUMBER] [always]` in a configuration."""

    kind: str  # name of one of `KINDS`
    place: Place
    number: int = 0  # occurrence of the place
    always: bool = False  # whether the fault repeats in every attempt; otherwise it happens once per run

    @classmethod
    def parse(cls, text: str) -> Self:
        kind, _, rest = text.partition(" @ ")
        where = rest.removesuffix(" always")
        place, _, number = where.rpartition(" ")
        if not number.isdigit():
            place, number = where, "0"
        if kind not in KINDS:
            raise ValueError(f"fault kind must be one of {', '.join(KINDS)}, got {kind!r}")
        return cls(kind, Place(place), int(number), where != rest)

    def __str__(self) -> str:
        return f"{self.kind} @ {self.place} {self.number}" + (" always" if self.always else "")


@dataclass(frozen=True, slots=True)
class InsideFaults:
    """The faults of a run and the folder that records which have happened."""

    faults: tuple[InsideFault, ...]
    folder: Path

    def call(self, place: Place, number: int = 0) -> None:
        """Call the faults that are due, and record that they happen now."""
        for fault in self.faults:
            if (fault.place, fault.number) != (place, number):
                continue
            if not fault.always:
                try:
                    os.close(os.open(self.folder / f"{fault} has fired", os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    continue
            record_fired(self.folder, str(fault))
            KINDS[fault.kind]()


def record_fired(folder: Path, fault: str) -> None:
    """Append the time of a fault in one line. Several processes may append at the same time."""
    line = {"fault": fault, "at_s": time.monotonic(), "process": os.getpid()}
    with (folder / FIRED_FILE).open("a") as file:
        file.write(json.dumps(line) + "\n")


class FaultySource:
    """Frame source that calls the faults of a frame before `source` reads it; `names` are the files of the split."""

    def __init__(self, source: Any, names: list[str], place: Place, faults: InsideFaults) -> None:
        self.source, self.names, self.place, self.faults = source, names, place, faults
        self.count = 0

    def read(self, file_name: str) -> Any:
        self.faults.call(self.place, self.count)
        if self.place is Place.FRAME:
            self.faults.call(Place.FRAME_NUMBER, self.names.index(file_name))
        self.count += 1
        return self.source.read(file_name)


def start_worker(start: Callable[[int], None], faults: InsideFaults, worker: int) -> None:
    """Call the faults of a worker start, then the `worker_init_fn` of the loader."""
    faults.call(Place.WORKER_START, worker)
    start(worker)
