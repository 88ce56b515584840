"""Failure record: what the trainer knows about an exception, written the moment the exception is raised.

The trainer writes the record beside its heartbeat file, in the memory file system, before anything is torn down: the
disk of the run folder can be full, read-only or hung, and the teardown can hang. The supervisor decides by the record
and copies it into the incident folder. Standard library only.
"""

import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from yolo_lightning.errors import UserError
from yolo_lightning.supervision.heartbeat import (
    HEARTBEAT_VARIABLE,
    HeartbeatWriter,
    open_from_environment,
    records_beside,
)
from yolo_lightning.utils.activity import current
from yolo_lightning.utils.addresses import redacted
from yolo_lightning.utils.distributed import rank_suffix
from yolo_lightning.utils.files import write_json
from yolo_lightning.utils.json_record import converted, read_json
from yolo_lightning.utils.plain_text import one_line, printable

MOST_BYTES = 1 << 20  # of a file that is read
MOST_TRACEBACK_CHARACTERS = 32_000
MOST_NAMES = 64  # base classes, samples
MOST_CAUSES = 8
WORKER_ERRNO = re.compile(r"\[Errno (\d+)\]")
"""Errno in the message of an OSError of a loader worker: torch raises the class again with a message only."""

AT_SAMPLE = re.compile(r"^while reading image (id=\S+)$", re.MULTILINE)
"""Note that `LabelledFrames.read` in the data room adds to an exception that is not about the frame itself."""

TRACEBACK_PLACE = re.compile(r'^\s*File "(.+)", line (\d+), in (.+)$', re.MULTILINE)
REFUSAL = "MisconfigurationException"  # of Lightning, for options that cannot be used


@dataclass(frozen=True, slots=True)
class FailureRecord:
    """An exception that ends the trainer."""

    error: str  # qualified name of the class, such as `torch.OutOfMemoryError`; empty in `NO_FAILURE`
    message: str  # one line
    bases: tuple[str, ...] = ()  # qualified names of the base classes, the nearest first, without `object`
    traceback: str = ""  # several lines, with the exceptions that caused this one
    errno: int | None = None  # of the exception or of the OSError that caused it
    is_user_error: bool = False  # whether the exception, or the refusal of a library, names a mistake of the user
    phase: str = ""  # of the heartbeat, such as `first batch`
    activity: str = ""  # part of the phase, such as `backward`; empty if unknown
    step: int = 0  # batches trained since training began
    samples: tuple[str, ...] = ()  # ids that the exception itself names
    rank: int = 0  # of a distributed fit
    process: int = 0  # id of the process that has written the record; 0 for the output of a program without records
    time: str = ""  # UTC, ISO 8601
    has_trained: bool = False  # whether the run has finished an optimizer step, in this or an earlier attempt

    @property
    def names(self) -> frozenset[str]:
        """Names of the class and of its base classes, without modules."""
        return frozenset(name.rpartition(".")[2] for name in (self.error, *self.bases))

    @property
    def sentence(self) -> str:
        """Class and message in one line."""
        name = self.error.removeprefix("builtins.")
        return f"{name}: {self.message}".removesuffix(": ")

    @property
    def fingerprint(self) -> str:
        """Class and source lines of the traceback: equal for failures of one cause, whatever values they name."""
        places = TRACEBACK_PLACE.findall(self.traceback)
        return " ".join((self.error, *(f"{Path(file).name}:{line}" for file, line, _ in places)))


NO_FAILURE = FailureRecord("", "")
"""In place of the record of a process that has written none."""

WRITE_ATTEMPTS = 3
"""torch raises an exception in whatever line is carried out when a loader worker dies (its handler of SIGCHLD)."""


def failure_path(heartbeat: Path, rank: int = 0) -> Path:
    """Return the path of a rank's failure record beside the heartbeat file of the supervised trainer."""
    return heartbeat.with_name(f"{heartbeat.name}.failure{rank_suffix(rank)}")


