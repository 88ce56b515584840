"""The end of a command by an error that the user can mend: one line, without a traceback."""

import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from yolo_lightning.errors import UserError
from yolo_lightning.supervision.failure_record import record_own_failure
from yolo_lightning.utils.addresses import redacted
from yolo_lightning.utils.exit_codes import ExitCode
from yolo_lightning.utils.files import DISK_FULL, with_place
from yolo_lightning.utils.plain_text import printable
from yolo_lightning.utils.stop_signals import request


def fail(message: str, cause: Exception | None = None) -> NoReturn:
    """Print an error of the command line and exit."""
    error = UserError(message)
    error.__cause__ = cause
    record_own_failure(error)
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(ExitCode.USAGE) from cause


@contextmanager
def user_errors() -> Iterator[None]:
    """Print a `UserError`, a refusal of Lightning or a full disk in one line and exit; other errors are raised.

    Once this process has trained a step, a `UserError` is raised, too: the options of a running training are right.

    In a supervised trainer, the failure record of the exception is written, unless `Trainer.fit` has written it.
    A reader that has closed the standard output, such as `head`, ends the command without a message.
    """
    request.deferred = False
    try:
        yield
    except BrokenPipeError:
        if not _is_output_closed():
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # of the flush at the exit
        raise SystemExit(1) from None
    except Exception as error:
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            print(f"error: disk full: {with_place(error)}", file=sys.stderr)
            raise SystemExit(ExitCode.DISK_FULL) from None
        record_own_failure(error)
        is_refusal = type(error).__name__ == "MisconfigurationException"  # without an import of Lightning
        is_mistake = isinstance(error, UserError) and not request.deferred
        if not (is_refusal or is_mistake):
            raise
        fail(redacted(printable(str(error))))


def _is_output_closed() -> bool:
    events = select.poll()
    events.register(sys.stdout, 0)  # errors are always reported
    return bool(events.poll(0))
