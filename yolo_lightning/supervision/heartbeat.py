"""Heartbeat file: fixed-size record of what the training process does now, readable by other processes.

The training loop writes the file through a memory map, which takes about a microsecond, makes no system call and does
not release the interpreter lock. A supervisor, `StallMonitor` and `monitor` read the file. No background thread writes
it, because a thread keeps running while the training loop hangs.

Layout, little-endian, `RECORD_BYTES` bytes; times are seconds of the monotonic clock::

    0     8s     magic `YLBEAT` and two zero bytes
    8     u32    format version          12  u32  signal that makes the process write its stacks, 0 for none
    16    u64    process id              24  u64  start time of the process, clock ticks since boot
    32    u64    sequence before the body: odd while the body is being written
    40    i64    epoch, from 0           48  i64  step: batches trained since training began
    56    i64    batch within the epoch  64  u64  phase
    72    f64    start of the phase
    80    16f64  longest completed duration of each phase, by number of the phase
    208   u64    length of the ids       216 512s ids of the last samples, joined by commas, as many as fit
    728   u64    sequence after the body: equal to the first sequence unless the record is incomplete
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

from yolo_lightning.supervision.processes import started_ticks
from yolo_lightning.utils.run_files import stacks_path

HEARTBEAT_VARIABLE = "YOLO_LIGHTNING_HEARTBEAT_FILE"
"""Environment variable with the path of the heartbeat file; set by the supervisor for the trainer."""

STACKS_SIGNAL = SIGUSR2
"""Makes the trainer write its stacks. Not SIGUSR1, on which Lightning requeues a SLURM job."""

MAGIC = b"YLBEAT\0\0"
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
    """Activity of the training process. The numbers are part of the file format."""

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

    @property
    def label(self) -> str:
        """Name in messages and reports, for example `first batch`."""
        return self.name.lower().replace("_", " ")


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Content of a heartbeat file."""

    process: int
    process_started_ticks: int  # clock ticks since boot; identifies the process together with its id
    stacks_signal: int  # signal that makes the process write its stacks, or 0
    sequence: int  # increases by 2 with every write
    epoch: int  # from 0
    step: int  # batches trained since training began
    batch: int  # within the epoch, from 0
    phase: Phase
    phase_began_s: float  # monotonic clock
    longest_s: dict[Phase, float]  # longest completed duration of each completed phase, seconds
    samples: tuple[str, ...]  # ids of the last samples, as many as fit into the file


class NoHeartbeat(StrEnum):
    """Reason why a heartbeat file could not be read."""

    MISSING = "the heartbeat file does not exist"
    UNREADABLE = "the heartbeat file cannot be read"
    TRUNCATED = "the heartbeat file is too short"
    FOREIGN = "the heartbeat file has another format or belongs to another process"
    TORN = "the heartbeat file is incomplete"


