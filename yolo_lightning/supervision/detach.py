"""Start of a supervisor in a session of its own, which neither a log-out nor the end of the terminal reaches."""

import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

from yolo_lightning.supervision.heartbeat import Heartbeat, HeartbeatReader, Phase
from yolo_lightning.supervision.job import Job, become_supervisor
from yolo_lightning.supervision.live_heartbeat import heartbeat_of
from yolo_lightning.supervision.supervisor_status import SupervisorStatus
from yolo_lightning.utils.run_files import SUPERVISOR_FILE
from yolo_lightning.utils.stop_signals import Stopped

POLL_S = 0.2
BLOCK_BYTES = 1 << 16


def start_detached(run: Path, job: Job, wait_s: float) -> tuple[int, int | None]:
    """Start the supervisor of a job and show its output until training has begun.

    Later output is in the log of the run folder only. Ctrl-C ends the wait, not the training.

    Args:
        run: Run folder.
        job: Job of the supervisor.
        wait_s: Longest wait for the first batch, seconds.

    Returns:
        The process id of the supervisor, and its exit code if it has ended already.
    """
    job.settings.notify.resolved()  # an error is reported here, not by the child process
    sys.stdout.flush()
    sys.stderr.flush()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        _become_detached(run, job, writing)
    os.close(writing)
    end_s = time.monotonic() + wait_s
    try:
        while time.monotonic() < end_s and not _trains(run, child):
            if select.select([reading], [], [], POLL_S)[0]:
                content = os.read(reading, BLOCK_BYTES)
                os.write(1, content)
                if not content:  # no process holds the other end: the supervisor has ended
                    return child, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    except (KeyboardInterrupt, Stopped):
        pass
    return child, None


def _become_detached(run: Path, job: Job, output: int) -> NoReturn:
    """Replace this child process by the supervisor, with `output` as standard output and error."""
    try:
        os.setsid()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup; the supervisor and the trainer inherit this
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        become_supervisor(run, job)
    finally:
        os._exit(1)


def _trains(run: Path, supervisor: int) -> bool:
    """Return whether the trainer of this supervisor has asked for its first batch."""
    standing = SupervisorStatus.read(run / SUPERVISOR_FILE)
    if standing is None or standing.process != supervisor or not standing.trainer:
        return False
    found = HeartbeatReader(heartbeat_of(run)).read(standing.trainer)
    return isinstance(found, Heartbeat) and found.phase >= Phase.FIRST_BATCH