def record_own_failure(error: BaseException, *, rank: int | None = None, has_trained: bool = False) -> None:
    """Write the failure record of this process if a supervisor has chosen its heartbeat file.

    Never raises, because the exception itself must be raised. The first record of an attempt remains: a later exception
    follows from the first one or from the teardown.

    Args:
        error: Exception that ends the process.
        rank: Rank in a distributed fit; None reads the variables of the launcher.
        has_trained: Whether this run has finished at least one optimizer step, in this or an earlier attempt. A
            finished step of this process counts.
    """
    heartbeat = os.environ.get(HEARTBEAT_VARIABLE)
    if not heartbeat:
        return
    if rank is None:
        rank = int(os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or 0)
    path = failure_path(Path(heartbeat), rank)
    problem: Exception | None = None
    for _ in range(WRITE_ATTEMPTS):
        try:
            if not path.exists():
                record = record_of(error, open_from_environment())
                record = replace(record, rank=rank, has_trained=has_trained or record.step > 0)
                write_json(path, asdict(record), durable=False)
            return
        except Exception as raised:  # such as no memory, no space, or a message that cannot be formatted
            problem = raised
    print(f"warning: the failure record {path} was not written: {problem!r}", file=sys.stderr)


def samples_of(error: BaseException) -> list[str]:
    """Return the samples that an exception of the data room names in a note, also within the text of a worker's error.

    torch raises the exception of a loader worker again, with the worker's traceback as its message.
    """
    notes = [note for cause in _causes(error) for note in (*getattr(cause, "__notes__", ()), str(cause))]
    return list(dict.fromkeys(AT_SAMPLE.findall("\n".join(notes))))


def read_failure(heartbeat: Path) -> FailureRecord:
    """Return the earliest failure record beside a heartbeat file; `NO_FAILURE` if there is none that can be read.

    The first failure of several ranks is the cause of the others, which lose their connections.
    """
    records = []
    for path in records_beside(heartbeat, "failure"):
        with suppress(OSError, ValueError, TypeError, KeyError):  # incomplete or damaged
            content = read_json(path, MOST_BYTES)
            record: FailureRecord = converted(content, FailureRecord)  # every text as one line
            lines = printable(content["traceback"])[:MOST_TRACEBACK_CHARACTERS]
            records.append(replace(record, traceback=lines))
    return min(records, key=lambda record: record.time, default=NO_FAILURE)


def record_of(error: BaseException, writer: HeartbeatWriter | None = None) -> FailureRecord:
    """Return the record of an exception of this process, with the position in `writer`."""
    record = FailureRecord(
        error=_qualified(type(error)),
        bases=tuple(_qualified(base) for base in type(error).__mro__[1:-1][:MOST_NAMES]),
        message=redacted(one_line(str(error))),
        traceback=redacted(_shortened("".join(traceback.format_exception(error)))),
        errno=_errno_of(error),
        is_user_error=isinstance(error, UserError) or type(error).__name__ == REFUSAL,
        activity=current().label,
        samples=tuple(samples_of(error)[:MOST_NAMES]),
        process=os.getpid(),
        time=datetime.now(UTC).isoformat(),
    )
    if writer is None:
        return record
    return replace(record, phase=writer.phase.label, step=writer.step)


def _qualified(error_class: type) -> str:
    return f"{error_class.__module__}.{error_class.__qualname__}"


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception, the members of a group, and the exceptions that these were raised from, the nearest first."""
    waiting = [error]
    for number, cause in enumerate(waiting):
        if number == MOST_CAUSES:
            return
        yield cause
        if cause.__cause__ is not None:
            waiting.append(cause.__cause__)
        if isinstance(cause, BaseExceptionGroup):
            waiting += cause.exceptions


def _errno_of(error: BaseException) -> int | None:
    """Return the errno of an exception, or of the OSError that caused it."""
    for cause in _causes(error):
        if isinstance(cause, OSError):
            match = WORKER_ERRNO.search(str(cause))
            if cause.errno is None and match is not None:
                return int(match[1])
            return cause.errno
    return None


def _shortened(lines: str) -> str:
    """Return a traceback without its middle part if it is longer than the limit."""
    if len(lines) <= MOST_TRACEBACK_CHARACTERS:
        return lines
    half = MOST_TRACEBACK_CHARACTERS // 2
    return f"{lines[: half - 5]}\n...\n{lines[-half:]}"
