"""The progress record: one fixed-size file that says what training does right now, readable from outside.

The training loop writes it through a memory map (about a microsecond a beat, without a system call and without giving
up the interpreter lock); a supervisor, or a person's tool, reads the file and never touches the process. No thread
writes it: a thread goes on while training is dead.

Layout, little-endian, `RECORD_BYTES` in all; times are seconds of the monotonic clock::

    0     8s     magic `YLPROG` and two zero bytes
    8     u32    format version          12  u32  signal that makes the process write its stacks, 0 for none
    16    u64    process id              24  u64  start time of the process, clock ticks since boot
    32    u64    sequence before the body: odd while the body is being written
    40    i64    epoch, from 0           48  i64  step: batches trained since training began
    56    i64    batch within the epoch  64  u64  phase
    72    f64    start of the phase
    80    16f64  longest completed stay in each phase so far, by number of the phase
    208   u64    length of the ids       216 512s ids of the last samples, joined by commas, cut where they do not fit
    728   u64    sequence after the body: equal to the one before, else the record is torn
"""

import faulthandler
import fcntl
import mmap
import os
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from pathlib import Path
from signal import SIGUSR2, Signals
from typing import BinaryIO

PROGRESS_FILE = "progress"
ALLOWANCES_FILE = "allowances.json"
FINISHED_FILE = "finished.json"
"""Written when a fit has done all that was asked; exit code 0 alone does not mean that."""

PROGRESS_VARIABLE = "YOLO_LIGHTNING_PROGRESS_FILE"
"""Environment variable by which a supervisor tells the trainer where to write its record."""

STACKS_SIGNAL = SIGUSR2
"""Makes the trainer write its stacks. Not SIGUSR1, on which Lightning requeues a SLURM job."""

MAGIC = b"YLPROG\0\0"
VERSION = 1
HEAD = struct.Struct("<8sIIQQ")
BODY = struct.Struct("<QqqqQd")
SEQUENCE = struct.Struct("<Q")
SECONDS = struct.Struct("<d")
IDS = struct.Struct("<Q512s")
PHASES = 16
BODY_AT, LONGEST_AT, IDS_AT, TAIL_AT = 32, 80, 208, 728
IDS_BYTES = 512
RECORD_BYTES = 1024
READ_ATTEMPTS = 5


class Phase(IntEnum):
    """What the process is doing. The numbers are part of the format."""

    IMPORT = 1
    SETUP = 2
    INDEX = 3
    SANITY = 4
    FIRST_BATCH = 5
    FETCH = 6
    STEP = 7
    VALIDATE = 8
    METRICS = 9
    SAVE = 10
    EPOCH_END = 11
    EXIT = 12


@dataclass(frozen=True, slots=True)
class Progress:
    """A whole record.

    Attributes:
        process: Its id.
        process_started_ticks: When it was started, clock ticks since boot; tells it from a later one of the same id.
        stacks_signal: Signal that makes it write its stacks, or 0.
        sequence: Grows by two with every beat.
        epoch: From 0.
        step: Batches trained since training began.
        batch: Within the epoch, from 0.
        phase: What it is doing.
        phase_began_s: Monotonic clock.
        longest_s: Longest completed stay in each phase that was left so far, seconds.
        samples: Ids of the last samples, as many as fit into the record.
    """

    process: int
    process_started_ticks: int
    stacks_signal: int
    sequence: int
    epoch: int
    step: int
    batch: int
    phase: Phase
    phase_began_s: float
    longest_s: dict[Phase, float]
    samples: tuple[str, ...]


class Blind(StrEnum):
    """Why a record says nothing. Never to be taken for health."""

    MISSING = "there is no record"
    UNREADABLE = "the record cannot be read"
    TRUNCATED = "the record is too short"
    FOREIGN = "the file is no record of this format, or of another process"
    TORN = "the record is half written"


