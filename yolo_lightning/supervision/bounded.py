"""A function call with a time limit, in a forked child process that can be abandoned."""

import os
import pickle
import select
import signal
import time
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")
BLOCK_BYTES = 1 << 16
MOST_LEFT = 8
"""Largest number of abandoned children that have not ended; at this number, `bounded` starts no further one."""

_left: set[int] = set()


def bounded(function: Callable[[], Result], timeout_s: float) -> Result | None:
    """Return what `function` returns, or None if it fails or takes longer, or too many earlier children still hang.

    Even reading /proc or a file system can block forever in the kernel, where no signal arrives, and a thread cannot
    be abandoned. This process must have no threads and no GPU context, so that it can fork. The result of `function`
    must be picklable.
    """
    _left.difference_update([child for child in _left if os.waitpid(child, os.WNOHANG)[0]])
    if len(_left) >= MOST_LEFT:
        return None
    end, start = os.pipe()
    child = os.fork()
    if child == 0:
        run_in_child(function, start)
    os.close(start)
    parts: list[bytes] = []
    deadline_s = time.monotonic() + timeout_s
    is_complete = False
    try:
        while (left_s := deadline_s - time.monotonic()) > 0 and select.select([end], [], [], left_s)[0]:
            part = os.read(end, BLOCK_BYTES)
            if not part:
                is_complete = True
                break
            parts.append(part)
    finally:
        os.close(end)
        kill_without_waiting(child)
    return pickle.loads(b"".join(parts)) if is_complete and parts else None


def run_in_child(function: Callable[[], Result], pipe: int) -> None:
    """Send the result of `function`, or nothing if the function fails; never returns."""
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        close_inherited({pipe})
        _left.clear()
        content = pickle.dumps(function())
        with os.fdopen(pipe, "wb") as file:
            file.write(content)
    finally:
        os._exit(0)


def close_inherited(kept: set[int]) -> None:
    """Close all files but `kept` and the standard ones, in a child that may hang forever.

    Such a child must hold neither the lock of a run folder nor a pipe whose end another process waits for.
    """
    begin = 3
    for descriptor in sorted(kept):
        os.closerange(begin, descriptor)
        begin = descriptor + 1
    os.closerange(begin, os.sysconf("SC_OPEN_MAX"))


def kill_without_waiting(child: int) -> None:
    """Kill a child; if it does not end within 0.1 s, a later call of `bounded` reads its exit code."""
    os.kill(child, signal.SIGKILL)
    for _ in range(50):
        if os.waitpid(child, os.WNOHANG)[0]:
            return
        time.sleep(0.002)
    _left.add(child)
