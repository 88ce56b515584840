"""What cannot be had for real, put before the product by `PYTHONPATH`: Python runs this file when it starts.

`FAULTS_UNKILLABLE`: SIGKILL does nothing to the process whose id stands in the named file, as to one that waits in a
broken driver. `FAULTS_CLOCK`: the wall clock is off by the seconds that stand in the named file.
"""

import os
import signal
import time
from pathlib import Path


def number_in(path: str) -> float:
    """The number in a file; 0 while there is none."""
    try:
        return float(Path(path).read_text())
    except (OSError, ValueError):
        return 0.0


unkillable = os.environ.get("FAULTS_UNKILLABLE", "")
clock = os.environ.get("FAULTS_CLOCK", "")
kill, now_s = os.kill, time.time


def kill_most(process: int, number: int) -> None:
    """Signal a process, except the one that cannot be killed."""
    if number != signal.SIGKILL or process != number_in(unkillable):
        kill(process, number)


def wrong_time_s() -> float:
    """The wall clock, set."""
    return now_s() + number_in(clock)


if unkillable:
    os.kill = kill_most
if clock:
    time.time = wrong_time_s
