"""File access of the supervisor to the run folder, through a helper process, with an alarm for a disk that hangs."""

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from yolo_lightning.supervision.helper_process import Helper
from yolo_lightning.utils.addresses import redacted
from yolo_lightning.utils.files import flush, remove_leftovers
from yolo_lightning.utils.plain_text import printable
from yolo_lightning.utils.run_files import (
    CHECKPOINTS,
    CHECKSUM_SUFFIX,
    FINISHED_FILE,
    HEARTBEAT_FILE,
    STEP_CHECKPOINTS,
    stacks_path,
    steps_in,
)

Result = TypeVar("Result")
POLL_S = 0.5
PROBE_S = 5.0
"""A disk that needs longer for a small file counts as hung when a stall is diagnosed."""

ALARM_S = 30.0  # a disk that has not responded for this time is reported, whatever the trainer does
LOG_BYTES = 50_000_000
PROBE_FILE = ".probe-supervisor"
STOP_WAIT_S = 5.0
"""Longest wait for the disk after a stop signal, and at the end of the supervisor."""


class DiskHangsError(Exception):
    """The disk of the run folder does not respond, and a stop signal has arrived."""


class RunDisk(Helper):
    """All file access of the supervisor to the run folder.

    `must_stop` returns whether a stop signal has arrived. `report` is called with an event and a sentence when the disk
    has not responded for `ALARM_S`, and when the disk responds again.
    """

    def __init__(self, run: Path, must_stop: Callable[[], bool], report: Callable[[str, str], None]) -> None:
        super().__init__()
        self.run = run
        self._must_stop = must_stop
        self._report = report
        self._alarm_s: float | None = None

    @property
    def hangs(self) -> bool:
        """Whether the disk has not responded for `PROBE_S`."""
        return self.silent_s >= PROBE_S

    def ask(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Return what a call returns, however long the disk takes. Not for use while a trainer must be watched.

        Raises `DiskHangsError` if a stop signal arrives while the disk hangs.
        """
        call = self.begin(function, *arguments)
        while not self.wait(call, POLL_S):
            self.check_alarm()
            if self._must_stop() and self.silent_s >= STOP_WAIT_S:
                raise DiskHangsError
        return call.result()

    def answers(self, wait_s: float) -> bool:
        """Write a small file to the run folder; return whether that was done within `wait_s` seconds."""
        if self.silent_s >= wait_s:
            return False
        return self.wait(self.begin(_probe, self.run), wait_s)

    def check_alarm(self) -> None:
        """Raise or end the alarm; returns at once. Must be called regularly."""
        self.serve()
        silent_s = self.silent_s
        if self._alarm_s is None and silent_s >= ALARM_S:
            self._alarm_s = time.monotonic() - silent_s
            self._report("storage hangs", f"the disk of {self.run} has not responded for {silent_s:.0f} s")
        elif self._alarm_s is not None and silent_s < ALARM_S:
            sentence = f"the disk of {self.run} responds again after {time.monotonic() - self._alarm_s:.0f} s"
            if self.dropped:
                sentence += f"; {self.dropped} entries of the log and of incident reports were dropped"
            self._alarm_s = None
            self.dropped = 0
            self._report("storage answers again", sentence)


class Recorder:
    """Writes output to the standard output and to the file `log`, each in a helper process.

    A full or hung disk, or a terminal that is closed or stopped, blocks neither the supervisor nor the other output.
    """

    def __init__(self, log: Path, disk: Helper) -> None:
        self._log = log
        self._disk = disk
        sys.stdout.flush()
        self._terminal = Helper()

    def record(self, content: bytes) -> None:
        self._terminal.post(_write_to_descriptor, 1, content)
        self._disk.post(append_to_log, self._log, content)

    def log(self, text: str) -> None:
        self.record(f"supervisor: {time.strftime('%Y-%m-%dT%H:%M:%S%z')} {redacted(printable(text))}\n".encode())

    def serve(self) -> None:
        """Write what is queued for the standard output; returns at once. The owner of the disk's helper serves it."""
        self._terminal.serve()

    def close(self, wait_s: float) -> None:
        """Wait at most `wait_s` seconds until all is written to the standard output; the disk's helper stays open."""
        self._terminal.close(wait_s)


def _write_to_descriptor(descriptor: int, content: bytes) -> None:
    """Write `content` to a file that is open in the helper, such as the standard output."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def append_to_log(path: Path, content: bytes) -> None:
    """Append to a log; a log with `LOG_BYTES` is renamed to `run.log.1` before, which replaces the previous one."""
    with suppress(OSError):
        if path.stat().st_size + len(content) > LOG_BYTES:
            os.replace(path, path.with_name(f"{path.name}.1"))
    # A FIFO without a reader is an error instead of an endless wait.
    with open(path, "ab", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK, 0o666)) as file:
        file.write(content)


def saved_steps(run: Path) -> frozenset[int]:
    """Return the numbers of trained steps of all step checkpoints in a run folder.

    `best.ckpt` does not count: a run that crashes after each validation would write `best.ckpt` again in each attempt.
    """
    paths = (run / CHECKPOINTS).glob(STEP_CHECKPOINTS + CHECKSUM_SUFFIX)
    return frozenset(steps for steps in map(steps_in, paths) if steps is not None)


def clear_attempt(run: Path) -> None:
    """Delete heartbeat, stacks and finished marker of an earlier attempt.

    Raises:
        OSError: If a file cannot be deleted. A remaining finished marker would end the run too early.
    """
    heartbeat = run / HEARTBEAT_FILE
    for path in (heartbeat, stacks_path(heartbeat), run / FINISHED_FILE):
        path.unlink(missing_ok=True)


def clear_leftovers(run: Path) -> None:
    """Delete temporary files of a killed trainer, which can be as large as a checkpoint, before the next attempt."""
    for folder in (run, run / CHECKPOINTS):
        remove_leftovers(folder)


def _probe(run: Path) -> None:
    """Write a small file to the disk of the run folder. The call blocks while the disk hangs."""
    path = run / PROBE_FILE
    path.unlink(missing_ok=True)  # can be a FIFO
    try:
        path.write_bytes(b"probe")
        flush(path)
    finally:
        path.unlink(missing_ok=True)
