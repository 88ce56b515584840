"""The curves of `metrics.csv`."""

import csv
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
FIXED_COLUMNS = ("epoch", "step", "time_s")


@dataclass(frozen=True, slots=True)
class Series:
    """One curve of N points.

    Attributes:
        steps: `(N,)` batches trained, ascending.
        times_s: `(N,)` seconds trained.
        values: `(N,)` finite.
    """

    steps: Floats
    times_s: Floats
    values: Floats

    def __len__(self) -> int:
        return len(self.steps)


@dataclass(frozen=True, slots=True)
class Metrics:
    """R rows of what was logged.

    Attributes:
        columns: `(R,)` each, by logged name; NaN where a row does not have it.
        unreadable: Lines that could not be understood.
    """

    columns: dict[str, Floats]
    unreadable: int = 0

    def __len__(self) -> int:
        return len(self.columns["step"]) if self.columns else 0

    def names(self, prefix: str) -> list[str]:
        """Logged names that begin with `prefix`, of values with two names the plain one, in the order of the file."""
        return [
            name
            for name in self.columns
            if name.startswith(prefix)
            and not (name.endswith(("_step", "_epoch")) and name.rpartition("_")[0] in self.columns)
        ]

    def series(self, name: str) -> Series:
        """The points of one name; empty where there is none."""
        if name not in self.columns:
            return Series(np.zeros(0), np.zeros(0), np.zeros(0))
        values = self.columns[name]
        there = np.isfinite(values)
        return Series(self.columns["step"][there], self.columns["time_s"][there], values[there])

    def pace(self) -> Series:
        """Batches per second since the row before, at the rows of training.

        A validation has a row of its own, written at its end, so that its time does not count.
        """
        if len(self) < 2:
            return Series(np.zeros(0), np.zeros(0), np.zeros(0))
        steps, times_s = self.columns["step"], self.columns["time_s"]
        batches, seconds = np.diff(steps), np.diff(times_s)
        there = (batches > 0) & (seconds > 0)
        rates = np.divide(batches, seconds, out=np.zeros_like(batches), where=there)
        return Series(steps[1:][there], times_s[1:][there], rates[there])

    def last_scores(self, prefix: str) -> dict[str, float]:
        """The values of the last row that has any under `prefix`, by name without it."""
        names = self.names(prefix)
        for row in range(len(self) - 1, -1, -1):
            found = {name.removeprefix(prefix): float(self.columns[name][row]) for name in names}
            found = {name: value for name, value in found.items() if math.isfinite(value)}
            if found:
                return found
        return {}


def read_metrics(path: Path) -> Metrics:
    """The file's curves; empty without one. A line that cannot be understood is counted and left out.

    Raises:
        OSError: If the file cannot be read.
    """
    rows: list[dict[str, float]] = []
    unreadable = 0
    try:
        lines = path.read_text(errors="replace").replace("\0", "").splitlines()
    except FileNotFoundError:
        return Metrics({})
    reader = csv.reader(lines)
    header = next(reader, [])
    if not set(FIXED_COLUMNS) <= set(header):
        return Metrics({}, len(lines))
    for cells in reader:
        row = parsed(header, cells)
        if row is None:
            unreadable += 1
        else:
            rows.append(row)
    rows.sort(key=lambda row: (row["step"], row["time_s"]))
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: np.array([row.get(name, math.nan) for row in rows]) for name in names}
    return Metrics(columns, unreadable)


def parsed(header: list[str], cells: list[str]) -> dict[str, float] | None:
    """The numbers of one line by column; None where it is torn or holds something else."""
    if len(cells) != len(header):
        return None
    try:
        row = {name: float(cell) for name, cell in zip(header, cells, strict=True) if cell}
    except ValueError:
        return None
    return row if all(math.isfinite(row.get(name, math.nan)) for name in FIXED_COLUMNS) else None
