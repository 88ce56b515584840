"""A child process with a time limit, ended with all that it has started."""

import os
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from yolo_lightning.supervision.kill import Killed, kill_tree
from yolo_lightning.supervision.trainer import MARKER_VARIABLE, end_with_parent, marker_of

LINES_KEPT = 40
PACKAGE_ROOT = Path(__file__).parents[3]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child ended.

    Attributes:
        code: Exit code, negative for a signal; None where it was ended because its time was over.
        seconds: That it took.
        out: Last lines of its output.
        err: Last lines of its error output.
        survivors: Processes that outlived SIGKILL, and where in the kernel they are.
    """

    code: int | None
    seconds: float
    out: tuple[str, ...] = ()
    err: tuple[str, ...] = ()
    survivors: dict[int, str] = field(default_factory=dict)

    @property
    def signal_name(self) -> str:
        """The signal that ended it, as SIGSEGV; empty where none did."""
        if self.code is None or self.code >= 0:
            return ""
        try:
            return signal.Signals(-self.code).name
        except ValueError:
            return f"signal {-self.code}"


class Child:
    """A running child: a session of its own, marked, and ended by the kernel when this process dies.

    The process that starts it must have no threads and no GPU: arming the kernel makes `subprocess` fork.

    Args:
        command: Words of the command line.
        environment: Variables beside those of this process.

    Raises:
        OSError: If it cannot be started.
    """

    def __init__(self, command: Sequence[str], environment: dict[str, str] | None = None) -> None:
        self._token = uuid.uuid4().hex
        self._began_s = time.monotonic()
        # Files, not pipes: they can be read at any time, whoever else still holds them open.
        self._out: IO[str] = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self._err: IO[str] = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        # The child must find this package, installed or not.
        path = os.pathsep.join([str(PACKAGE_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._out,
                stderr=self._err,
                env=os.environ | {"PYTHONPATH": path, MARKER_VARIABLE: self._token} | (environment or {}),
                start_new_session=True,
                preexec_fn=end_with_parent(os.getpid()),
            )
        except OSError:
            self._close()
            raise

    def end(self) -> Ended:
        """End it and all that it has started, if they have not ended, and tell how it went."""
        code = self.process.poll()
        killed = kill_tree(self.process.pid, marker_of(self._token))
        self.process.poll()
        ended = self._ended(code, killed)
        self._close()
        return ended

    def _ended(self, code: int | None, killed: Killed) -> Ended:
        seconds = time.monotonic() - self._began_s
        return Ended(code, seconds, last_lines(self._out), last_lines(self._err), killed.survivors)

    def _close(self) -> None:
        self._out.close()
        self._err.close()


def run_child(command: Sequence[str], timeout_s: float) -> Ended:
    """Run a child to its end, or end it after `timeout_s` seconds.

    Raises:
        OSError: If it cannot be started.
    """
    child = Child(command)
    try:
        child.process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        pass
    finally:
        ended = child.end()
    return ended


def last_lines(file: IO[str]) -> tuple[str, ...]:
    """Of a file that may still be written."""
    file.seek(0)
    return tuple(line.strip() for line in file if line.strip())[-LINES_KEPT:]
