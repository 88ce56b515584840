"""Starts the trainer so that it can be watched and ended: own session, marked, and never outliving its supervisor."""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from yolo_lightning.supervision.fallback import Rung
from yolo_lightning.supervision.heartbeat import HEARTBEAT_VARIABLE
from yolo_lightning.supervision.output import Output

MARKER_VARIABLE = "YOLO_LIGHTNING_MARKER"
"""In the environment of the trainer and of all that it starts; also says that a trainer is supervised."""

RANK_VARIABLE = "LOCAL_RANK"
"""By which Lightning's launcher tells the processes that it starts their number, from 1."""

PR_SET_PDEATHSIG = 1
SOCKET_PATH_BYTES = 107
SOCKET_IN_FOLDER = "/pymp-12345678/listener-12345678"
"""Loader workers hand batches over by Unix sockets below the temporary folder, whose paths the kernel limits; with a
longer one no batch ever arrives."""


def is_supervised() -> bool:
    """Whether a supervisor has started this process, or one above it."""
    return MARKER_VARIABLE in os.environ


def marker_of(token: str) -> str:
    """`NAME=value` as it stands in the environment."""
    return f"{MARKER_VARIABLE}={token}"


def temporary_folder(token: str) -> Path:
    """Where the trainer's temporary files go, to be removed with it: short enough for sockets."""
    name = f"yolo-{token[:12]}"
    usual = Path(tempfile.gettempdir()) / name
    is_short = len(os.fsencode(f"{usual}{SOCKET_IN_FOLDER}")) <= SOCKET_PATH_BYTES
    return usual if is_short else Path("/tmp") / name


def make_temporary_folder(token: str) -> None:
    """Make the trainer's temporary folder, which only this user can read.

    Raises:
        OSError: If that fails.
    """
    temporary_folder(token).mkdir(mode=0o700, exist_ok=True)


def remove_temporary_folder(token: str) -> None:
    """Delete it, as far as that goes."""
    shutil.rmtree(temporary_folder(token), ignore_errors=True)


def end_with_parent(parent: int) -> Callable[[], None]:
    """What a child calls before it becomes the trainer: the kernel ends it when the supervisor dies; Linux only.

    The signal survives exec but is not inherited: workers notice by themselves, or the next supervisor ends them.
    """
    prctl = ctypes.CDLL(None, use_errno=True).prctl if sys.platform.startswith("linux") else None

    def arm() -> None:
        if prctl is not None:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return arm


def end_with_launcher(launched: bool) -> None:
    """For a process that others have started to train with them: the kernel ends it when they die.

    Such a one waits for the dead in communication that may have no end, or trains on with nobody to restart it.

    Args:
        launched: Whether torchrun's agent has started it, and not a supervised trainer.
    """
    if launched or (is_supervised() and os.environ.get(RANK_VARIABLE, "0") != "0"):
        end_with_parent(os.getppid())()


class RunningTrainer:
    """One attempt.

    Args:
        command: Words of its command line, without the rung's.
        rung: Loader settings.
        heartbeat_path: File that the trainer is to write its heartbeat to.
        token: Value of the marker; its temporary folder must exist.
        record: Called with all that the trainer prints.

    Raises:
        OSError: If it cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        rung: Rung,
        heartbeat_path: Path,
        token: str,
        record: Callable[[bytes], None],
    ) -> None:
        environment = {
            HEARTBEAT_VARIABLE: str(heartbeat_path.absolute()),
            MARKER_VARIABLE: token,
            "TMPDIR": str(temporary_folder(token)),
            "PYTHONUNBUFFERED": "1",
        }
        self.process = subprocess.Popen(
            [*command, *rung.overrides],
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # Makes subprocess fork. The supervisor has no threads and no GPU; inside a trainer it would be wrong.
            preexec_fn=end_with_parent(os.getpid()),
        )
        assert self.process.stdout is not None
        self.output = Output(self.process.stdout, record)

    @property
    def pid(self) -> int:
        """Its process id, which is that of its session too."""
        return self.process.pid

    def forward(self, number: int) -> None:
        """Send it a signal; its workers get none."""
        if self.process.poll() is None:
            self.process.send_signal(number)

    def close(self) -> None:
        """Read what is left of the output, and close it."""
        self.output.pump(0.0)
        self.process.poll()
        assert self.process.stdout is not None
        self.process.stdout.close()
