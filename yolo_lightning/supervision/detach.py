"""Start of a supervisor in a session of its own, which neither a log-out nor the end of the terminal reaches."""

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from yolo_lightning.supervision.heartbeat import Heartbeat, Phase, read_heartbeat
from yolo_lightning.supervision.job import Job, supervisor_command
from yolo_lightning.supervision.live_heartbeat import heartbeat_of
from yolo_lightning.supervision.run_status import SupervisorStatus
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
    words, environment = supervisor_command(run, job)
    sys.stdout.flush()
    process = subprocess.Popen(
        words,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),  # as nohup; the trainer inherits this, too
    )
    assert process.stdout is not None
    end_s = time.monotonic() + wait_s
    try:
        while time.monotonic() < end_s and not _trains(run, process.pid):
            if select.select([process.stdout], [], [], POLL_S)[0]:
                content = os.read(process.stdout.fileno(), BLOCK_BYTES)
                os.write(1, content)
                if not content:  # no process holds the other end: the supervisor has ended
                    return process.pid, process.wait()
    except (KeyboardInterrupt, Stopped):
        pass
    return process.pid, None


def _trains(run: Path, supervisor: int) -> bool:
    """Return whether the trainer of this supervisor has asked for its first batch."""
    standing = SupervisorStatus.read(run / SUPERVISOR_FILE)
    if standing is None or standing.process != supervisor or not standing.trainer:
        return False
    found = read_heartbeat(heartbeat_of(run), standing.trainer)
    return isinstance(found, Heartbeat) and found.phase >= Phase.FIRST_BATCH
