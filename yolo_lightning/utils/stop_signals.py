"""SIGINT, SIGTERM and SIGHUP end a command: at once before training, after the current step during training.

Standard library only: `__main__` installs the handler before it imports torch.
"""

import errno
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from yolo_lightning.utils.addresses import redacted
from yolo_lightning.utils.exit_codes import of_signal
from yolo_lightning.utils.slurm import REQUEUE_SIGNAL, is_slurm_task

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Terminals, service managers and `timeout` send them to the whole process group; SIGHUP means a closed terminal."""

EXCHANGED_SIGNALS = (*STOP_SIGNALS, REQUEUE_SIGNAL)
"""Signals about which the ranks agree."""

NOTICE = "the fit ends after the current step, or after the validation in progress, and saves a checkpoint"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class Stopped(SystemExit):
    """Raised by the signal handler outside of training; the exit code is 128 + signal number."""

    def __init__(self, number: int) -> None:
        super().__init__(of_signal(number))
        self.number = number


class StopRequest:
    """The stop signal that this process has received, if any."""

    def __init__(self) -> None:
        self.number: int | None = None  # first signal received; after an agreement, the largest number of all ranks
        # Whether the handler only records a signal, because the training loop reads `number` between steps. Otherwise
        # the handler raises `Stopped`.
        self.deferred = False
        self.agreed = False  # whether all ranks have agreed, after the same step, that one of them received a signal
        self.is_exchanged = False  # whether the module has exchanged the signals together with the losses of this step
        self.installed = False  # whether the handler is installed

    def install(self) -> None:
        """Handle the stop signals from now on, in the main thread; an ignored one (`fit &`, `nohup`) stays ignored."""
        for number in EXCHANGED_SIGNALS if is_slurm_task() else STOP_SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._handle)
        self.installed = True

    def reinstall(self) -> None:
        """Replace Lightning's handlers of SIGTERM and SIGUSR1, which call collective operations within the handler."""
        if self.installed:
            self.install()

    def counts(self) -> list[float]:
        """Return 1 for the signal that this process has received, else 0; the sum over all ranks is for `agree`."""
        return [float(number == self.number) for number in EXCHANGED_SIGNALS]

    def agree(self, counts: Sequence[float]) -> None:
        """Record the signals that the ranks have received; all ranks call this method with equal sums in a step."""
        received = [number for number, count in zip(EXCHANGED_SIGNALS, counts, strict=True) if count]
        if received:
            self.number = max(received)
            self.agreed = True

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            _leave_closed_terminal()
        if self.number is None:
            self.number = number
            if not self.deferred:
                raise Stopped(number)
            say(f"{signal.Signals(number).name}: {NOTICE}; Ctrl-C again ends it at once, without saving")
        elif number == signal.SIGINT:  # SIGTERM often arrives twice: from a service manager and from the supervisor
            say("SIGINT: ended at once")
            _end_at_once(number)


request = StopRequest()
"""Of this process."""


def say(text: str) -> None:
    """Write a line to stderr from the first rank; safe in a signal handler, unlike `print`."""
    if all(os.environ.get(name, "0") == "0" for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID")):
        os.write(2, f"\n{text}\n".encode())


def pasteable(words: Sequence[str]) -> str:
    """Return a command line for a shell, without credentials; `python` is this interpreter if the shell finds it so."""
    program, *arguments = words
    if shutil.which("python") == program:
        program = "python"
    return redacted(shlex.join([program, *arguments]))


def _leave_closed_terminal() -> None:
    """Discard output to a terminal that has closed: an error of a write would end the fit before its checkpoint."""
    for descriptor in (1, 2):
        try:
            os.get_terminal_size(descriptor)
        except OSError as error:
            if error.errno == errno.EIO:  # a file or a pipe has another error
                os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def _end_at_once(number: int) -> None:
    """Kill the loader workers, which ignore the signal, delete their sockets, and exit without any other cleanup."""
    if "multiprocessing.util" in sys.modules:
        for child in sys.modules["multiprocessing"].active_children():
            child.kill()
        shutil.rmtree(sys.modules["multiprocessing.util"].get_temp_dir(), ignore_errors=True)
    os._exit(of_signal(number))
