"""The trainer's output: passed on, kept in the run folder, its last lines remembered."""

import os
import select
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import IO

from yolo_lightning.supervision.helper_process import Helper, append_to_file, write_to_descriptor

LINES_REMEMBERED = 50
BLOCK_BYTES = 1 << 16


class Recorder:
    """Writes output to the standard output and to the log, each in a helper process of its own.

    Neither a full or hung disk nor a terminal that has gone or stopped holds up the supervisor. The standard output may
    be a file on the same disk as the run folder.

    Args:
        log: The log file.
        disk: Makes all calls that concern the run folder.
    """

    def __init__(self, log: Path, disk: Helper) -> None:
        self._log, self._disk = log, disk
        sys.stdout.flush()
        self._terminal = Helper()

    def record(self, content: bytes) -> None:
        """Write `content` to both, later if one of them has to wait."""
        self._terminal.append(write_to_descriptor, 1, content=content)
        self._disk.append(append_to_file, self._log, content=content)

    def serve(self) -> None:
        """Pass on what waits; returns at once."""
        self._terminal.serve()
        self._disk.serve()

    def close(self, wait_s: float) -> None:
        """Wait at most `wait_s` seconds until the standard output has taken all; the disk's helper stays open."""
        self._terminal.close(wait_s)


class Output:
    """Reads a pipe without ever waiting for its end: a worker that was left behind may hold the other side.

    Args:
        pipe: The trainer's standard output and error.
        record: Called with everything that is read.
    """

    def __init__(self, pipe: IO[bytes], record: Callable[[bytes], None]) -> None:
        self._descriptor = pipe.fileno()
        os.set_blocking(self._descriptor, False)
        self._record = record
        self._open = True
        self._rest = b""
        self._lines: deque[str] = deque(maxlen=LINES_REMEMBERED)

    def pump(self, wait_s: float) -> None:
        """Pass on what has come; wait at most `wait_s` seconds for something."""
        if not self._open:
            time.sleep(wait_s)
            return
        while select.select([self._descriptor], [], [], wait_s)[0]:
            try:
                content = os.read(self._descriptor, BLOCK_BYTES)
            except OSError:
                content = b""
            if not content:
                self._open = False
                return
            self._take(content)
            if len(content) < BLOCK_BYTES:
                return
            wait_s = 0.0

    def lines(self) -> tuple[str, ...]:
        """The last lines, oldest first; of a progress bar only what it showed last."""
        whole = [*self._lines, self._rest.decode(errors="replace")]
        return tuple(line.rstrip("\r").rpartition("\r")[2] for line in whole if line.strip())

    def _take(self, content: bytes) -> None:
        *complete, self._rest = (self._rest + content).split(b"\n")
        self._rest = self._rest[-BLOCK_BYTES:]
        self._lines.extend(line.decode(errors="replace") for line in complete)
        self._record(content)
