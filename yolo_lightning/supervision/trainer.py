"""The trainer process: a session of its own, marked by an environment variable, killed when the supervisor dies."""

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from yolo_lightning.supervision.heartbeat import HEARTBEAT_VARIABLE
from yolo_lightning.utils.activity import PATIENCE_VARIABLE
from yolo_lightning.utils.files import TEMPORARY_VARIABLE

MARKER_VARIABLE = "YOLO_LIGHTNING_MARKER"
"""Environment variable of a supervised trainer and of all processes that it starts."""

PROGRAM_VARIABLE = "YOLO_LIGHTNING_PROGRAM"
"""Environment variable that is not empty if the supervised trainer is not the fit of the supervisor's run folder."""

RANK_VARIABLE = "LOCAL_RANK"  # rank of the processes that Lightning's launcher starts, from 1
LINES_KEPT = 50
BLOCK_BYTES = 1 << 16
PR_SET_PDEATHSIG = 1
SOCKET_PATH_BYTES = 107
SOCKET_IN_FOLDER = "/pymp-12345678/listener-12345678"
"""Loader workers send batches through Unix sockets below the temporary folder. The kernel limits the length of their
paths; with a longer path no batch arrives."""


def is_supervised() -> bool:
    """Return whether the supervisor of a fit has started this process or one of its ancestors.

    A command of `supervise` does not count, even if it starts a fit: its supervisor has not chosen the run folder.
    """
    return MARKER_VARIABLE in os.environ and not os.environ.get(PROGRAM_VARIABLE)


def marker_of(token: str) -> str:
    return f"{MARKER_VARIABLE}={token}"


def temporary_folder(token: str) -> Path:
    """Return the folder for temporary files of a supervisor's token or a mark; the path is short enough for sockets."""
    usual = Path(tempfile.gettempdir()) / token
    is_short = len(os.fsencode(f"{usual}{SOCKET_IN_FOLDER}")) <= SOCKET_PATH_BYTES
    return usual if is_short else Path("/tmp") / token


def make_temporary_folder(token: str) -> None:
    """Create the trainer's temporary folder, which only this user can read."""
    temporary_folder(token).mkdir(mode=0o700, exist_ok=True)


def remove_temporary_folder(token: str) -> None:
    shutil.rmtree(temporary_folder(token), ignore_errors=True)


def end_with_parent(parent: int) -> Callable[[], None]:
    """Return a function for `preexec_fn` that lets the kernel kill the process when `parent` dies (Linux only).

    The setting survives exec and is not inherited: workers detect the death of the trainer themselves, or the next
    supervisor kills them.
    """
    prctl = ctypes.CDLL(None, use_errno=True).prctl if sys.platform.startswith("linux") else None

    def arm() -> None:
        if prctl is not None:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return arm


def start_session(
    command: Sequence[str], environment: Mapping[str, str], output: int | IO[str], errors: int | IO[str]
) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own, killed when this process dies.

    `preexec_fn` makes subprocess fork: this process must have no threads and no GPU context.
    """
    return subprocess.Popen(
        command,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=errors,
        start_new_session=True,
        preexec_fn=end_with_parent(os.getpid()),
    )


def end_with_launcher(launched: bool) -> None:
    """Let the kernel kill this rank when the process that has started it dies.

    Otherwise the rank waits for dead ranks in a collective operation, or trains on without a supervisor. `launched` is
    whether torchrun's agent, not a supervised trainer, has started this process.
    """
    if launched or (is_supervised() and os.environ.get(RANK_VARIABLE, "0") != "0"):
        end_with_parent(os.getppid())()


class Output:
    """Reads a pipe without waiting for its end, because an orphaned worker may hold the other end open.

    `pipe` is standard output and error of the trainer; `record` is called with all content.
    """

    def __init__(self, pipe: IO[bytes], record: Callable[[bytes], object]) -> None:
        self._descriptor = pipe.fileno()
        os.set_blocking(self._descriptor, False)
        self._record = record
        self.is_open = True  # whether a process can still write into the pipe
        self.last_s = 0.0  # time of the last output, monotonic clock
        self._rest = b""
        self._lines: deque[str] = deque(maxlen=LINES_KEPT)

    def pump(self, wait_s: float) -> None:
        """Pass on what has arrived; wait at most `wait_s` seconds for the first byte."""
        if not self.is_open:
            time.sleep(wait_s)
            return
        while select.select([self._descriptor], [], [], wait_s)[0]:
            try:
                content = os.read(self._descriptor, BLOCK_BYTES)
            except OSError:
                content = b""
            if not content:
                self.is_open = False
                return
            self.last_s = time.monotonic()
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


class RunningTrainer:
    """A running trainer process.

    The trainer writes the heartbeat file `record`; `log` is called with all of its output. The temporary folder of
    `token`, the value of the marker, must exist. The trainer itself waits `patience_s` seconds for missing files.
    `any_command` is whether the trainer is another command than the fit of the supervisor's run folder.
    """

    def __init__(
        self,
        command: Sequence[str],
        record: Path,
        token: str,
        log: Callable[[bytes], None],
        patience_s: float,
        *,
        any_command: bool,
    ) -> None:
        environment = {
            PATIENCE_VARIABLE: str(patience_s),
            HEARTBEAT_VARIABLE: str(record.absolute()),
            MARKER_VARIABLE: token,
            PROGRAM_VARIABLE: "1" if any_command else "",  # a supervisor under `supervise` inherits "1"
            "TMPDIR": str(temporary_folder(token)),
            TEMPORARY_VARIABLE: os.environ.get(TEMPORARY_VARIABLE) or tempfile.gettempdir(),
            "PYTHONUNBUFFERED": "1",
            "PYTHONFAULTHANDLER": "1",  # writes the stack of a crash to the log
        }
        self.process = start_session(command, environment, subprocess.PIPE, subprocess.STDOUT)
        assert self.process.stdout is not None
        self.output = Output(self.process.stdout, log)

    def close(self) -> None:
        self.output.pump(0.0)
        self.process.poll()
        assert self.process.stdout is not None
        self.process.stdout.close()
