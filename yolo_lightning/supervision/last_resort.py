"""Ends a training process whose interpreter lock is never released, from a small process beside it.

The small process counts its own waits of `TICK_S`: a wait in which both processes were suspended counts as one, however
long it took, and no wait counts while the training process alone is stopped. A timer inside the training process counts
that time too, and ends the process when it resumes.
"""

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from yolo_lightning.supervision.heartbeat import STACKS_SIGNAL
from yolo_lightning.supervision.processes import STOPPED
from yolo_lightning.utils.process_identity import read_process
from yolo_lightning.utils.run_files import STACKS_FILE, incident_folder, incident_names, stacks_path

TICK_S = 0.5
WRITE_STACKS_S = 2.0
"""Time for the training process to write its stacks before it is killed."""

START = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from yolo_lightning.supervision.last_resort import main; main()"
)


class LastResort:
    """Ends the calling process if `still_running` is not called within the time granted by the last call.

    `limit_s` seconds are granted until the first call, without the time in which the process is suspended. An incident
    with the stacks is stored in the run folder `run`, under a name with `suffix`. `heartbeat` is the heartbeat file of
    the calling process, whose writer must have called `arm_stacks`.
    """

    def __init__(self, limit_s: float, run: Path, heartbeat: Path, suffix: str = "") -> None:
        root = Path(__file__).resolve().parents[2]
        words = [str(root), str(os.getpid()), str(limit_s), str(run.absolute()), str(heartbeat.absolute()), suffix]
        self._child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", START, *words], stdin=subprocess.PIPE, start_new_session=True
        )
        assert self._child.stdin is not None
        self._pulse = self._child.stdin.fileno()
        os.set_blocking(self._pulse, False)

    def still_running(self, limit_s: float) -> None:
        """Restart the wait, and grant `limit_s` seconds until the next call."""
        try:
            os.write(self._pulse, f"{limit_s}\n".encode())
        except OSError:  # the pipe is full, so that the child has data to read; or the child was killed
            return

    def close(self) -> None:
        """End the child."""
        self._child.kill()
        self._child.communicate()


def _pulses_stop(process: int, limit_s: float) -> bool:
    """Read pulses from the standard input until no pulse arrives in time. A pulse is a new `limit_s`.

    Returns:
        False if the process, the parent of this one, has ended: its id can then belong to a new process.
    """
    ticks = 0
    while ticks * TICK_S < limit_s:
        if os.getppid() != process:
            return False
        if select.select([0], [], [], TICK_S)[0]:
            pulses = os.read(0, 1 << 16).split()
            if not pulses:
                return False
            ticks, limit_s = 0, float(pulses[-1])
        else:
            found = read_process(process)
            ticks += found is None or found.state not in STOPPED
    return True


def main() -> None:
    """Watch the process of the command line; kill it and store its stacks if the pulses stop."""
    process, limit_s, run, heartbeat, suffix = sys.argv[1:]
    if not _pulses_stop(int(process), float(limit_s)):
        return
    os.kill(int(process), STACKS_SIGNAL)
    time.sleep(WRITE_STACKS_S)
    os.kill(int(process), signal.SIGKILL)
    with suppress(OSError):
        folder = incident_folder(Path(run), incident_names(Path(run)), suffix)
        folder.mkdir(parents=True)
        shutil.move(stacks_path(Path(heartbeat)), folder / STACKS_FILE)
