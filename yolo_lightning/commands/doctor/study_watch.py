"""Watches one arm of the hang study from outside: its steps, the kernel's counters, and whether it hangs."""

import csv
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TextIO

from yolo_lightning.commands.doctor.study_table import STEP, ArmResult, End
from yolo_lightning.supervision.bounded import bounded
from yolo_lightning.supervision.evidence import kernel_lines
from yolo_lightning.utils import sensors

COUNTERS = re.compile(r"(compact_\w+|thp_collapse_alloc|numa_pte_updates|pswpin|pswpout) (\d+)")
VMSTAT = Path("/proc/vmstat")
GPU_LINES = re.compile(r"amdgpu|kfd", re.I)
LOOK_S = 5.0


@dataclass(frozen=True, slots=True)
class StudyLimits:
    """When to look, and when an arm counts as hung.

    Attributes:
        interval_s: Seconds between two lines of the CSV file.
        start_s: Seconds that the first step may take.
        stall_s: Seconds that every further one may take, a start of workers included.
        poll_s: Seconds between two looks at the steps.
    """

    interval_s: float = 10.0
    start_s: float = 300.0
    stall_s: float = 120.0
    poll_s: float = 0.5


@dataclass(frozen=True, slots=True)
class CounterSample:
    """A line of the CSV file, before the kernel's counters.

    Attributes:
        seconds: Since the arm was started.
        steps: Done so far.
        worker_starts: So far.
        evicted_ms: So far, by the driver; None where it does not count.
        step_p50_ms: Of the steps since the line before; None where there were none.
        step_p99_ms: Likewise.
        gpu_busy_share: Of the busiest AMD GPU, 0 to 1; None where no driver says.
        gpu_memory_bytes: In use, of all AMD GPUs.
        kernel_lines: About amdgpu or kfd, so far.
    """

    seconds: float
    steps: int
    worker_starts: int
    evicted_ms: int | None
    step_p50_ms: float | None
    step_p99_ms: float | None
    gpu_busy_share: float | None
    gpu_memory_bytes: int
    kernel_lines: int


class ArmWatch:
    """One arm.

    Args:
        pid: Process of the arm.
        steps: File that it appends its steps to.
        table: CSV file, empty.
        limits: When to look, and when it counts as hung.
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
        """Watch until the process ends or counts as hung.

        Args:
            poll: Gives its exit code, None while it runs.
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
        """Write a line."""
        now_s = time.monotonic()
        evicted = bounded(lambda: sensors.evicted_ms(self._pid), LOOK_S)
        if evicted is not None:
            self._evicted.append((now_s, evicted))
        lines = new_kernel_lines(self._seen)
        self._seen.update(lines)
        self.kernel_lines += lines
        gpus = bounded(sensors.amd_gpus, LOOK_S) or []
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
        """All of it in one."""
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
    """The steps that an arm has appended to its file.

    Args:
        path: The file; it need not be there yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.all_s: list[float] = []
        self.worker_starts = 0
        self._taken = 0

    @property
    def count(self) -> int:
        """Steps that were read."""
        return len(self.all_s)

    def read(self) -> int:
        """Read what came, and tell how many."""
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
        """Seconds of the steps since this was called before."""
        before, self._taken = self._taken, self.count
        return self.all_s[before:]


def percentiles(times_s: list[float]) -> tuple[float | None, float | None]:
    """Median and 99th percentile, milliseconds; None where there is nothing."""
    if len(times_s) < 2:
        only = round(1000 * times_s[0], 3) if times_s else None
        return only, only
    parts = statistics.quantiles(times_s, n=100, method="inclusive")
    return round(1000 * parts[49], 3), round(1000 * parts[98], 3)


def vmstat(path: Path = VMSTAT) -> dict[str, int]:
    """The counters of what moves pages."""
    found = (COUNTERS.fullmatch(line) for line in sensors.text(path).splitlines())
    return {match[1]: int(match[2]) for match in found if match}


def new_kernel_lines(seen: set[str]) -> list[str]:
    """Lines of the kernel's log about AMD's driver that were not there before."""
    lines = bounded(kernel_lines, LOOK_S) or ()
    return [line for line in lines if GPU_LINES.search(line) and line not in seen]
