"""Heartbeat file: fixed-size record of what the training process does now, readable by other processes.

The training loop writes the file through a memory map, which takes a few microseconds, makes no system call and does
not release the interpreter lock. A supervisor, the process of `StallMonitor` and `monitor` read the file. No background
thread writes it, because a thread keeps running while the training loop hangs.
"""

import faulthandler
import fcntl
import mmap
import os
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from functools import partial
from pathlib import Path
from signal import SIGUSR2
from typing import BinaryIO

from yolo_lightning.errors import UserError
from yolo_lightning.utils import activity
from yolo_lightning.utils.activity import Activity
from yolo_lightning.utils.process_identity import started_ticks
from yolo_lightning.utils.regular_files import open_regular
from yolo_lightning.utils.run_files import stacks_path

HEARTBEAT_VARIABLE = "YOLO_LIGHTNING_HEARTBEAT_FILE"
"""Environment variable with the path of the heartbeat file; set by the supervisor for the trainer."""

STACKS_SIGNAL = SIGUSR2
"""Makes the trainer write its stacks. Not SIGUSR1, on which Lightning requeues a SLURM job."""

MAGIC = b"YLBEAT\0\0"
VERSION = 3
RECORD = struct.Struct("<8sII QQQ qqqQd 16d Q512s Q Q 280x")
"""Little-endian: magic, version, stacks signal | process id, start time, sequence | epoch, step, batch, phase, start
of the phase | longest duration of each phase by its number | length and content of the sample ids, joined by commas |
sequence | report. The first sequence is odd during a write. The two sequences differ in an incomplete record."""

SEQUENCE = struct.Struct("<Q")
SEQUENCE_AT = 32

REPORT_WORD = 92
"""Index of the report in words of 8 bytes: the number of the reports of activities times `REPORT_STEP`, plus the
activity; written at once, without a sequence. All supported processors are little-endian."""

REPORT_STEP = 256
PHASES = 16
IDS_BYTES = 512
RECORD_BYTES = RECORD.size
READ_ATTEMPTS = 5


