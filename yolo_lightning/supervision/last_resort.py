"""Kills a training process whose interpreter lock is held forever, from a small child process.

The child process runs this file with the standard library alone. It counts its own waits of `TICK_S`: a wait during
which both processes were suspended counts as one, and a wait while only the training process is stopped does not count.
A timer inside the training process would count that time and end the process when it resumes.
"""

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

TICK_S = 0.5
WRITE_STACKS_S = 2.0
"""Time for the training process to write its stacks before it is killed."""


class LastResort:
    """Kills the calling process if `still_running` is not called within the time limit of the previous call.

    Args:
        limit_s: Time limit of the first call, seconds, without time in which the process is suspended.
        stacks_signal: Signal upon which the calling process writes its stacks.
    """

    def __init__(self, limit_s: float, stacks_signal: int) -> None:
        words = [str(os.getpid()), str(limit_s), str(int(stacks_signal))]
        self._child = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, *words], stdin=subprocess.PIPE, start_new_session=True
        )
        assert self._child.stdin is not None
        self._pipe = self._child.stdin.fileno()
        os.set_blocking(self._pipe, False)

    def still_running(self, limit_s: float) -> None:
        """Restart the wait; the next call must follow within `limit_s` seconds."""
        try:
            os.write(self._pipe, f"{limit_s}\n".encode())
        except OSError:  # the pipe is full, so that the child has something to read; or the child was killed
            return

    def close(self) -> None:
        """End the child process."""
        self._child.kill()
        self._child.communicate()


def watch(process: int, limit_s: float, stacks_signal: int) -> None:
    """Read time limits from the standard input, and kill `process` if none arrives in time.

    Return when the process, which is the parent of this one, has ended: its id may soon belong to another process.
    """
    ticks = 0
    while ticks * TICK_S < limit_s:
        if os.getppid() != process:
            return
        if select.select([0], [], [], TICK_S)[0]:
            limits = os.read(0, 1 << 16).split()
            if not limits:
                return
            ticks, limit_s = 0, float(limits[-1])
        elif not is_stopped(process):
            ticks += 1
    os.kill(process, stacks_signal)
    time.sleep(WRITE_STACKS_S)
    os.kill(process, signal.SIGKILL)


def is_stopped(process: int) -> bool:
    """Return whether a process is stopped or traced; False without /proc."""
    try:
        state = Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state in "Tt"


if __name__ == "__main__":
    watch(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
