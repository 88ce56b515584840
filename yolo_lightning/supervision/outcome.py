"""Meaning of an exit of the trainer without a failure record, from its exit code and its output; space of the disk."""

import builtins
import errno
import os
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from yolo_lightning.supervision.failure_record import AT_SAMPLE, NO_FAILURE, WORKER_ERRNO, FailureRecord
from yolo_lightning.supervision.next_action import DEAD_WORKER, DEVICE_FAILURE, FAULTS, STARVED_WORKER
from yolo_lightning.utils.exit_codes import ExitCode, of_signal
from yolo_lightning.utils.files import DISK_FULL
from yolo_lightning.utils.plain_text import one_line
from yolo_lightning.utils.run_files import CHECKPOINT_PATTERN, CHECKPOINTS
from yolo_lightning.utils.stop_signals import STOP_SIGNALS, signal_name

ERROR_LINE = re.compile(
    r"^([A-Za-z_][\w.]*(?:Error|Exception|ExceptionGroup|Interrupt|Warning|Exit)|Exception(?:Group)?)(?:: |:?$)(.*)"
)
OPEN_LINE = re.compile(r":\s*$")
"""First line of a message that continues on the next line: 20 lines of advice follow NumPy's `ImportError: `."""

MARGIN = re.compile(r"^\s*[|+][\s|+-]*")  # of the lines of an exception group
END_OF_GROUP = re.compile(r"^\s+\+-+$")
AT_EXIT = re.compile(r"^while reading image id=|resource_tracker|\d%\||^wandb: ")
"""Lines after an error that ends a program: the note of the data room, leaked semaphores, a progress bar, a logger."""

TRACEBACK = "Traceback (most recent call last):"
GROUP_TRACEBACK = "  + Exception Group Traceback (most recent call last):"
USAGE_LINE = "error: "
RESERVE_BYTES = 16 << 20
RESERVE_SHARE = 0.05
"""A disk with less free space than both of these is full."""


def record_of_output(code: int, lines: Sequence[str]) -> FailureRecord:
    """Return what the last lines of the output say about the error that ended a program, or `NO_FAILURE`.

    `code` is the exit code, negative for a signal. An exit code that a program has chosen says nothing about errors in
    its output; neither does an error that other output follows, because the program has handled it.
    """
    signs = [STARVED_WORKER]  # fewer workers need less memory
    if -code in FAULTS:
        signs.append(DEVICE_FAILURE)  # ROCm reports an error and aborts the process
    if code >= 0:  # the workers of a killed program report lost connections
        signs.append(DEAD_WORKER)
    for sign in signs:
        line = _last(sign, lines)
        if line:
            return FailureRecord("RuntimeError", line)
    if code == ExitCode.USAGE:
        usage = next((line for line in reversed(lines) if line.startswith(USAGE_LINE)), USAGE_LINE)
        return FailureRecord("UserError", usage.removeprefix(USAGE_LINE), is_user_error=True)
    if code != ExitCode.FAILED:
        return NO_FAILURE
    device_error = _last(ERROR_LINE, lines)
    if DEVICE_FAILURE.search(device_error):  # messages of CUDA and HIP have several lines
        return _record_of_error([device_error], lines)
    error = error_of(lines)
    if not error:
        return NO_FAILURE
    return _record_of_error(error, lines)


def _record_of_error(error: Sequence[str], lines: Sequence[str]) -> FailureRecord:
    """Return the record of an error; a group has the classes of its members, too, because each of them ends it."""
    matches = [match for match in map(ERROR_LINE.match, error) if match is not None]
    name = matches[0][1]
    classes = [name]
    separator = " "
    if name.endswith("ExceptionGroup"):
        classes = [match[1] for match in matches]
        separator = "; "
    parts = [part.strip() for part in (matches[0][2], *error[1:])]
    message = one_line(separator.join(filter(None, parts)))
    number = WORKER_ERRNO.search(message)
    begin = max((at for at, line in enumerate(lines) if line in (TRACEBACK, GROUP_TRACEBACK)), default=0)
    samples = AT_SAMPLE.findall("\n".join(lines))
    return FailureRecord(
        name,
        message,
        tuple(base for name in classes for base in _classes_of(name)),
        "\n".join(lines[begin:]),
        errno=int(number[1]) if number else None,
        samples=tuple(samples[-1:]),
    )


