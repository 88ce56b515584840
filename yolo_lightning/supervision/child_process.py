"""A command in a child process with a time limit, killed together with all processes that it has started."""

import os
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from yolo_lightning.supervision.kill import kill_tree
from yolo_lightning.supervision.outcome import signal_name
from yolo_lightning.supervision.trainer import MARKER_VARIABLE, end_with_parent, marker_of

LINES_KEPT = 40
PACKAGE_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child process ended."""

    code: int | None  # exit code, negative for a signal; None if the time limit was reached
    seconds: float
    out: tuple[str, ...] = ()  # last lines of stdout
    err: tuple[str, ...] = ()  # last lines of stderr
    survivors: dict[int, str] = field(default_factory=dict)  # processes that SIGKILL did not end, and their states

    @property
    def signal_name(self) -> str:
        """Name of the signal that ended the process, such as SIGSEGV; empty for none."""
        return signal_name(-self.code) if self.code is not None and self.code < 0 else ""


class Child:
    """A running child process in a session of its own. The kernel kills it when this process dies.

    This process must have no threads and no GPU context: `preexec_fn` makes `subprocess` fork. `environment` contains
    variables to set in addition to those of this process.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._token = uuid.uuid4().hex
        self._began_s = time.monotonic()
        # The child imports this package, whether it is installed or not.
        path = os.pathsep.join([str(PACKAGE_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        with ExitStack() as files:
            # Files can be read at any time; a pipe blocks while any grandchild holds it open.
            self._outputs = [files.enter_context(tempfile.TemporaryFile("w+", errors="replace")) for _ in range(2)]
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._outputs[0],
                stderr=self._outputs[1],
                env=os.environ | {"PYTHONPATH": path, MARKER_VARIABLE: self._token} | dict(environment or {}),
                start_new_session=True,
                preexec_fn=end_with_parent(os.getpid()),
            )
            self._files = files.pop_all()

    def end(self) -> Ended:
        """Kill the process and everything it started, if still running, and return how the process ended."""
        code = self.process.poll()
        killed = kill_tree(self.process.pid, marker_of(self._token))
        self.process.poll()
        seconds = time.monotonic() - self._began_s
        with self._files:
            for output in self._outputs:
                output.seek(0)
            out, err = (tuple(filter(None, map(str.strip, output)))[-LINES_KEPT:] for output in self._outputs)
        return Ended(code, seconds, out, err, killed.survivors)


def run_child(command: Sequence[str], timeout_s: float) -> Ended:
    """Run a command and return how it ended; it is killed after `timeout_s` seconds."""
    child = Child(command)
    try:
        with suppress(subprocess.TimeoutExpired):
            child.process.wait(timeout_s)
    finally:
        ended = child.end()
    return ended
