"""Curves from `metrics.csv`."""

import csv
import math
from contextlib import suppress
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

import numpy as np

from yolo_lightning.data.array_types import Float64Array
from yolo_lightning.utils.regular_files import read_regular

LONGEST_LINE = 100_000  # characters; csv raises an error for a longer cell
FIXED_COLUMNS = ("epoch", "step", "time_s")


@dataclass(frozen=True, slots=True)
class Series:
    """A curve of N points."""

    positions: Float64Array  # `(N,)` number of trained batches, of epochs, or hours, ascending
    values: Float64Array  # `(N,)` finite values

    def __len__(self) -> int:
        return len(self.positions)


@dataclass(frozen=True, slots=True)
class Metrics:
    """R rows of logged values."""

    # `(R,)` values by logged name, sorted by step and time; NaN if a row has no value
    columns: dict[str, Float64Array] = field(default_factory=lambda: {name: np.zeros(0) for name in FIXED_COLUMNS})
    unreadable: int = 0  # number of lines that could not be parsed
    last_epoch_share: float = 1.0  # part of the last epoch that was trained up to the last row, > 0 and <= 1

    @property
    def is_empty(self) -> bool:
        return not len(self.columns["step"])

    def names(self, prefix: str) -> list[str]:
        """Return the names that begin with `prefix`, without Lightning's `_step` and `_epoch` copies of other names."""
        copies = {f"{name}{ending}" for name in self.columns for ending in ("_step", "_epoch")}
        return [name for name in self.columns if name.startswith(prefix) and name not in copies]

    def series(self, name: str, positions: Float64Array | None = None) -> Series:
        """Return the finite values of a name; empty if the name was not logged.

        Args:
            name: Logged name.
            positions: `(R,)` position of each row; None: the number of trained batches.
        """
        if positions is None:
            positions = self.columns["step"]
        values = self.columns.get(name, np.full(len(positions), math.nan))
        is_finite = np.isfinite(values)
        return Series(positions[is_finite], values[is_finite])

    def trained_epochs(self) -> Float64Array:
        """Return the number of epochs `(R,)`, with fractions, that were trained before each row."""
        steps = self.columns["step"]
        epochs = self.columns["epoch"]
        numbers = np.unique(epochs)
        last_steps = [steps[epochs == number].max() for number in numbers]
        ends = numbers + 1
        ends[-1:] -= 1 - self.last_epoch_share
        return np.asarray(np.interp(steps, [0, *last_steps], [0, *ends]), np.float64)


def read_metrics(path: Path) -> Metrics:
    """Return the curves of a file. Lines that cannot be parsed are counted and skipped."""
    rows: list[dict[str, float]] = []
    text = read_regular(path).decode(errors="replace").replace("\0", "")
    with StringIO(text, newline=None) as file:  # splits at line ends only: names may contain other separators
        lines = file.readlines()
    table = csv.reader(line for line in lines if len(line) <= LONGEST_LINE)
    header = next(table, [])
    for cells in table:
        with suppress(ValueError):  # a truncated line
            row = {name: float(cell) for name, cell in zip(header, cells, strict=True) if cell}
            if all(math.isfinite(row.get(name, math.nan)) for name in FIXED_COLUMNS):
                rows.append(row)
    rows.sort(key=lambda row: (row["step"], row["time_s"]))
    names = dict.fromkeys([*FIXED_COLUMNS, *(name for row in rows for name in row)])
    columns = {name: np.array([row.get(name, math.nan) for row in rows]) for name in names}
    has_header = set(FIXED_COLUMNS) <= set(header)
    return Metrics(columns, len(lines) - has_header - len(rows))
