"""Meaning of an exit of the trainer."""

import re
import signal
from collections.abc import Sequence

from yolo_lightning.supervision.classify import DEAD_WORKER, Diagnosis, StallClass
from yolo_lightning.utils.exit_codes import ExitCode, of_signal
from yolo_lightning.utils.stop_signals import STOP_SIGNALS

STARVED_WORKER = re.compile(r"Caught MemoryError in DataLoader worker|insufficient shared memory")
AT_SAMPLE = re.compile(r"^while reading image (id=\S+)$")
"""Note that the data room adds to an unexpected error."""

ERROR_LINE = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Warning|Exit))(?::|$)")
PERMANENT_ERRORS = frozenset(
    {
        *("SyntaxError", "IndentationError", "ImportError", "ModuleNotFoundError", "NameError", "AttributeError"),
        *("TypeError", "ValueError", "NotImplementedError", "AssertionError", "KeyError", "IndexError"),
        *("MisconfigurationException", "PermissionError"),
    }
)
"""Errors in the program or in its input. The order of samples is deterministic, so they occur again after a restart."""

FAULTS = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL})
"""Signals that a program causes itself, possibly while processing certain samples."""


def error_of(log_lines: Sequence[str]) -> str:
    """Return the last line that names an exception, or an empty string."""
    return next((line.strip() for line in reversed(log_lines) if ERROR_LINE.match(line)), "")


def sample_of_error(log_lines: Sequence[str]) -> str:
    """Return the name of the frame whose reading raised the last error, or an empty string."""
    found = (AT_SAMPLE.match(line.strip()) for line in reversed(log_lines))
    return next((match[1] for match in found if match), "")


def is_recoverable(code: int, log_lines: Sequence[str]) -> bool:
    """Return whether a restart may help after exit code `code`. It may after the death of a worker and a bad sample."""
    if code == ExitCode.USAGE:
        return False
    if sample_of_error(log_lines) or code <= 0 or code == ExitCode.STALLED:
        return True
    if any(DEAD_WORKER.search(line) for line in log_lines):
        return True
    match = ERROR_LINE.match(error_of(log_lines))
    return match is None or match[1].rpartition(".")[2] not in PERMANENT_ERRORS


def diagnose_exit(code: int, log_lines: Sequence[str]) -> Diagnosis:
    """Return why a trainer ended, from its exit code (negative for a signal) and the last lines of its log."""
    starved = [line.strip() for line in log_lines if STARVED_WORKER.search(line)]
    if starved:  # fewer workers need less memory
        return Diagnosis(StallClass.LOADER_CRASH, starved[-1], moves_down=True)
    dead = [line.strip() for line in log_lines if DEAD_WORKER.search(line)]
    if dead:
        prefix = "" if "DataLoader worker" in dead[-1] else "a DataLoader worker died: "
        return Diagnosis(StallClass.LOADER_CRASH, prefix + dead[-1])
    if code == 0:
        return Diagnosis(StallClass.UNKNOWN, "the trainer exited before training was finished (exit code 0)")
    if code in map(of_signal, STOP_SIGNALS):
        return Diagnosis(StallClass.UNKNOWN, f"the trainer was stopped by {signal_name(code - 128)} (exit code {code})")
    if code < 0:
        return Diagnosis(StallClass.UNKNOWN, f"the trainer was killed by {signal_name(-code)}")
    error, sample = error_of(log_lines), sample_of_error(log_lines)
    sentence = f"the trainer ended with exit code {code}" + (f": {error}" if error else "")
    return Diagnosis(StallClass.UNKNOWN, sentence + (f", at the sample {sample}" if sample else ""), suspect=sample)


def signal_name(number: int) -> str:
    """Return the name of a signal, such as SIGTERM."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
