"""The trainer's output: passed on, kept in the run folder, its last lines remembered."""

import os
import select
import sys
import time
from collections import deque
from pathlib import Path
from typing import IO

LOG_FILE = "run.log"
LINES_REMEMBERED = 50
BLOCK_BYTES = 1 << 16


class Output:
    """Reads a pipe without ever waiting for its end: a worker that was left behind may hold the other side.

    Neither a full disk nor a terminal that has gone stops the trainer.

    Args:
        pipe: The trainer's standard output and error.
        log: File that it is appended to.
    """

    def __init__(self, pipe: IO[bytes], log: Path) -> None:
        self._descriptor = pipe.fileno()
        os.set_blocking(self._descriptor, False)
        self._log = log
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
        pass_on(content)
        append(self._log, content)


def pass_on(content: bytes) -> None:
    """To the standard output."""
    try:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    except (OSError, ValueError):
        return


def append(path: Path, content: bytes) -> None:
    """To a file."""
    try:
        with path.open("ab") as file:
            file.write(content)
    except OSError:
        return