def _classes_of(name: str) -> tuple[str, ...]:
    """Return the name of a class and, for a class of Python, those of its base classes."""
    builtin = getattr(builtins, name, None)
    if not isinstance(builtin, type):
        return (name,)
    return tuple(base.__name__ for base in builtin.__mro__)


def _last(pattern: re.Pattern[str], lines: Sequence[str]) -> str:
    """Return the last line that matches, or an empty string."""
    return next((line.strip() for line in reversed(lines) if pattern.search(line)), "")


def error_of(lines: Sequence[str]) -> list[str]:
    """Return the error at the end of the output, one line of its message an item; empty if there is none.

    Other output follows an error that was handled. A message of several lines has indented lines, or a first line that
    is empty or ends with a colon; without either, nothing distinguishes the message from other output.
    """
    lines = [line for line in lines if line.strip() and not AT_EXIT.search(line)]
    if lines and END_OF_GROUP.match(lines[-1]):
        return _group_of(lines)
    has_output = False
    for position in reversed(range(len(lines))):
        line = lines[position]
        if ERROR_LINE.match(line) and (not has_output or OPEN_LINE.search(line)):
            return lines[position:]
        if line == TRACEBACK:
            return []
        has_output = has_output or not line[0].isspace()
    return []


def _group_of(lines: Sequence[str]) -> list[str]:
    """Return the errors of the exception group that ends the output, the group itself first."""
    begin = max((at for at, line in enumerate(lines) if line == GROUP_TRACEBACK), default=0)
    without_margin = [MARGIN.sub("", line) for line in lines[begin:]]
    return [line for line in without_margin if ERROR_LINE.match(line)]


def describe_exit(code: int | None, record: FailureRecord, *, has_started: bool) -> str:
    """Return how a trainer ended as a sentence; `code` is None after an error of the supervisor itself."""
    if code is None and has_started:
        sentence = "the supervisor could not watch the trainer and has ended it"
    elif code is None:
        sentence = "the trainer could not be started"
    elif code < 0:
        sentence = f"the trainer was killed by {signal_name(-code)}"
    elif code in map(of_signal, STOP_SIGNALS):
        sentence = f"the trainer was stopped by {signal_name(code - 128)} (exit code {code})"
    elif code == ExitCode.FINISHED:
        sentence = "the trainer exited before training was finished (exit code 0)"
    else:
        sentence = f"the trainer ended with exit code {code}"
    if record.error:
        sentence += f": {record.sentence}"
    if record.samples:
        sentence += f", at the sample {', '.join(record.samples)}"
    return sentence


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


def space_of(run: Path) -> Space:
    """Return the space of a run folder's file system. May wait for a disk that hangs."""
    status = os.statvfs(run)
    sizes = [path.stat().st_size for path in (run / CHECKPOINTS).glob(CHECKPOINT_PATTERN)]
    has_inodes = status.f_favail > 0 or not status.f_files  # some file systems do not count them
    return Space(
        free_bytes=status.f_bavail * status.f_frsize if has_inodes else 0,
        total_bytes=status.f_blocks * status.f_frsize,
        checkpoint_bytes=max(sizes, default=0),
    )


def has_space(run: Path) -> bool:
    """Return whether the next attempt can write its files into a run folder."""
    return space_of(run).suffices


def is_full(code: int | None, record: FailureRecord, space: Space) -> bool:
    """Return whether the trainer ended, or could not start, because the disk of the run folder is full.

    `space` was read after the end. A writer that fails deletes its temporary file, so some space may be free again.
    """
    if code == ExitCode.DISK_FULL or record.errno == errno.EDQUOT:
        return True
    if record.errno in DISK_FULL:  # possibly of another disk, or of /dev/shm
        return space.free_bytes < space.needed_bytes + space.checkpoint_bytes
    is_error = code is None or code > ExitCode.USAGE or code in (ExitCode.FAILED, -signal.SIGBUS)
    return not record.error and is_error and space.free_bytes < space.reserve_bytes