class Phase(IntEnum):
    """Activity of the training process. The numbers are part of the file format; 4 is not used."""

    IMPORT = 1
    SETUP = 2
    INDEX = 3
    FIRST_BATCH = 5
    FETCH = 6
    STEP = 7
    VALIDATE = 8
    METRICS = 9
    SAVE = 10
    EPOCH_END = 11
    EXIT = 12

    @property
    def key(self) -> str:
        """Name in options and files, for example `first_batch`."""
        return self.name.lower()

    @property
    def label(self) -> str:
        """Name in messages and reports, for example `first batch`."""
        return self.key.replace("_", " ")


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Content of a heartbeat file."""

    process: int
    process_started_ticks: int  # clock ticks since boot; identifies the process together with its id
    stacks_signal: int  # signal that makes the process write its stacks, or 0
    sequence: int  # increases with every write
    epoch: int  # from 0
    step: int  # batches trained since training began
    batch: int  # within the epoch, from 0
    phase: Phase
    phase_began_s: float  # monotonic clock
    longest_s: dict[Phase, float]  # longest completed duration of each completed phase, seconds
    samples: tuple[str, ...]  # ids of the last samples, as many as fit into the file
    activity: Activity = Activity.NONE  # within the phase


NOT_STARTED = Heartbeat(0, 0, 0, 0, 0, 0, 0, Phase.IMPORT, 0.0, {}, ())
"""In place of the heartbeat of a process that has not written one."""


class NoHeartbeat(StrEnum):
    """Reason why a heartbeat file could not be read."""

    MISSING = "the heartbeat file does not exist"
    UNREADABLE = "the heartbeat file cannot be read"
    FOREIGN = "the heartbeat file has another format or belongs to another process"
    TORN = "the heartbeat file is incomplete"


class HeartbeatWriter:
    """Writes the heartbeat file of this process; an existing file is overwritten.

    Raises an OSError if the file cannot be written, or if another process has locked it (`BlockingIOError`).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Allocate the blocks now: on a full disk the kernel would kill the process that writes into a hole.
            os.posix_fallocate(self._file.fileno(), 0, RECORD_BYTES)
            os.ftruncate(self._file.fileno(), RECORD_BYTES)
            self._map = mmap.mmap(self._file.fileno(), RECORD_BYTES)
            # A view of whole words: its assignment touches less cold memory than `Struct.pack_into`, in half the time.
            self._words = memoryview(self._map).cast("Q")
        except BaseException:
            self._file.close()
            raise
        self._stacks: BinaryIO | None = None
        self._longest_s = [0.0] * PHASES
        self._ids = b""
        self._process = os.getpid()
        self._started_ticks = started_ticks(self._process)
        self._sequence = 0
        self._reports = 0  # number of reports times `REPORT_STEP`
        self.phase = Phase.IMPORT
        self.epoch = 0
        self.step = 0
        self.batch = 0
        self._began_s = time.monotonic()
        self._write()
        activity.report_to(self.show)
        os.register_at_fork(after_in_child=partial(activity.report_to, None))  # the child shares the map

    def beat(self, phase: Phase, epoch: int | None = None, step: int | None = None, batch: int | None = None) -> None:
        """Record the start of `phase`, or of the next item in the same phase; None keeps the last number."""
        now_s = time.monotonic()
        self._longest_s[self.phase] = max(self._longest_s[self.phase], now_s - self._began_s)
        if epoch is not None:
            self.epoch = epoch
        if step is not None:
            self.step = step
        if batch is not None:
            self.batch = batch
        self.phase = phase
        self._began_s = now_s
        # The loader reports the wait for a batch.
        activity.note(Activity.WRITE if phase is Phase.SAVE else Activity.NONE)
        self._write()

    def show(self, current: Activity) -> None:
        """Record an activity within the phase, in a fraction of the time of `beat`."""
        if current is Activity.WAIT:  # an outage says nothing about the duration of the phase
            self._began_s = time.monotonic()
        self._reports += REPORT_STEP
        self._words[REPORT_WORD] = self._reports + current

    def samples(self, ids: Sequence[str]) -> None:
        """Set the ids of the current samples, which the next beat writes; as many whole ids as fit."""
        self._ids = ",".join(ids).encode()
        if len(self._ids) > IDS_BYTES:
            self._ids = self._ids[: IDS_BYTES + 1].rpartition(b",")[0]

    def _write(self) -> None:
        if os.getpid() != self._process:  # a forked child shares the map, and does not report for its parent
            return
        signal = 0 if self._stacks is None else STACKS_SIGNAL
        odd_sequence = self._sequence + 1
        SEQUENCE.pack_into(self._map, SEQUENCE_AT, odd_sequence)
        self._sequence += 2
        head = (MAGIC, VERSION, signal, self._process, self._started_ticks, odd_sequence)
        loop = (self.epoch, self.step, self.batch, self.phase, self._began_s, *self._longest_s)
        report = self._reports + activity.current()
        self._map[:] = RECORD.pack(*head, *loop, len(self._ids), self._ids, self._sequence, report)
        SEQUENCE.pack_into(self._map, SEQUENCE_AT, self._sequence)

    def arm_stacks(self) -> None:
        """Write the stacks of all threads into `stacks_path` on `STACKS_SIGNAL`.

        The file is opened now, because a hung process cannot open a file; this can raise an OSError.
        """
        self._stacks = stacks_path(self.path).open("wb", buffering=0)
        faulthandler.register(STACKS_SIGNAL, file=self._stacks, all_threads=True)
        self._write()

    def disarm_stacks(self) -> None:
        """Undo `arm_stacks`; an empty file is deleted."""
        if self._stacks is None:
            return
        faulthandler.unregister(STACKS_SIGNAL)
        self._stacks.close()
        self._stacks = None
        path = stacks_path(self.path)
        with suppress(OSError):
            if path.stat().st_size == 0:
                path.unlink()

    def close(self) -> None:
        """Close the file; the last content remains."""
        self.disarm_stacks()
        activity.report_to(None)
        self._words.release()
        self._map.close()
        self._file.close()


def records_beside(heartbeat: Path, name: str) -> list[Path]:
    """Return the record files beside a heartbeat file whose names go on with `name`; none if they cannot be listed."""
    try:
        return list(heartbeat.parent.glob(f"{heartbeat.name}.{name}*"))
    except OSError:
        return []


