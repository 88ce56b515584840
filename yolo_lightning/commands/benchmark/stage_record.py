"""What is stored of a stage of `benchmark gpu`: an answer, Markdown lines and the measured values. No torch."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

FORMAT = 7
"""Version of the JSON files; increases when the meaning of a key changes or a key is removed."""


class Stage(StrEnum):
    """The stages in the order in which they run; the value is the name of the result file."""

    MACHINE = "machine"
    CORRECTNESS = "correctness"
    LAYERS = "layers"
    STEP = "step"


class StageState(StrEnum):
    """How a stage ended."""

    PASSED = "passed"
    FAILED = "failed"  # a check failed
    CRASHED = "crashed"
    TIMED_OUT = "timed out"
    INTERRUPTED = "interrupted"  # has not ended


FINISHED = frozenset({StageState.PASSED, StageState.FAILED})
"""States of stages that a second call does not run again."""


@dataclass(kw_only=True)
class StageRecord:
    """Result of a stage, or the part that was measured before its process ended."""

    stage: Stage
    state: StageState = StageState.INTERRUPTED
    seconds: float = 0.0  # duration of the child process
    reason: str = ""  # which checks failed, why the process was killed, or how it crashed
    last_lines: list[str] = field(default_factory=list)  # last lines of stderr, unless the stage passed
    verdict: str = ""  # yes, no or unknown, the answer to the question of the page; empty: yes if passed
    answer: str = ""  # the most important result, one line
    lines: list[str] = field(default_factory=list)  # Markdown: explanations and tables
    measured: dict[str, Any] = field(default_factory=dict)  # all values: seconds and bytes

    @property
    def outcome(self) -> str:
        """The state with its reason."""
        return ": ".join(filter(None, [self.state, self.reason]))

    def add(self, *lines: str) -> None:
        """Append lines, and an empty line after them."""
        if lines:
            self.lines += [*lines, ""]

    def fail(self, reasons: Sequence[str]) -> None:
        """Record checks that failed, if there are any."""
        self.reason = "; ".join(filter(None, [self.reason, *reasons]))


def record_file(folder: Path, stage: Stage) -> Path:
    """Return the file of the record of a stage."""
    return folder / f"{stage}.json"


def read_record(folder: Path, stage: Stage) -> StageRecord | None:
    """Return the record of a stage, or None if there is none that can be read."""
    try:
        content = json.loads(record_file(folder, stage).read_text(encoding="utf-8"))
        record = StageRecord(**content)
        record.stage = stage
        record.state = StageState(content["state"])
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return record
