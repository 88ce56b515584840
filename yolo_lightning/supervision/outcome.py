"""Meaning of an exit of the trainer: errors, signals, a full disk."""

import os
import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from yolo_lightning.supervision.classify import DEAD_WORKER, Diagnosis, StallClass, kernel_call, parse_faulthandler
from yolo_lightning.utils.exit_codes import ExitCode, of_signal
from yolo_lightning.utils.run_files import CHECKPOINT_PATTERN, CHECKPOINTS
from yolo_lightning.utils.stop_signals import STOP_SIGNALS

STARVED_WORKER = re.compile(r"Caught MemoryError in DataLoader worker|insufficient shared memory")
AT_SAMPLE = re.compile(r"^while reading image (id=\S+)$")
"""Note that the data room adds to an unexpected error."""

ERROR_LINE = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Warning|Exit))(?::|$)")
AT_EXIT = re.compile(r"^while reading image id=|resource_tracker|\d%\||^wandb: ")
"""Lines after an error that ends a program: the note of the data room, leaked semaphores, a progress bar, a logger."""

PERMANENT_ERRORS = frozenset(
    {
        *("SyntaxError", "IndentationError", "ImportError", "ModuleNotFoundError", "NameError", "AttributeError"),
        *("TypeError", "ValueError", "NotImplementedError", "AssertionError", "KeyError", "IndexError"),
        *("MisconfigurationException", "PermissionError"),
    }
)
"""Errors in the program or in its input. The order of samples is deterministic, so they occur again after a restart."""

NOT_FINITE = re.compile(r"consecutive non-finite values after \d+ rollbacks")
"""Error of the guard against non-finite values (`training/nonfinite.py`) when rollbacks have not helped."""

CLASSES_OF_ERRORS = (
    (StallClass.WRONG_RESULT, re.compile(r"^(\w+\.)*WrongResultError\b")),
    (
        StallClass.OUT_OF_MEMORY,
        re.compile(r"^(\w+\.)*OutOfMemoryError\b|\b(CUDA|HIP|XPU)( error:)? out of memory|STATUS_ALLOC_FAILED", re.I),
    ),
    (
        StallClass.DEVICE_ERROR,
        re.compile(
            r"^(\w+\.)*AcceleratorError\b|\b(CUDA|HIP) (driver )?error\b|\b(hip|cuda|miopen)(Error|Status)[A-Z]\w*"
            r"|\b(CUDNN|CUBLAS|HIPBLAS|ROCBLAS)_STATUS_\w+|\bHSA_STATUS_ERROR|memory access fault by GPU|device lost"
            r"|GPU is lost|(cuDNN|MIOpen|rocBLAS|cuBLAS)\b.* error|ERROR_DEVICE_LOST",
            re.I,
        ),
    ),
)
"""Classes of errors of the computation, by the last error in the output."""

FAULTS = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL})
"""Signals that a program causes itself, possibly while processing certain samples."""

RESERVE_BYTES = 16 << 20
RESERVE_SHARE = 0.05
"""A disk with less free space than both of these is full."""

NO_SPACE = re.compile(r"No space left on device|errno[= ]28\b", re.IGNORECASE)
NO_QUOTA = re.compile(r"Disk quota exceeded", re.IGNORECASE)


def error_of(log_lines: Sequence[str]) -> str:
    """Return the error at the end of the output, or an empty string: other output follows an error that was handled."""
    for line in reversed(log_lines):
        if ERROR_LINE.match(line):
            return line.strip()
        if line.strip() and not line[0].isspace() and not AT_EXIT.search(line):
            return ""
    return ""


def _sample_of_error(log_lines: Sequence[str]) -> str:
    """Return the name of the frame whose reading raised the last error, or an empty string."""
    found = (AT_SAMPLE.match(line.strip()) for line in reversed(log_lines))
    return next((match[1] for match in found if match), "")


def is_recoverable(code: int, log_lines: Sequence[str]) -> bool:
    """Return whether a restart may help after exit code `code`. It may after the death of a worker and a bad sample."""
    if code == ExitCode.USAGE:
        return False
    if _sample_of_error(log_lines) or code <= 0:
        return True
    if any(DEAD_WORKER.search(line) for line in log_lines) or code != ExitCode.FAILED:  # that of an exception
        return True
    match = ERROR_LINE.match(error_of(log_lines))
    return match is None or match[1].rpartition(".")[2] not in PERMANENT_ERRORS


