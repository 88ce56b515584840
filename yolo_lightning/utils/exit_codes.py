"""Exit codes of all commands. Standard library only."""

import signal
from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of the commands. A process that a signal N has stopped exits with 128 + N: see `of_signal`."""

    FINISHED = 0
    """The command has done all its work. For `fit`: all epochs are trained and `finished.json` exists."""
    FAILED = 1
    """An error that a restart cannot correct, or a negative result of a check."""
    USAGE = 2
    """Invalid command line, configuration or data."""
    NOT_SAVED = 73
    """All steps are trained, but the last checkpoint could not be written. `fit --resume` trains the last steps."""
    DISK_FULL = 74
    """A file that the fit needs could not be written because the disk or a quota is full."""
    STALLED = 75
    """`StallMonitor` ended an unsupervised fit that made no progress."""
    GAVE_UP = 76
    """Too many attempts in a row ended without a new checkpoint."""
    NEEDS_REBOOT = 77
    """A process survived SIGKILL, or the GPU does not respond."""
    RUN_IN_USE = 78
    """Another process trains in the run folder."""


def of_signal(number: int) -> int:
    """Return the exit code of a process that a signal has ended, as shells report it."""
    return 128 + number


INTERRUPTED = of_signal(signal.SIGINT)
"""Exit code after Ctrl-C."""
