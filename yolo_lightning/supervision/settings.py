"""What can be set about supervision, and what a supervisor is told to run."""

import json
from dataclasses import asdict, dataclass, field
from typing import Self

from yolo_lightning.supervision.notify import NotifySettings
from yolo_lightning.supervision.phase_timeouts import PhaseTimeouts


@dataclass(frozen=True)
class SuperviseSettings:
    """How patient the supervisor is.

    Attributes:
        enabled: Whether `fit` trains in a child process that a supervisor watches and restarts after a hang or a crash.
        phase_timeouts: Seconds that each phase may take before anything was learned from the run.
        factor: A phase may take this many times the longest healthy stay seen, where that is more.
        poll_s: Seconds between two looks.
        kill_after_s: Seconds from the first look at a stall to the kill; it may still recover.
        grace_s: Seconds that the trainer has to save and end after Ctrl-C or SIGTERM. Schedulers send SIGKILL then,
            SLURM after 30 s.
        kill_wait_s: Seconds to wait for killed processes to be gone.
        part_timeout_s: Seconds that one part of the evidence may take.
        resample_s: Seconds between two looks at the stack of a stalled trainer, which tell whether it moves.
        smoke_test_s: Seconds that the smoke test of the GPU may take, its libraries' import included.
        attempts: Failed attempts in a row without a further checkpoint after which it gives up.
        pause_s: Seconds before the second restart in a row without a further checkpoint; doubled by each further one.
            The first restart comes at once.
        max_pause_s: At most this.
        notify: Whom to tell what happens.
    """

    enabled: bool = False
    phase_timeouts: PhaseTimeouts = field(default_factory=PhaseTimeouts)
    factor: float = 5.0
    poll_s: float = 1.0
    kill_after_s: float = 20.0
    grace_s: float = 20.0
    kill_wait_s: float = 5.0
    part_timeout_s: float = 10.0
    resample_s: float = 1.0
    smoke_test_s: float = 120.0
    attempts: int = 3
    pause_s: float = 10.0
    max_pause_s: float = 600.0
    notify: NotifySettings = field(default_factory=NotifySettings)

    def __post_init__(self) -> None:
        for name in ("factor", "poll_s", "kill_wait_s", "part_timeout_s", "smoke_test_s", "attempts"):
            if not getattr(self, name) > 0:
                raise ValueError(f"supervise.{name} is {getattr(self, name)}, allowed are values above 0")
        for name in ("kill_after_s", "grace_s", "resample_s", "pause_s", "max_pause_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"supervise.{name} is {getattr(self, name)}, allowed are 0 and more")


@dataclass(frozen=True, slots=True)
class Job:
    """What to run.

    Attributes:
        command: Words of the first start, program included.
        restart_command: Words of a start that continues from the newest checkpoint of the run folder.
        workers: Loader workers of the configuration; the ladder begins there.
        settings: How patient to be.
        smoke_test: Words of a program that does a little work on the GPU; run after a GPU stall, before the restart.
            Empty for none.
    """

    command: tuple[str, ...]
    restart_command: tuple[str, ...]
    workers: int = 0
    settings: SuperviseSettings = field(default_factory=SuperviseSettings)
    smoke_test: tuple[str, ...] = ()

    def to_json(self) -> str:
        """As text in one line, for a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The reverse of `to_json`."""
        content = json.loads(text)
        phase_timeouts = PhaseTimeouts(**content["settings"].pop("phase_timeouts"))
        notify = NotifySettings(**content["settings"].pop("notify"))
        settings = SuperviseSettings(phase_timeouts=phase_timeouts, notify=notify, **content["settings"])
        words = {name: tuple(content[name]) for name in ("command", "restart_command", "smoke_test")}
        return cls(workers=content["workers"], settings=settings, **words)
