"""Watches an arm from outside: records its steps and kernel counters in a CSV file, and detects hangs."""

import csv
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np
import numpy.typing as npt

from hang_experiment.arm import STEP
from hang_experiment.conclusion import ArmResult, End
from yolo_lightning.supervision.evidence import kernel_lines
from yolo_lightning.supervision.helper_process import bounded
from yolo_lightning.utils import sensors

COUNTERS = re.compile(r"(compact_\w+|thp_collapse_alloc|numa_pte_updates|pswpin|pswpout) (\d+)")
VMSTAT = Path("/proc/vmstat")
GPU_LINES = re.compile(r"amdgpu|kfd", re.I)
READ_S = 5.0
"""Time limit for the driver and the kernel log, in seconds."""


@dataclass(frozen=True, slots=True)
class StudyLimits:
    """Intervals and time limits of the watch, in seconds."""

    interval_s: float = 10.0  # between two lines of the CSV file
    start_s: float = 300.0  # limit of the first step
    stall_s: float = 120.0  # limit of every further step, with a start of workers
    poll_s: float = 0.5  # between two reads of the steps


class ArmWatch:
    """Watch over the arm with the process id `pid`, which appends its steps to the file `steps`."""

    def __init__(self, pid: int, steps: Path, table: TextIO, limits: StudyLimits) -> None:
        self.limits, self._pid, self._steps, self._file = limits, pid, steps, table
        self.kernel_lines: list[str] = []
        self._seen = set(new_kernel_lines(set()))
        self._table: csv.DictWriter[str] | None = None
        self._began_s = self._last_step_s = time.monotonic()
        self._first_step_s: float | None = None
        self._evicted: list[tuple[float, int]] = []
        self._sampled = 0
        self._stalled_s = 0.0

    def until_end(self, poll: Callable[[], int | None]) -> End:
        """Watch until the process hangs or ends; `poll` returns its exit code, None while it runs."""
        next_s, count = self._began_s, 0
        while True:
            code = poll()
            now_s = time.monotonic()
            if (found := len(read_steps(self._steps))) > count:
                count, self._last_step_s = found, now_s
                self._first_step_s = self._first_step_s or now_s
            limit_s = self.limits.stall_s if count else self.limits.start_s
            hangs = code is None and now_s - self._last_step_s > limit_s
            if now_s >= next_s or hangs or code is not None:
                self.sample()
                next_s = now_s + self.limits.interval_s
            if code is not None:
                return End.CRASH if code or not count else End.COMPLETE
            if hangs:
                self._stalled_s = now_s - self._last_step_s
                return End.HANG
            time.sleep(self.limits.poll_s)

    def sample(self) -> None:
        """Append a line to the CSV file. Totals count from the start of the arm."""
        now_s = time.monotonic()
        evicted = bounded(lambda: sensors.evicted_ms(self._pid), READ_S)
        if evicted is not None:
            self._evicted.append((now_s, evicted))
        self.kernel_lines += (lines := new_kernel_lines(self._seen))
        self._seen.update(lines)
        gpus = bounded(sensors.amd_gpus, READ_S) or []
        steps = read_steps(self._steps)
        p50, p99 = percentiles(steps["seconds"][self._sampled :])
        self._sampled = len(steps)
        row = {
            "seconds": round(now_s - self._began_s, 1),
            "steps": len(steps),
            "worker_starts": worker_starts(steps),
            "evicted_ms": evicted,  # None if the driver does not report it
            "step_p50_ms": p50,  # of the steps since the previous line
            "step_p99_ms": p99,
            "gpu_busy_share": max((gpu.busy_share for gpu in gpus if gpu.busy_share is not None), default=None),
            "gpu_memory_bytes": sum(gpu.memory_used_bytes or 0 for gpu in gpus),
            "kernel_lines": len(self.kernel_lines),
            **vmstat(),
        }
        if self._table is None:
            self._table = csv.DictWriter(self._file, list(row), extrasaction="ignore")
            self._table.writeheader()
        self._table.writerow(row)
        self._file.flush()

    def result(self, arm: str, end: End, detail: str) -> ArmResult:
        """Return the measurements of the whole arm."""
        steps = read_steps(self._steps)
        p50, p99 = percentiles(steps["seconds"])
        values = [value for _, value in self._evicted]
        before = [value for at_s, value in self._evicted if at_s <= self._last_step_s] or values[:1]
        return ArmResult(
            arm=arm,
            end=end,
            seconds=round(self._last_step_s - (self._first_step_s or self._began_s), 1),
            steps=len(steps),
            worker_starts=worker_starts(steps),
            evicted_ms=max(values, default=None),
            stalled_s=round(self._stalled_s, 1),
            stall_evicted_ms=max(values) - before[-1] if values else None,
            step_p50_ms=p50,
            step_p99_ms=p99,
            kernel_lines=len(self.kernel_lines),
            detail=detail,
        )


def read_steps(path: Path) -> npt.NDArray[np.void]:
    """Return the complete steps in a file: `seconds` and `worker_starts`, the number of starts so far."""
    content = path.read_bytes() if path.is_file() else b""
    whole = len(content) // STEP.size
    return np.frombuffer(content, [("seconds", "<f8"), ("worker_starts", "<f8")], whole)


def worker_starts(steps: npt.NDArray[np.void]) -> int:
    return int(steps["worker_starts"][-1]) if len(steps) else 0


def percentiles(times_s: Sequence[float] | npt.NDArray[np.float64]) -> tuple[float | None, float | None]:
    """Return median and 99th percentile in milliseconds; None without values."""
    if not np.size(times_s):
        return None, None
    p50, p99 = np.percentile(times_s, (50, 99)) * 1000
    return round(float(p50), 3), round(float(p99), 3)


def vmstat(path: Path = VMSTAT) -> dict[str, int]:
    """Return the kernel counters of events that move pages."""
    found = (COUNTERS.fullmatch(line) for line in sensors.text(path).splitlines())
    return {match[1]: int(match[2]) for match in found if match}


def new_kernel_lines(seen: set[str]) -> list[str]:
    """Return lines of the kernel log about the AMD driver that are not in `seen`."""
    lines = bounded(kernel_lines, READ_S) or ()
    return [line for line in lines if GPU_LINES.search(line) and line not in seen]
