"""The record of a run and its figures."""

import bisect
import json
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Self


@dataclass(frozen=True)
class Entry:
    """One line of the record that the training processes write."""

    at_s: float  # monotonic clock
    process: int
    step: int = 0  # optimizer step that is done, from 1; 0 for other entries
    finite: bool = True  # of the loss of the step, or of the final weights
    digest: str = ""  # of the final weights
    fault: str = ""  # that happens inside the process


class Record:
    """Reads the record while it grows."""

    def __init__(self, path: Path) -> None:
        self.path, self.entries, self._read_bytes = path, list[Entry](), 0

    def update(self) -> list[Entry]:
        """Read the new complete lines and return their entries."""
        if not self.path.is_file():
            return []
        with self.path.open("rb") as file:
            file.seek(self._read_bytes)
            content, _, _ = file.read().rpartition(b"\n")
        new = [Entry(**json.loads(line)) for line in content.splitlines()]
        self._read_bytes += len(content) + bool(content)
        self.entries += new
        return new


@dataclass(frozen=True)
class Outcome:
    """One run of one system; all times are seconds from the start."""

    finished_s: float | None  # when the final weights were finite; None if the time was over
    digest: str  # of the final weights; an empty string if the run did not finish
    steps: list[tuple[float, int, bool]]  # time, optimizer step, whether its loss was finite; in order
    faults: list[tuple[float, str]] = field(default_factory=list)  # time and kind
    interventions: list[float] = field(default_factory=list)

    @classmethod
    def of(
        cls, entries: list[Entry], begin_s: float, faults: list[tuple[float, str]], interventions: list[float]
    ) -> Self:
        """Return the outcome from a record and from what happened to the run, in times of the monotonic clock."""
        final = next((entry for entry in entries if entry.digest and entry.finite), None)
        happened = sorted([*faults, *((entry.at_s, entry.fault) for entry in entries if entry.fault)])
        return cls(
            finished_s=None if final is None else final.at_s - begin_s,
            digest="" if final is None else final.digest,
            steps=[(entry.at_s - begin_s, entry.step, entry.finite) for entry in entries if entry.step],
            faults=[(at_s - begin_s, kind) for at_s, kind in happened],
            interventions=[at_s - begin_s for at_s in interventions],
        )

    @property
    def lost(self) -> int:
        """Steps that were carried out more than once, or whose loss was not finite."""
        return len(self.steps) - len({step for _, step, finite in self.steps if finite})

    @property
    def recovery_s(self) -> list[float]:
        """Longest time without progress due to each fault; progress is a finite step beyond all earlier ones.

        The first step after a fault is not enough: a loader that hangs may have delivered further batches before. A
        pause counts for the last fault before its first second.
        """
        progress_s, furthest = [], 0
        for at_s, step, finite in self.steps:
            if finite and step > furthest:
                progress_s.append(at_s)
                furthest = step
        begins = [at_s for at_s, _ in self.faults]
        longest_s = [0.0] * len(begins)
        for before_s, after_s in pairwise(progress_s):
            fault = bisect.bisect(begins, min(before_s + 1, after_s)) - 1
            if fault >= 0:
                longest_s[fault] = max(longest_s[fault], after_s - max(before_s, begins[fault]))
        return longest_s

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """Return the outcome that `dataclasses.asdict` and JSON have stored."""
        return cls(**values | {name: [tuple(row) for row in values[name]] for name in ("steps", "faults")})