class ProgressWriter:
    """Writes the record of this process; only one process at a time can.

    Args:
        path: The file; made anew.

    Raises:
        OSError: If the file cannot be written, or another process holds it (`BlockingIOError`).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The blocks are taken now: on a full disk the kernel would kill the process that writes into a hole.
            os.posix_fallocate(self._file.fileno(), 0, RECORD_BYTES)
            os.ftruncate(self._file.fileno(), RECORD_BYTES)
            self._map = mmap.mmap(self._file.fileno(), RECORD_BYTES)
        except BaseException:
            self._file.close()
            raise
        self._map[:] = bytes(RECORD_BYTES)
        self._stacks: BinaryIO | None = None
        self._longest_s = [0.0] * PHASES
        self.phase, self.epoch, self.step, self.batch = Phase.IMPORT, 0, 0, 0
        self._began_s = time.monotonic()
        self._sequence = 0
        self._write_head()
        self.beat(Phase.IMPORT)

    def beat(self, phase: Phase, epoch: int | None = None, step: int | None = None, batch: int | None = None) -> None:
        """Say that `phase` begins, or that the next piece of work of the same phase does; None keeps a number."""
        now_s = time.monotonic()
        stayed_s = now_s - self._began_s
        self.epoch = self.epoch if epoch is None else epoch
        self.step = self.step if step is None else step
        self.batch = self.batch if batch is None else batch
        record, sequence = self._map, self._sequence
        BODY.pack_into(record, BODY_AT, sequence + 1, self.epoch, self.step, self.batch, phase, now_s)
        if stayed_s > self._longest_s[self.phase]:
            self._longest_s[self.phase] = stayed_s
            SECONDS.pack_into(record, LONGEST_AT + SECONDS.size * self.phase, stayed_s)
        self.phase, self._began_s, self._sequence = phase, now_s, sequence + 2
        SEQUENCE.pack_into(record, TAIL_AT, sequence + 2)
        SEQUENCE.pack_into(record, BODY_AT, sequence + 2)

    def samples(self, ids: Sequence[str]) -> None:
        """Record the ids of the samples at hand, before the beat that begins their work."""
        joined = ",".join(ids).encode()
        if len(joined) > IDS_BYTES:  # whole ids only
            joined = joined[: IDS_BYTES + 1].rpartition(b",")[0]
        SEQUENCE.pack_into(self._map, BODY_AT, self._sequence + 1)
        IDS.pack_into(self._map, IDS_AT, len(joined), joined)
        SEQUENCE.pack_into(self._map, TAIL_AT, self._sequence + 2)
        self._sequence += 2
        SEQUENCE.pack_into(self._map, BODY_AT, self._sequence)

    def longest_s(self, phase: Phase) -> float:
        """Longest completed stay in `phase`, seconds."""
        return self._longest_s[phase]

    def arm_stacks(self) -> None:
        """Write the stacks of all threads into `stacks_path` whenever `STACKS_SIGNAL` comes."""
        stacks = self.stacks_file()
        faulthandler.register(STACKS_SIGNAL, file=stacks, all_threads=True)
        self._write_head(STACKS_SIGNAL)

    def stacks_file(self) -> BinaryIO:
        """The file beside the record that stacks go into; opened now, as a hung process opens nothing."""
        if self._stacks is None:
            self._stacks = stacks_path(self.path).open("wb", buffering=0)
        return self._stacks

    def close(self) -> None:
        """Leave the record as it is."""
        if self._stacks is not None:
            faulthandler.unregister(STACKS_SIGNAL)
            self._stacks.close()
        self._map.close()
        self._file.close()

    def _write_head(self, stacks_signal: Signals | int = 0) -> None:
        process = os.getpid()
        HEAD.pack_into(self._map, 0, MAGIC, VERSION, stacks_signal, process, started_ticks(process) or 0)


class ProgressReader:
    """Reads the record at `path`, whoever wrote it, without ever waiting for the writer.

    The file is read, not mapped: a map of a file that somebody truncates kills its reader.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, process: int | None = None) -> Progress | Blind:
        """The record, of `process` where given, or why there is none."""
        for _ in range(READ_ATTEMPTS):
            try:
                with self.path.open("rb", buffering=0) as file:
                    # The kernel copies bytes in any order, but one read after the other: between two equal sequences
                    # no beat began or ended.
                    before = os.pread(file.fileno(), SEQUENCE.size, BODY_AT)
                    content = file.read(RECORD_BYTES + 1)
                    after = os.pread(file.fileno(), SEQUENCE.size, BODY_AT)
            except FileNotFoundError:
                return Blind.MISSING
            except OSError:
                return Blind.UNREADABLE
            found = parse(content) if before == after else Blind.TORN
            if found is not Blind.TORN:
                break
            time.sleep(0.001)
        if isinstance(found, Progress) and process not in (None, found.process):
            return Blind.FOREIGN
        return found


def parse(content: bytes) -> Progress | Blind:
    """A record from its bytes."""
    if len(content) < RECORD_BYTES:
        return Blind.TRUNCATED
    magic, version, stacks_signal, process, ticks = HEAD.unpack_from(content)
    sequence, epoch, step, batch, phase, began_s = BODY.unpack_from(content, BODY_AT)
    if len(content) > RECORD_BYTES or magic != MAGIC or version != VERSION:
        return Blind.FOREIGN
    if sequence == 0 or sequence % 2 or SEQUENCE.unpack_from(content, TAIL_AT)[0] != sequence:
        return Blind.TORN
    try:
        known_phase = Phase(phase)
    except ValueError:
        return Blind.FOREIGN
    length, ids = IDS.unpack_from(content, IDS_AT)
    text = ids[:length].decode(errors="replace")
    longest = {one: SECONDS.unpack_from(content, LONGEST_AT + SECONDS.size * one)[0] for one in Phase}
    return Progress(
        process=process,
        process_started_ticks=ticks,
        stacks_signal=stacks_signal,
        sequence=sequence,
        epoch=epoch,
        step=step,
        batch=batch,
        phase=known_phase,
        phase_began_s=began_s,
        longest_s={one: seconds for one, seconds in longest.items() if seconds > 0},
        samples=tuple(text.split(",")) if text else (),
    )


def stacks_path(record: Path) -> Path:
    """The file beside a record that its writer's stacks go into."""
    return record.with_name(f"{record.name}.stacks")


def started_ticks(process: int) -> int | None:
    """When a process was started, clock ticks since boot; None where that cannot be told."""
    try:
        fields_after_name = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return int(fields_after_name[19])
    except (OSError, ValueError, IndexError):
        return None


_writer: ProgressWriter | None = None


def open_from_environment() -> ProgressWriter | None:
    """Begin the record that a supervisor asks for; call it first thing. None without a supervisor.

    A process below the trainer inherits the variable; it finds the record taken and leaves it alone.
    """
    global _writer
    path = os.environ.get(PROGRESS_VARIABLE)
    if _writer is None and path:
        try:
            _writer = ProgressWriter(Path(path))
            _writer.arm_stacks()
        except OSError:  # taken, or not to be written: the supervisor sees that it is blind
            return None
    return _writer


def enter(phase: Phase) -> None:
    """Say that `phase` begins; does nothing without a supervisor."""
    if _writer is not None:
        _writer.beat(phase)


def current() -> ProgressWriter | None:
    """The writer that `open_from_environment` made."""
    return _writer
