"""The exception for mistakes of a user, and the log of exceptions that nobody expects."""

import traceback
from contextlib import suppress
from pathlib import Path


class UserError(ValueError):
    """A value, a file or an option of the user cannot be used.

    The message contains the full key, the value, the accepted values and a remedy. The command line prints the message
    in one line, without a traceback. Every other exception is a mistake of this package or a failure of the machine,
    and keeps its traceback.
    """


def log_unexpected(error: Exception, *expected: type[Exception]) -> None:
    """Print the traceback of a handled exception unless its class is expected: it is a mistake of this package.

    For handlers of all exceptions, around calls of libraries whose exceptions have no common class.
    """
    if not isinstance(error, (UserError, *expected)):
        with suppress(OSError, ValueError):  # the standard error output can be closed
            traceback.print_exception(error)


def places(error: BaseException) -> str:
    """Return the functions and lines of a traceback in one line, without any value; the innermost one is the last."""
    frames = traceback.extract_tb(error.__traceback__)
    return " > ".join(f"{frame.name} ({Path(frame.filename).name}:{frame.lineno})" for frame in frames)