def read_heartbeat(path: Path, process: int | None = None) -> Heartbeat | NoHeartbeat:
    """Return the heartbeat in a file (of `process` if given), or the reason why there is none; without locks.

    The file is read and not mapped, because access to the map of a truncated file kills the reader.
    """
    for _ in range(READ_ATTEMPTS):
        try:
            with open_regular(path) as file:
                # The kernel copies the bytes of one read in any order. Equal sequences in reads before and after prove
                # that no write began or ended meanwhile.
                before = os.pread(file.fileno(), SEQUENCE.size, SEQUENCE_AT)
                content = os.pread(file.fileno(), RECORD_BYTES + 1, 0)
                after = os.pread(file.fileno(), SEQUENCE.size, SEQUENCE_AT)
        except FileNotFoundError:
            return NoHeartbeat.MISSING
        except OSError:
            return NoHeartbeat.UNREADABLE
        heartbeat = parse(content)
        if before == after and heartbeat is not NoHeartbeat.TORN:
            break
        time.sleep(0.001)
    else:
        return NoHeartbeat.TORN
    if isinstance(heartbeat, Heartbeat) and process not in (None, heartbeat.process):
        return NoHeartbeat.FOREIGN
    return heartbeat


def parse(content: bytes) -> Heartbeat | NoHeartbeat:
    """Return the heartbeat in the content of a heartbeat file, or the reason why there is none."""
    if len(content) != RECORD_BYTES:
        return NoHeartbeat.FOREIGN
    magic, version, signal, process, ticks, sequence, epoch, step, batch, phase, began_s, *rest = RECORD.unpack(content)
    *longest, length, ids, tail, report = rest
    if magic != MAGIC or version != VERSION:
        return NoHeartbeat.FOREIGN
    if sequence == 0 or sequence % 2 or tail != sequence:
        return NoHeartbeat.TORN
    try:
        return Heartbeat(
            process,
            ticks,
            signal,
            sequence + report // REPORT_STEP,
            epoch,
            step,
            batch,
            Phase(phase),
            began_s,
            longest_s={phase: longest[phase] for phase in Phase if longest[phase] > 0},
            samples=tuple(sample for sample in ids[:length].decode(errors="replace").split(",") if sample),
            activity=Activity(report % REPORT_STEP),
        )
    except ValueError:
        return NoHeartbeat.FOREIGN


_writer: HeartbeatWriter | None = None


def open_from_environment() -> HeartbeatWriter | None:
    """Return the writer of the heartbeat file that the supervisor has chosen; None without a supervisor.

    The first call opens the file. A child process of the trainer inherits the environment variable and finds the file
    locked.
    """
    global _writer
    path = os.environ.get(HEARTBEAT_VARIABLE)
    if _writer is None and path:
        try:
            _writer = HeartbeatWriter(Path(path))
            _writer.arm_stacks()
        except OSError:  # locked or not writable; the supervisor reports the missing heartbeat
            return None
    return _writer


def heartbeat(phase: str = "step", step: int | None = None, epoch: int | None = None) -> None:
    """Report to the supervisor that training has begun another item; does nothing without a supervisor.

    Args:
        phase: Name of a phase, whose timeout applies until the next call: `setup`, `fetch`, `step`, `validate`,
            `save` and so on (see `Phase`).
        step: Trained steps since training began, across restarts; None keeps the last number.
        epoch: Epoch from 0; None keeps the last number.

    Raises:
        UserError: If the phase is unknown, or a number is negative or no integer.
    """
    name = str(phase).upper().replace(" ", "_")
    if name not in Phase.__members__:
        raise UserError(f"phase must be one of {', '.join(Phase.__members__).lower()}, got {phase!r}")
    for argument, value in (("step", step), ("epoch", epoch)):
        if value is not None and not (isinstance(value, int) and value >= 0):
            raise UserError(f"{argument} must be an integer >= 0 or None, got {value!r}")
    writer = open_from_environment()
    if writer is not None:
        writer.beat(Phase[name], epoch=epoch, step=step)


def enter(phase: Phase) -> None:
    """Record the start of `phase` in the file of `open_from_environment`, if there is one."""
    if _writer is not None:
        _writer.beat(phase)