def diagnose_exit(code: int, log_lines: Sequence[str]) -> Diagnosis:
    """Return why a trainer ended, from its exit code (negative for a signal) and the last lines of its log."""
    starved = [line.strip() for line in log_lines if STARVED_WORKER.search(line)]
    if starved:  # fewer workers need less memory
        return Diagnosis(StallClass.LOADER_CRASH, starved[-1], moves_down=True)
    if code < 0:  # its workers then report lost connections
        return _diagnose_signal(-code, log_lines)
    if code in (ExitCode.FAILED, ExitCode.USAGE) and (line := _last(NOT_FINITE.search, log_lines)):
        return Diagnosis(StallClass.NOT_FINITE, f"the trainer ended with exit code {code}: {line}")
    dead = [line.strip() for line in log_lines if DEAD_WORKER.search(line)]
    if dead:
        prefix = "" if "DataLoader worker" in dead[-1] else "a DataLoader worker died: "
        return Diagnosis(StallClass.LOADER_CRASH, prefix + dead[-1])
    if code == 0:
        return Diagnosis(StallClass.UNKNOWN, "the trainer exited before training was finished (exit code 0)")
    if code in map(of_signal, STOP_SIGNALS):
        return Diagnosis(StallClass.UNKNOWN, f"the trainer was stopped by {signal_name(code - 128)} (exit code {code})")
    # Messages of CUDA and HIP have several lines, so that other lines may follow the last error.
    failure = _last(ERROR_LINE.match, log_lines) if code == ExitCode.FAILED else ""
    if kind := next((kind for kind, pattern in CLASSES_OF_ERRORS if pattern.search(failure)), None):
        return Diagnosis(kind, f"the trainer ended with exit code {code}: {failure}")
    error, sample = error_of(log_lines), _sample_of_error(log_lines)
    sentence = f"the trainer ended with exit code {code}" + (f": {error}" if error else "")
    return Diagnosis(StallClass.UNKNOWN, sentence + (f", at the sample {sample}" if sample else ""), suspect=sample)


def _diagnose_signal(number: int, log_lines: Sequence[str]) -> Diagnosis:
    """Return why a signal killed the trainer. ROCm reports a device error and then aborts the process."""
    sentence = f"the trainer was killed by {signal_name(number)}"
    if number not in FAULTS:
        return Diagnosis(StallClass.UNKNOWN, sentence)
    device_error = CLASSES_OF_ERRORS[-1][1]
    if line := _last(device_error.search, log_lines):
        return Diagnosis(StallClass.DEVICE_ERROR, f"{sentence}: {line}")
    call = kernel_call(parse_faulthandler("\n".join(log_lines)))
    return Diagnosis(StallClass.CRASH, sentence + (f" in {call}" if call else ""), in_kernel=call is not None)


def _last(matches: Callable[[str], object], log_lines: Sequence[str]) -> str:
    """Return the last line that `matches`, or an empty string."""
    return next((line.strip() for line in reversed(log_lines) if matches(line)), "")


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@dataclass(frozen=True, slots=True)
class Space:
    """Space of the run folder's file system."""

    free_bytes: int  # available to this user
    total_bytes: int
    checkpoint_bytes: int = 0  # size of the largest checkpoint of the run; 0 without one

    @property
    def reserve_bytes(self) -> int:
        """Free space below which the disk counts as full."""
        return min(RESERVE_BYTES, int(RESERVE_SHARE * self.total_bytes))

    @property
    def needed_bytes(self) -> int:
        """Free space that the next attempt needs: a checkpoint is written before an older one is deleted."""
        return self.reserve_bytes + self.checkpoint_bytes

    @property
    def suffices(self) -> bool:
        return self.free_bytes >= self.needed_bytes

    def __str__(self) -> str:
        return f"{self.free_bytes / 1e6:.1f} MB free, {self.needed_bytes / 1e6:.1f} MB needed"


def space_of(run: Path) -> Space:
    """Return the space of a run folder's file system. May wait for a disk that hangs."""
    status = os.statvfs(run)
    sizes = [path.stat().st_size for path in (run / CHECKPOINTS).glob(CHECKPOINT_PATTERN)]
    return Space(
        free_bytes=status.f_bavail * status.f_frsize,
        total_bytes=status.f_blocks * status.f_frsize,
        checkpoint_bytes=max(sizes, default=0),
    )


def ended_by_full_disk(code: int, log_lines: Sequence[str], space: Space) -> bool:
    """Return whether a trainer ended because the disk of the run folder is full.

    `space` was read after the end. A writer that fails deletes its temporary file, so some space may be free again.
    """
    if any(STARVED_WORKER.search(line) for line in log_lines):  # /dev/shm is full
        return False
    if code == ExitCode.DISK_FULL:
        return True
    if code in (0, ExitCode.USAGE) or (code < 0 and -code != signal.SIGBUS):
        return False
    if any(NO_QUOTA.search(line) for line in log_lines):
        return True
    is_logged = any(NO_SPACE.search(line) for line in log_lines)
    limit_bytes = space.needed_bytes + space.checkpoint_bytes if is_logged else space.reserve_bytes
    return space.free_bytes < limit_bytes
