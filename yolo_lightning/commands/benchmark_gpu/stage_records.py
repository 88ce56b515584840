"""Stages of the GPU benchmark, their time limits, and their records: one JSON file per stage. No torch."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from yolo_lightning.utils.files import write_json

STAGES_FOLDER = "stages"


class Stage(StrEnum):
    """The stages in the order in which they run; the value is the name of the result file."""

    MACHINE = "machine"
    CORRECTNESS = "correctness"
    PRODUCTS = "products"
    SPEED = "speed"
    WAITS = "waits"
    MEMORY = "memory"
    STABILITY = "stability"
    RESUME = "resume"
    INDUCTOR = "inductor"


class StageState(StrEnum):
    """How a stage ended."""

    PASSED = "passed"
    FAILED = "failed"  # a check failed
    CRASHED = "crashed"
    TIMED_OUT = "timed out"
    SKIPPED = "skipped"
    INTERRUPTED = "interrupted"


FINISHED = frozenset({StageState.PASSED, StageState.FAILED})
"""States of stages that a second call does not run again."""


@dataclass(frozen=True, slots=True)
class StageLimits:
    """Time limits of a stage, including the start of its process, in seconds."""

    needed_s: float  # the stage is skipped if less time is left
    most_s: float  # the stage is killed after this time


LIMITS = {
    Stage.MACHINE: StageLimits(25, 110),
    Stage.CORRECTNESS: StageLimits(40, 100),
    Stage.PRODUCTS: StageLimits(15, 40),
    Stage.SPEED: StageLimits(60, 150),
    Stage.WAITS: StageLimits(15, 40),
    Stage.MEMORY: StageLimits(30, 90),
    Stage.STABILITY: StageLimits(20, 60),
    Stage.RESUME: StageLimits(60, 140),
    Stage.INDUCTOR: StageLimits(45, 150),
}
"""Limits within the default budget; another budget scales them. The sum of `needed_s` is less than the budget."""

DEFAULT_BUDGET_S = 540.0


@dataclass(kw_only=True)
class StageRecord:
    """What is stored of a stage."""

    stage: Stage
    state: StageState
    seconds: float = 0.0  # duration of the child process
    reason: str = ""  # why the stage was skipped or killed, or how it crashed
    last_lines: list[str] = field(default_factory=list)  # last lines of stderr, unless the stage passed
    result: dict[str, Any] = field(default_factory=dict)  # result of the stage, or the part that was measured


def scaled_limits(stage: Stage, budget_s: float) -> StageLimits:
    """Return the limits of a stage for a budget in seconds."""
    factor = budget_s / DEFAULT_BUDGET_S
    return StageLimits(LIMITS[stage].needed_s * factor, LIMITS[stage].most_s * factor)


def time_limit_s(stage: Stage, later: Sequence[Stage], left_s: float, budget_s: float) -> float | None:
    """Return the time limit of the next stage in seconds, or None if it does not fit.

    Args:
        stage: The next stage.
        later: The stages that still have to run after it, whose needed time is reserved.
        left_s: Seconds left of the budget.
        budget_s: Budget of all stages in seconds.
    """
    limits = scaled_limits(stage, budget_s)
    if left_s < limits.needed_s:
        return None
    reserved_s = sum(scaled_limits(one, budget_s).needed_s for one in later)
    return min(limits.most_s, max(left_s - reserved_s, limits.needed_s))


def record_path(out: Path, stage: Stage) -> Path:
    return out / STAGES_FOLDER / f"{stage}.json"


def partial_path(out: Path, stage: Stage) -> Path:
    """Return the file into which the process of a stage writes what it has measured so far."""
    return out / STAGES_FOLDER / f"{stage}.partial.json"


def write_record(out: Path, record: StageRecord) -> None:
    """Write the record of a stage atomically."""
    write_json(record_path(out, record.stage), asdict(record))


def read_record_of(out: Path, stage: Stage) -> StageRecord | None:
    """Return the record of a stage, or None if there is none that can be read."""
    try:
        content = json.loads(record_path(out, stage).read_text(encoding="utf-8"))
        return StageRecord(**{**content, "stage": Stage(content["stage"]), "state": StageState(content["state"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def read_partial(out: Path, stage: Stage) -> dict[str, Any]:
    """Return what the process of a stage has written so far; empty if there is nothing that can be read."""
    try:
        content = json.loads(partial_path(out, stage).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
