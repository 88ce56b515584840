"""Output of the trainer: passed on to the standard output and to `run.log`."""

import os
import select
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import IO

from yolo_lightning.supervision.helper_process import Helper, append_to_file, write_to_descriptor

LOG_FILE = "run.log"
LINES_KEPT = 50
BLOCK_BYTES = 1 << 16


class Recorder:
    """Writes output to the standard output and to the log, each in a helper process.

    A full or hung disk, or a terminal that is closed or stopped, blocks neither the supervisor nor the other output.

    Args:
        log: The log file.
        disk: Makes all calls that access the run folder.
    """

    def __init__(self, log: Path, disk: Helper) -> None:
        self._log, self._disk = log, disk
        sys.stdout.flush()
        self._terminal = Helper()

    def record(self, content: bytes) -> None:
        """Queue `content` for both."""
        self._terminal.append(write_to_descriptor, 1, content=content)
        self._disk.append(append_to_file, self._log, content=content)

    def log(self, text: str) -> None:
        """Queue a line of the supervisor itself."""
        self.record(f"supervisor: {time.strftime('%Y-%m-%dT%H:%M:%S%z')} {text}\n".encode())

    def serve(self) -> None:
        """Write what is queued; returns at once."""
        self._terminal.serve()
        self._disk.serve()

    def close(self, wait_s: float) -> None:
        """Wait at most `wait_s` seconds until all is written to the standard output; the disk's helper stays open."""
        self._terminal.close(wait_s)


class Output:
    """Reads a pipe without waiting for its end, because an orphaned worker may hold the other end open.

    Args:
        pipe: Standard output and error of the trainer.
        record: Called with all content.
    """

    def __init__(self, pipe: IO[bytes], record: Callable[[bytes], None]) -> None:
        self._descriptor = pipe.fileno()
        os.set_blocking(self._descriptor, False)
        self._record = record
        self._is_open = True
        self._rest = b""
        self._lines: deque[str] = deque(maxlen=LINES_KEPT)

    def pump(self, wait_s: float) -> None:
        """Pass on what has arrived; wait at most `wait_s` seconds for the first byte."""
        if not self._is_open:
            time.sleep(wait_s)
            return
        while select.select([self._descriptor], [], [], wait_s)[0]:
            try:
                content = os.read(self._descriptor, BLOCK_BYTES)
            except OSError:
                content = b""
            if not content:
                self._is_open = False
                return
            *complete, rest = (self._rest + content).split(b"\n")
            self._rest = rest[-BLOCK_BYTES:]
            self._lines.extend(line.decode(errors="replace") for line in complete)
            self._record(content)
            if len(content) < BLOCK_BYTES:
                return
            wait_s = 0.0

    def lines(self) -> tuple[str, ...]:
        """Return the last lines, oldest first; for a progress bar, only its last state."""
        whole = [*self._lines, self._rest.decode(errors="replace")]
        return tuple(line.rstrip("\r").rpartition("\r")[2] for line in whole if line.strip())
