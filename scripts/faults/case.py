"""What a fault is, and what must come of it."""

from collections.abc import Callable
from dataclasses import dataclass

from faults.launch import Launch
from faults.run import Act, Run
from yolo_lightning.supervision.classify import StallClass

Check = Callable[[Run], list[str]]
"""What is wrong with a run that has ended."""

AT_ONCE_S = 1.0
LOADER_DEATH_S = 5.0


@dataclass(frozen=True, slots=True)
class Report:
    """What the supervisor must say of one fault.

    Attributes:
        kind: Class of the stall or crash; None where either may be seen.
        words: That its sentence must hold.
        phase: In which it happened; empty for any.
        within_s: Seconds from the fault to the report; None allows the phase's allowance and five seconds.
    """

    kind: StallClass | None
    words: tuple[str, ...] = ()
    phase: str = ""
    within_s: float | None = None


@dataclass(frozen=True)
class Case(Launch):
    """One line of the matrix: a run, what is done to the run, and what must come of it.

    Attributes:
        outside: What is done to it from outside, one after the other.
        reports: What must be reported, in order; nothing else may be.
        rung: Of the ladder, at the end.
        exact: Whether the final state must equal that of the uninterrupted run, bit for bit.
        exact_best: Whether the best checkpoint must too.
        lost_steps: Most steps that may be trained twice; None for any.
        log: Words that the log must hold.
        check: What else must hold.
        prepare: Called before the start.
        clean_up: Called after the verdict, however the run ended.
        unavailable: Why it cannot be tried on this machine, if so.
    """

    outside: tuple[Act, ...] = ()
    reports: tuple[Report, ...] = ()
    rung: int = 0
    exact: bool = True
    exact_best: bool = True
    lost_steps: int | None = 5
    log: tuple[str, ...] = ()
    check: Check | None = None
    prepare: Callable[[Run], None] | None = None
    clean_up: Callable[[Run], None] | None = None
    unavailable: Callable[[], str] = lambda: ""

    @property
    def row(self) -> int:
        """Number of its row."""
        return int(self.name.rstrip("abcdefghijklmnopqrstuvwxyz"))
