"""The settings with which a run of the fault matrix is started."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Launch:
    """Settings of a run.

    Attributes:
        name: Number of the row, and a letter where it has several.
        fault: For a person.
        inside: Faults that the trainer or a worker calls, texts of `InsideFault`.
        codes: Exit codes: of the first command, then of each `fit --resume` that follows it.
        short_s: Short phase timeouts by name of `PhaseTimeouts`; the others are long.
        supervision: Other settings of the supervisor.
        options: Other values of the configuration, by dotted name.
        workers: Loader workers.
        save_interval_steps: Between two checkpoints.
        plug_in: Class path of one more callback.
        environment: Variables of all processes.
        smoke_test: Words of a program that stands for the smoke test of a GPU.
        small_shared_memory: Whether to give it a /dev/shm of its own, of a few MB.
        typed: Whether the command that a user types starts it, which then becomes the supervisor; else that starts
            itself, ten seconds of imports earlier. Every `fit --resume` is typed.
        limit_s: Seconds after which it counts as hung itself.
    """

    name: str
    fault: str
    inside: tuple[str, ...] = ()
    codes: tuple[int, ...] = (0,)
    short_s: dict[str, float] = field(default_factory=dict)
    supervision: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    workers: int = 0
    save_interval_steps: int = 5
    plug_in: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    smoke_test: tuple[str, ...] = ()
    small_shared_memory: bool = False
    typed: bool = False
    limit_s: float = 600.0
