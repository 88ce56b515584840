"""Operations that a child process names on stderr before they begin, which shows where the process hung or crashed."""

import sys
from collections.abc import Iterable

PREFIX = "probe: "


def announce(operation: str) -> None:
    """Name the next operation for the parent process."""
    print(f"{PREFIX}{operation}", file=sys.stderr, flush=True)


def last_operation(lines: Iterable[str]) -> tuple[str, list[str]]:
    """Return the last named operation, empty if there is none, and the lines that name no operation."""
    operation = ""
    messages = []
    for line in lines:
        if line.startswith(PREFIX):
            operation = line.removeprefix(PREFIX)
        else:
            messages.append(line)
    return operation, messages
