"""Helpers of several scripts: child processes with a log file, Markdown tables, mean, range and interval."""

import os
import statistics
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from math import sqrt
from pathlib import Path

from scipy.stats import t as student  # type: ignore[import-untyped]


def run_logged(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> dict[str, float]:
    """Run a command with further environment variables and its output in `log`; raise SystemExit if it fails.

    Return the processor time of the process in seconds, and its peak memory in MiB.
    """
    print(f"{time.strftime('%H:%M:%S')} running; log in {log}", flush=True)
    with log.open("w") as file:
        process = subprocess.Popen(command, env=os.environ | environment, stdout=file, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"the command ended with exit code {process.returncode}: see {log}")
    return {"seconds": usage.ru_utime + usage.ru_stime, "memory_mib": usage.ru_maxrss / 1024}


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table without a line break at its end."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in lines)


def spread(values: Sequence[float], digits: int) -> str:
    """Return the mean and, of several numbers, the range."""
    mean = f"{statistics.fmean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean of two or more numbers and half of its 95 % confidence interval (Student's t)."""
    half = float(student.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / sqrt(len(values))
    return statistics.fmean(values), half
