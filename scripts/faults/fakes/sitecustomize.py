"""Simulated faults. Python imports this file at its start, because the folder is in `PYTHONPATH`.

`FAULTS_UNKILLABLE`: SIGKILL does not end the process whose id is in the named file, as if it waited in a broken driver.
`FAULTS_CLOCK`: the wall clock is wrong by the seconds in the named file.
"""

import os
import signal
import time
from pathlib import Path


def _number_in(path: str) -> float:
    """Return the number in a file, 0 without a file."""
    try:
        return float(Path(path).read_text())
    except (OSError, ValueError):
        return 0.0


unkillable = os.environ.get("FAULTS_UNKILLABLE", "")
clock = os.environ.get("FAULTS_CLOCK", "")
kill, now_s = os.kill, time.time


def _kill_most(process: int, number: int) -> None:
    if number != signal.SIGKILL or process != _number_in(unkillable):
        kill(process, number)


def _wrong_time_s() -> float:
    return now_s() + _number_in(clock)


if unkillable:
    os.kill = _kill_most
if clock:
    time.time = _wrong_time_s
