"""A command in a child process with a time limit, killed together with all processes that it has started."""

import os
import subprocess
import tempfile
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from yolo_lightning.supervision.kill import Killed, kill_tree
from yolo_lightning.supervision.trainer import MARKER_VARIABLE, marker_of, start_session
from yolo_lightning.utils.stop_signals import signal_name

LINES_KEPT = 40
PACKAGE_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child process ended."""

    code: int | None  # exit code, negative for a signal; None if the time limit was reached
    seconds: float
    out: tuple[str, ...] = ()  # last lines of stdout
    err: tuple[str, ...] = ()  # last lines of stderr
    killed: Killed = field(default_factory=Killed)  # with the processes that SIGKILL did not end

    @property
    def signal_name(self) -> str:
        """Name of the signal that ended the process, such as SIGSEGV; empty for none."""
        if self.code is None or self.code >= 0:
            return ""
        return signal_name(-self.code)


def run_child(command: Sequence[str], timeout_s: float) -> Ended:
    """Run a command in a session of its own and return how it ended; everything it started is killed at the end.

    The command is killed after `timeout_s` seconds, and by the kernel when this process dies. This process must have no
    threads and no GPU context: `preexec_fn` makes `subprocess` fork.
    """
    token = uuid.uuid4().hex
    began_s = time.monotonic()
    # The child imports this package, whether it is installed or not.
    path = os.pathsep.join([str(PACKAGE_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    # Files can be read at any time; a pipe blocks while any grandchild holds it open.
    with tempfile.TemporaryFile("w+", errors="replace") as out, tempfile.TemporaryFile("w+", errors="replace") as err:
        process = start_session(command, {"PYTHONPATH": path, MARKER_VARIABLE: token}, out, err)
        try:
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout_s)
        finally:
            code = process.poll()
            killed = kill_tree(process.pid, marker_of(token))
            process.poll()
        seconds = time.monotonic() - began_s
        return Ended(code, seconds, _last_lines(out), _last_lines(err), killed)


def _last_lines(output: IO[str]) -> tuple[str, ...]:
    output.seek(0)
    return tuple(filter(None, map(str.strip, output)))[-LINES_KEPT:]
