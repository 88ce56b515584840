"""Exit codes of all commands. Standard library only."""

import signal
from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of the commands. A process that a signal N has stopped exits with 128 + N: see `of_signal`."""

    FINISHED = 0  # the command has done all its work; for `fit`: all epochs are trained and `finished.json` exists
    FAILED = 1  # an unexpected error before the first step, or a negative result of a check
    USAGE = 2  # invalid command line, configuration or data
    NOT_SAVED = 73  # the last checkpoint could not be written; `fit --resume` trains the steps since the previous one
    DISK_FULL = 74  # a file that the fit needs could not be written because the disk or a quota is full
    GAVE_UP = 76  # no new checkpoint for `supervision.patience_h`, or failed attempts before the first step
    NEEDS_REBOOT = 77  # a process survived SIGKILL, or the GPU does not respond
    RUN_IN_USE = 78  # another process trains in the run folder


def of_signal(number: int) -> int:
    """Return the exit code of a process that a signal has ended, as shells report it."""
    return 128 + number


INTERRUPTED = of_signal(signal.SIGINT)  # exit code after Ctrl-C
