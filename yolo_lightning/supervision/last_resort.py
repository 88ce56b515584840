"""Ends a training process whose interpreter lock is held for ever, from a small process beside it.

The small process runs this file with the standard library alone. It counts its own waits of `TICK_S`: a wait in which
both processes were suspended counts as one, however long it took, and no wait counts while the training process alone
is stopped. A timer inside the training process counts that time too, and ends the process when it resumes.
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
"""Time that the training process gets to write its stacks before it is killed."""

STOPPED = frozenset("Tt")


class LastResort:
    """Ends the calling process if `still_running` is not called for the time that the last call has granted.

    Args:
        limit_s: Seconds granted until the first call, not counting those in which the process is suspended.
        stacks_signal: Signal upon which the calling process writes its stacks.
    """

    def __init__(self, limit_s: float, stacks_signal: int) -> None:
        words = [str(os.getpid()), str(limit_s), str(int(stacks_signal))]
        self._child = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, *words], stdin=subprocess.PIPE, start_new_session=True
        )
        assert self._child.stdin is not None
        self._pulse = self._child.stdin.fileno()
        os.set_blocking(self._pulse, False)

    def still_running(self, limit_s: float) -> None:
        """Restart the wait, and grant `limit_s` seconds until the next call."""
        try:
            os.write(self._pulse, f"{limit_s}\n".encode())
        except OSError:  # the pipe is full, so that the child has something to read; or the child was killed
            return

    def close(self) -> None:
        """End the child."""
        self._child.kill()
        self._child.communicate()


def watch(process: int, limit_s: float, stacks_signal: int) -> None:
    """Wait for pulses on the standard input, and kill `process` if none comes in time. A pulse is a new `limit_s`.

    The wait ends when the process, which is the parent of this one, has ended: its id may soon be that of another.
    """
    ticks = 0
    while ticks * TICK_S < limit_s:
        if os.getppid() != process:
            return
        if select.select([0], [], [], TICK_S)[0]:
            pulses = os.read(0, 1 << 16).split()
            if not pulses:
                return
            ticks, limit_s = 0, float(pulses[-1])
        elif state_of(process) not in STOPPED:
            ticks += 1
    os.kill(process, stacks_signal)
    time.sleep(WRITE_STACKS_S)
    os.kill(process, signal.SIGKILL)


def state_of(process: int) -> str:
    """Return the letter by which the kernel describes the state of a process; empty where there is no /proc."""
    try:
        return Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


if __name__ == "__main__":
    watch(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
