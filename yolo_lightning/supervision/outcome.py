"""What an exit of the trainer means, and what the supervisor's own exit code says."""

import re
import signal
from collections.abc import Sequence
from enum import IntEnum

from yolo_lightning.supervision.classify import DEAD_WORKER, Diagnosis, StallClass
from yolo_lightning.utils.stop_signals import STOP_SIGNALS, exit_code


class ExitCode(IntEnum):
    """Exit codes of a supervised fit. A signal N that ended it on request gives 128 + N."""

    FINISHED = 0
    """All that was asked for is trained."""
    FAILED = 1
    """An error that a restart cannot mend; the last lines say which."""
    USAGE = 2
    """A mistake in the command line, the configuration or the data."""
    NOT_SAVED = 73
    """All steps are trained, but the last checkpoint could not be written. `fit --resume` trains the last steps."""
    DISK_FULL = 74
    """A file that the trainer needs could not be written, as the disk or a quota is full. `fit --resume` continues."""
    GAVE_UP = 76
    """Too many attempts in a row without a further checkpoint. `fit --resume` tries again."""
    NEEDS_REBOOT = 77
    """A process outlived SIGKILL: the driver hangs."""
    RUN_IN_USE = 78
    """Another process trains in the run folder."""


STALLED_BY_ITSELF = 75
"""Exit code of a trainer that has noticed its own stall."""

STOPPED = frozenset(map(exit_code, STOP_SIGNALS))
"""Exit codes of a trainer that somebody has stopped; it has saved its last step."""

STARVED_WORKER = re.compile(r"Caught MemoryError in DataLoader worker|insufficient shared memory")
AT_SAMPLE = re.compile(r"^while reading image (id=\S+)$")
"""The note that the data room adds to an error it does not expect."""

ERROR_LINE = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Warning|Exit))(?::|$)")
CANNOT_BE_MENDED = frozenset(
    {
        *("SyntaxError", "IndentationError", "ImportError", "ModuleNotFoundError", "NameError", "AttributeError"),
        *("TypeError", "ValueError", "NotImplementedError", "AssertionError", "KeyError", "IndexError"),
        *("MisconfigurationException", "PermissionError"),
    }
)
"""Errors in the program or in what it was given. The order is deterministic, so that a restart meets them again."""


FAULTS = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL})
"""Signals that a program brings on itself; the samples at hand may have caused them."""


def error_of(log_lines: Sequence[str]) -> str:
    """The last line that names an exception; empty if there is none."""
    return next((line.strip() for line in reversed(log_lines) if ERROR_LINE.match(line)), "")


def can_be_mended(code: int, log_lines: Sequence[str]) -> bool:
    """Whether a trainer that ended with `code` is worth another try. A worker's death is, whatever it raised."""
    if code == ExitCode.USAGE:
        return False
    if sample_at_hand(log_lines):  # which can be left out
        return True
    if code <= 0 or code == STALLED_BY_ITSELF or any(DEAD_WORKER.search(line) for line in log_lines):
        return True
    match = ERROR_LINE.match(error_of(log_lines))
    return match is None or match[1].rpartition(".")[2] not in CANNOT_BE_MENDED


def hopeless(code: int, log_lines: Sequence[str]) -> tuple[int, str] | None:
    """The supervisor's exit code and the reason where a restart cannot help a trainer that ended with `code`."""
    if can_be_mended(code, log_lines):
        return None
    error = error_of(log_lines)
    return (
        ExitCode.USAGE if code == ExitCode.USAGE else ExitCode.FAILED,
        "failed; a restart cannot mend that" + (f": {error}" if error else ""),
    )


def diagnose_exit(code: int, log_lines: Sequence[str]) -> Diagnosis:
    """Why a trainer ended by itself, from its exit code (negative: a signal) and the last lines of its log."""
    starved = [line.strip() for line in log_lines if STARVED_WORKER.search(line)]
    if starved:  # fewer workers need less
        return Diagnosis(StallClass.LOADER_CRASH, starved[-1], moves_down=True)
    dead = [line.strip() for line in log_lines if DEAD_WORKER.search(line)]
    if dead:
        said = dead[-1]
        sentence = said if "DataLoader worker" in said else f"a DataLoader worker has gone: {said}"
        return Diagnosis(StallClass.LOADER_CRASH, sentence)
    if code == 0:
        return Diagnosis(StallClass.UNKNOWN, "the trainer ended without having finished (exit code 0)")
    if code in STOPPED:
        name = signal_name(code - 128)
        return Diagnosis(StallClass.UNKNOWN, f"the trainer was stopped by {name} (exit code {code})")
    if code < 0:
        return Diagnosis(StallClass.UNKNOWN, f"the trainer was ended by {signal_name(-code)}")
    error, sample = error_of(log_lines), sample_at_hand(log_lines)
    sentence = f"the trainer ended with exit code {code}" + (f": {error}" if error else "")
    return Diagnosis(StallClass.UNKNOWN, sentence + (f", at the sample {sample}" if sample else ""), suspect=sample)


def sample_at_hand(log_lines: Sequence[str]) -> str:
    """What names the frame whose reading raised the error that ended the trainer; empty if none did."""
    found = (AT_SAMPLE.match(line.strip()) for line in reversed(log_lines))
    return next((match[1] for match in found if match), "")


def signal_name(number: int) -> str:
    """As in signal(7)."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
