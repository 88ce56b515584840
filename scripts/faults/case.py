"""What a fault is, and what must come of it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from yolo_lightning.supervision.classify import StallClass

if TYPE_CHECKING:
    from faults.run import Run

Act = Callable[["Run"], bool]
"""Something done to a run from outside; called again and again until it says that it is done."""

Check = Callable[["Run"], list[str]]
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
class Case:
    """One line of the matrix.

    Attributes:
        name: Number of the row, and a letter where it has several.
        fault: For a person.
        inside: Faults that the trainer or a worker calls, texts of `InsideFault`.
        outside: What is done to it from outside, one after the other.
        reports: What must be reported, in order; nothing else may be.
        codes: Exit codes: of the first command, then of each `fit --resume` that follows it.
        short_s: Allowances that are short, by name of `Floors`; the others are long.
        supervision: Other settings of the supervisor.
        options: Other values of the configuration, by dotted name.
        workers: Loader workers.
        rung: Of the ladder, at the end.
        save_interval_steps: Between two checkpoints.
        plug_in: Class path of one more callback.
        exact: Whether the final state must equal that of the uninterrupted run, bit for bit.
        exact_best: Whether the best checkpoint must too.
        lost_steps: Most steps that may be trained twice; None for any.
        log: Words that the log must hold.
        check: What else must hold.
        prepare: Called before the start.
        clean_up: Called after the verdict, however the run ended.
        environment: Variables of all processes.
        smoke_test: Words of a program that stands for the smoke test of a GPU.
        small_shared_memory: Whether to give it a /dev/shm of its own, of a few MB.
        typed: Whether the command that a user types starts it, which then becomes the supervisor; else that starts
            itself, ten seconds of imports earlier. Every `fit --resume` is typed.
        unavailable: Why it cannot be tried on this machine, if so.
        limit_s: Seconds after which it counts as hung itself.
    """

    name: str
    fault: str
    inside: tuple[str, ...] = ()
    outside: tuple[Act, ...] = ()
    reports: tuple[Report, ...] = ()
    codes: tuple[int, ...] = (0,)
    short_s: dict[str, float] = field(default_factory=dict)
    supervision: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    workers: int = 0
    rung: int = 0
    save_interval_steps: int = 5
    plug_in: str = ""
    exact: bool = True
    exact_best: bool = True
    lost_steps: int | None = 5
    log: tuple[str, ...] = ()
    check: Check | None = None
    prepare: Callable[["Run"], None] | None = None
    clean_up: Callable[["Run"], None] | None = None
    environment: dict[str, str] = field(default_factory=dict)
    smoke_test: tuple[str, ...] = ()
    small_shared_memory: bool = False
    typed: bool = False
    unavailable: Callable[[], str] = lambda: ""
    limit_s: float = 600.0

    @property
    def row(self) -> int:
        """Number of its row."""
        return int(self.name.rstrip("abcdefghijklmnopqrstuvwxyz"))