class HeartbeatWriter:
    """Writes the heartbeat file of this process. A lock prevents a second writer.

    Args:
        path: The file, which is overwritten.

    Raises:
        OSError: If the file cannot be written, or another process has locked it (`BlockingIOError`).
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
        """Record the start of `phase`, or of the next item in the same phase; None keeps the last number."""
        now_s = time.monotonic()
        duration_s = now_s - self._began_s
        self.epoch = self.epoch if epoch is None else epoch
        self.step = self.step if step is None else step
        self.batch = self.batch if batch is None else batch
        record, sequence = self._map, self._sequence
        BODY.pack_into(record, BODY_AT, sequence + 1, self.epoch, self.step, self.batch, phase, now_s)
        if duration_s > self._longest_s[self.phase]:
            self._longest_s[self.phase] = duration_s
            SECONDS.pack_into(record, LONGEST_AT + SECONDS.size * self.phase, duration_s)
        self.phase, self._began_s, self._sequence = phase, now_s, sequence + 2
        SEQUENCE.pack_into(record, TAIL_AT, sequence + 2)
        SEQUENCE.pack_into(record, BODY_AT, sequence + 2)

    def samples(self, ids: Sequence[str]) -> None:
        """Record the ids of the current samples, before the beat that starts their processing."""
        joined = ",".join(ids).encode()
        if len(joined) > IDS_BYTES:  # whole ids only
            joined = joined[: IDS_BYTES + 1].rpartition(b",")[0]
        SEQUENCE.pack_into(self._map, BODY_AT, self._sequence + 1)
        IDS.pack_into(self._map, IDS_AT, len(joined), joined)
        SEQUENCE.pack_into(self._map, TAIL_AT, self._sequence + 2)
        self._sequence += 2
        SEQUENCE.pack_into(self._map, BODY_AT, self._sequence)

    def read(self) -> Heartbeat | NoHeartbeat:
        """Return the content of the file without disk access; for another thread of this process."""
        try:
            return parse(self._map[:])
        except ValueError:  # closed
            return NoHeartbeat.MISSING

    def arm_stacks(self) -> None:
        """Write the stacks of all threads into `stacks_path` on `STACKS_SIGNAL`.

        The file is opened now, because a hung process cannot open a file.
        """
        self._stacks = stacks_path(self.path).open("wb", buffering=0)
        faulthandler.register(STACKS_SIGNAL, file=self._stacks, all_threads=True)
        self._write_head(STACKS_SIGNAL)

    def close(self) -> None:
        """Close the file; the last content remains."""
        if self._stacks is not None:
            faulthandler.unregister(STACKS_SIGNAL)
            self._stacks.close()
        self._map.close()
        self._file.close()

    def _write_head(self, stacks_signal: Signals | int = 0) -> None:
        process = os.getpid()
        HEAD.pack_into(self._map, 0, MAGIC, VERSION, stacks_signal, process, started_ticks(process))


class HeartbeatReader:
    """Reads the heartbeat file at `path` without locks.

    The file is read and not mapped, because access to the map of a truncated file kills the reader.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, process: int | None = None) -> Heartbeat | NoHeartbeat:
        """Return the heartbeat (of `process` if given), or the reason why there is none."""
        for _ in range(READ_ATTEMPTS):
            try:
                with self.path.open("rb", buffering=0) as file:
                    # The kernel copies the bytes of one read in any order. Equal sequences in reads before and after
                    # prove that no write began or ended meanwhile.
                    before = os.pread(file.fileno(), SEQUENCE.size, BODY_AT)
                    content = file.read(RECORD_BYTES + 1)
                    after = os.pread(file.fileno(), SEQUENCE.size, BODY_AT)
            except FileNotFoundError:
                return NoHeartbeat.MISSING
            except OSError:
                return NoHeartbeat.UNREADABLE
            found = parse(content) if before == after else NoHeartbeat.TORN
            if found is not NoHeartbeat.TORN:
                break
            time.sleep(0.001)
        if isinstance(found, Heartbeat) and process not in (None, found.process):
            return NoHeartbeat.FOREIGN
        return found


def parse(content: bytes) -> Heartbeat | NoHeartbeat:
    """Return the heartbeat in the content of a heartbeat file, or the reason why there is none."""
    if len(content) < RECORD_BYTES:
        return NoHeartbeat.TRUNCATED
    magic, version, stacks_signal, process, ticks = HEAD.unpack_from(content)
    sequence, epoch, step, batch, phase, began_s = BODY.unpack_from(content, BODY_AT)
    if len(content) > RECORD_BYTES or magic != MAGIC or version != VERSION:
        return NoHeartbeat.FOREIGN
    if sequence == 0 or sequence % 2 or SEQUENCE.unpack_from(content, TAIL_AT)[0] != sequence:
        return NoHeartbeat.TORN
    try:
        known_phase = Phase(phase)
    except ValueError:
        return NoHeartbeat.FOREIGN
    length, ids = IDS.unpack_from(content, IDS_AT)
    text = ids[:length].decode(errors="replace")
    longest = {one: SECONDS.unpack_from(content, LONGEST_AT + SECONDS.size * one)[0] for one in Phase}
    return Heartbeat(
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


_writer: HeartbeatWriter | None = None


def open_from_environment() -> HeartbeatWriter | None:
    """Open the heartbeat file that the supervisor has chosen; None without a supervisor.

    A child process of the trainer inherits the environment variable and finds the file locked.
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


def enter(phase: Phase) -> None:
    """Record the start of `phase` in the file of `open_from_environment`, if there is one."""
    if _writer is not None:
        _writer.beat(phase)


def current() -> HeartbeatWriter | None:
    """Return the writer that `open_from_environment` created."""
    return _writer
