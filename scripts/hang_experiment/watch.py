"""Watches an arm from outside: records its steps and kernel counters in a CSV file, and detects hangs."""

import csv
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TextIO

from hang_experiment.arm import STEP
from hang_experiment.conclusion import ArmResult, End
from yolo_lightning.supervision.bounded import bounded
from yolo_lightning.supervision.evidence import kernel_lines
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


@dataclass(frozen=True, slots=True)
class CounterSample:
    """A line of the CSV file, without the counters of /proc/vmstat."""

    seconds: float  # since the start of the arm
    steps: int  # total so far
    worker_starts: int  # total so far
    evicted_ms: int | None  # total so far; None if the driver does not report it
    step_p50_ms: float | None  # of the steps since the previous line; None without steps
    step_p99_ms: float | None
    gpu_busy_share: float | None  # of the busiest AMD GPU, 0 to 1; None if no driver reports it
    gpu_memory_bytes: int  # memory in use, summed over AMD GPUs
    kernel_lines: int  # about amdgpu or kfd, total so far


class ArmWatch:
    """Watch over one arm.

    Args:
        pid: Process id of the arm.
        steps: File to which the arm appends its steps.
        table: Empty CSV file.
        limits: Intervals and time limits.
    """

    def __init__(self, pid: int, steps: Path, table: TextIO, limits: StudyLimits) -> None:
        self.limits = limits
        self.kernel_lines: list[str] = []
        self._pid = pid
        self._steps = Steps(steps)
        self._file = table
        self._seen = set(new_kernel_lines(set()))
        names = [field.name for field in fields(CounterSample)]
        self._table = csv.DictWriter(table, [*names, *vmstat()], extrasaction="ignore")
        self._table.writeheader()
        self._began_s = self._last_step_s = time.monotonic()
        self._first_step_s: float | None = None
        self._evicted: list[tuple[float, int]] = []
        self._stalled_s = 0.0

    def until_end(self, poll: Callable[[], int | None]) -> End:
        """Watch until the process ends or hangs.

        Args:
            poll: Returns the exit code of the process, None while it runs.
        """
        next_s = self._began_s
        while True:
            code = poll()
            now_s = time.monotonic()
            if self._steps.read():
                self._last_step_s = now_s
                self._first_step_s = now_s if self._first_step_s is None else self._first_step_s
            limit_s = self.limits.stall_s if self._steps.count else self.limits.start_s
            hangs = code is None and now_s - self._last_step_s > limit_s
            if now_s >= next_s or hangs or code is not None:
                self.sample()
                next_s = now_s + self.limits.interval_s
            if code is not None:
                return End.CRASH if code or not self._steps.count else End.COMPLETE
            if hangs:
                self._stalled_s = now_s - self._last_step_s
                return End.HANG
            time.sleep(self.limits.poll_s)

    def sample(self) -> None:
        """Append a line to the CSV file."""
        now_s = time.monotonic()
        evicted = bounded(lambda: sensors.evicted_ms(self._pid), READ_S)
        if evicted is not None:
            self._evicted.append((now_s, evicted))
        lines = new_kernel_lines(self._seen)
        self._seen.update(lines)
        self.kernel_lines += lines
        gpus = bounded(sensors.amd_gpus, READ_S) or []
        p50, p99 = percentiles(self._steps.take())
        line = CounterSample(
            seconds=round(now_s - self._began_s, 1),
            steps=self._steps.count,
            worker_starts=self._steps.worker_starts,
            evicted_ms=evicted,
            step_p50_ms=p50,
            step_p99_ms=p99,
            gpu_busy_share=max((gpu.busy_share for gpu in gpus if gpu.busy_share is not None), default=None),
            gpu_memory_bytes=sum(gpu.memory_used_bytes or 0 for gpu in gpus),
            kernel_lines=len(self.kernel_lines),
        )
        self._table.writerow(asdict(line) | vmstat())
        self._file.flush()

    def result(self, arm: str, end: End, detail: str) -> ArmResult:
        """Return the measurements of the whole arm."""
        p50, p99 = percentiles(self._steps.all_s)
        began_s = self._began_s if self._first_step_s is None else self._first_step_s
        before = [value for at_s, value in self._evicted if at_s <= self._last_step_s] or self._values()[:1]
        return ArmResult(
            arm=arm,
            end=end,
            seconds=round(self._last_step_s - began_s, 1),
            steps=self._steps.count,
            worker_starts=self._steps.worker_starts,
            evicted_ms=max(self._values()) if self._evicted else None,
            stalled_s=round(self._stalled_s, 1),
            stall_evicted_ms=max(self._values()) - before[-1] if self._evicted else None,
            step_p50_ms=p50,
            step_p99_ms=p99,
            kernel_lines=len(self.kernel_lines),
            detail=detail,
        )

    def _values(self) -> list[int]:
        return [value for _, value in self._evicted]


class Steps:
    """Reader of the steps that an arm appends to a file, which need not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.all_s: list[float] = []
        self.worker_starts = 0
        self._taken = 0

    @property
    def count(self) -> int:
        """Number of steps read so far."""
        return len(self.all_s)

    def read(self) -> int:
        """Read the new complete steps and return their number."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.count * STEP.size)
                content = file.read()
        except FileNotFoundError:
            return 0
        whole = len(content) // STEP.size
        for duration_s, starts in STEP.iter_unpack(content[: whole * STEP.size]):
            self.all_s.append(duration_s)
            self.worker_starts = int(starts)
        return whole

    def take(self) -> list[float]:
        """Return the durations in seconds of the steps since the previous call."""
        before, self._taken = self._taken, self.count
        return self.all_s[before:]


def percentiles(times_s: list[float]) -> tuple[float | None, float | None]:
    """Return median and 99th percentile in milliseconds; None without values."""
    if len(times_s) < 2:
        only = round(1000 * times_s[0], 3) if times_s else None
        return only, only
    parts = statistics.quantiles(times_s, n=100, method="inclusive")
    return round(1000 * parts[49], 3), round(1000 * parts[98], 3)


def vmstat(path: Path = VMSTAT) -> dict[str, int]:
    """Return the kernel counters of events that move pages."""
    found = (COUNTERS.fullmatch(line) for line in sensors.text(path).splitlines())
    return {match[1]: int(match[2]) for match in found if match}


def new_kernel_lines(seen: set[str]) -> list[str]:
    """Return lines of the kernel log about the AMD driver that are not in `seen`."""
    lines = bounded(kernel_lines, READ_S) or ()
    return [line for line in lines if GPU_LINES.search(line) and line not in seen]
