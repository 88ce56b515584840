"""Work that may never return, done in a child that can be left behind."""

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
"""Children that were left behind and have not ended yet, at most; with so many, `bounded` starts no further one."""

_left: set[int] = set()


def bounded(function: Callable[[], Result], timeout_s: float) -> Result | None:
    """What `function` returns, or None if it fails or takes longer, or too many earlier children still hang.

    Even a look into /proc or at a file system can wait for ever in the kernel, where no signal reaches it and a thread
    could not be left alone. The supervisor has no threads and no GPU, so a plain fork is safe here, and cheap.

    Args:
        function: Called in a child; what it returns must pickle.
        timeout_s: Seconds it may take.
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
    whole = False
    try:
        while (left_s := deadline_s - time.monotonic()) > 0 and select.select([end], [], [], left_s)[0]:
            part = os.read(end, BLOCK_BYTES)
            if not part:
                whole = True
                break
            parts.append(part)
    finally:
        os.close(end)
        leave(child)
    if not whole or not parts:
        return None
    succeeded, result = pickle.loads(b"".join(parts))
    return result if succeeded else None


def run_in_child(function: Callable[[], Result], pipe: int) -> None:
    """Send what `function` returns; never comes back."""
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        close_inherited({pipe})
        _left.clear()
        try:
            content = pickle.dumps((True, function()))
        except Exception as error:
            content = pickle.dumps((False, repr(error)))
        with os.fdopen(pipe, "wb") as file:
            file.write(content)
    finally:
        os._exit(0)


def close_inherited(kept: set[int]) -> None:
    """Close all files but `kept` and the standard ones, in a child that hangs perhaps for ever.

    Such a child must not hold the lock of a run folder, nor a pipe whose end somebody waits for.
    """
    begin = 3
    for descriptor in sorted(kept):
        os.closerange(begin, descriptor)
        begin = descriptor + 1
    os.closerange(begin, os.sysconf("SC_OPEN_MAX"))


def leave(child: int) -> None:
    """End it, and do not wait if it cannot be ended; a later call of `bounded` asks for its exit code."""
    os.kill(child, signal.SIGKILL)
    for _ in range(50):
        if os.waitpid(child, os.WNOHANG)[0]:
            return
        time.sleep(0.002)
    _left.add(child)
