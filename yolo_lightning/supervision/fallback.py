"""Fallback levels of the loader, and the decision what follows a failed attempt. Pure functions."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from yolo_lightning.supervision.classify import Diagnosis, StallClass
from yolo_lightning.supervision.incident import loader_stalls
from yolo_lightning.utils.files import write_json
from yolo_lightning.utils.run_files import STATE_FILE

QUARANTINE_AFTER = 2
"""A sample at which training has ended this often within an epoch is left out. Between two epochs it was trained."""


@dataclass(frozen=True, slots=True)
class FallbackLevel:
    """Loader settings, from fast to safe.

    Attributes:
        name: For log and messages.
        num_workers: Loader processes; None for the configured number.
        settings: Keys of `data.loader` that replace the configured ones. The threads of the trainer itself do not
            change: their number decides the order of sums, and so the last bits of every weight.
    """

    name: str
    num_workers: int | None = None
    settings: dict[str, int | bool] = field(default_factory=dict)

    @property
    def overrides(self) -> tuple[str, ...]:
        """The settings as command-line options of the trainer."""
        return tuple(f"--data.loader.{name}={json.dumps(value)}" for name, value in self.settings.items())


FALLBACK_LEVELS = (
    FallbackLevel("as configured"),
    *(
        FallbackLevel(
            name,
            num_workers,
            {"num_workers": num_workers, "persistent_workers": False, "prefetch_factor": 2, "worker_threads": threads},
        )
        for name, num_workers, threads in (("2 workers, not persistent", 2, 2), ("no workers", 0, 1))
    ),
)


def levels_below(num_workers: int) -> tuple[FallbackLevel, ...]:
    """Return the configured level and those with fewer than `num_workers` workers."""
    return tuple(one for one in FALLBACK_LEVELS if one.num_workers is None or one.num_workers < num_workers)


def level_of_launch(run: Path, launch: str, num_workers: int) -> FallbackLevel:
    """Return the fallback level for a torchrun launch. Every loader stall in the same launch lowers it by one.

    No supervisor runs under torchrun: all ranks read the incident reports of their stall monitors.

    Args:
        run: Run folder.
        launch: Name of torchrun's launch; another launch starts with the configured level.
        num_workers: Configured loader workers.
    """
    levels = levels_below(num_workers)
    return levels[min(loader_stalls(run, launch), len(levels) - 1)]


@dataclass(frozen=True, slots=True)
class FallbackState:
    """State between attempts, stored in the run folder.

    Attributes:
        level: Number of the fallback level; never decreases within a run.
        attempts: Failed attempts in a row without a new checkpoint.
        restarts: Restarts since the run began.
        loader_crashes: Loader crashes, and loader stalls before the first batch, in a row.
        suspicions: Number of times that training ended at each sample in `suspicious_epoch`.
        suspicious_epoch: Epoch of the last end with suspects.
        quarantined: Samples to leave out.
    """

    level: int = 0
    attempts: int = 0
    restarts: int = 0
    loader_crashes: int = 0
    suspicions: dict[str, int] = field(default_factory=dict)
    suspicious_epoch: int = 0
    quarantined: tuple[str, ...] = ()

    @staticmethod
    def read(path: Path) -> "FallbackState":
        """Return the content of a file, or the initial state if the file is missing or damaged."""
        try:
            content = json.loads(path.read_text())
            return FallbackState(**(content | {"quarantined": tuple(content["quarantined"])}))
        except (OSError, ValueError, TypeError, KeyError):
            return FallbackState()

    def for_new_supervisor(self, levels: int) -> "FallbackState":
        """Return the state for a supervisor that a person has started: the level is kept, attempts are reset."""
        return replace(self, level=min(self.level, levels - 1), attempts=0, loader_crashes=0)

    def write(self, path: Path) -> None:
        """Write the state to a file atomically."""
        write_json(path, asdict(self))


def quarantined(run: Path) -> tuple[str, ...]:
    """Return the samples that a run must leave out, as `id=...` or `index=...`."""
    names = FallbackState.read(run / STATE_FILE).quarantined
    return tuple(name for name in names if name.startswith(("id=", "index=")))


@dataclass(frozen=True, slots=True)
class Decision:
    """Decision after a failed attempt.

    Attributes:
        state: State for the next attempt.
        restart: Whether there is a next attempt.
        pause_s: Seconds to wait before the next attempt.
        reason: For the log.
    """

    state: FallbackState
    restart: bool
    pause_s: float
    reason: str


def decide(
    state: FallbackState,
    diagnosis: Diagnosis,
    levels: Sequence[FallbackLevel],
    *,
    saved: bool,
    suspects: Sequence[str] = (),
    epoch: int = 0,
    max_attempts: int,
    pause_s: float,
    max_pause_s: float,
) -> Decision:
    """Return what follows a failed attempt.

    Loader stalls, stopped GPU queues and the second loader crash in a row lower the fallback level by one; all other
    failures keep it. A loader stall before the first batch counts as a crash, because a slow start looks the same.

    Args:
        state: State before the end of the attempt.
        diagnosis: Cause of the end.
        levels: Fallback levels.
        saved: Whether the attempt wrote a checkpoint with more steps than the one before.
        suspects: Samples that were being processed.
        epoch: Epoch of the end.
        max_attempts: Limit of failed attempts in a row without a new checkpoint.
        pause_s: Pause before the second restart in a row without a new checkpoint, seconds; each further pause is twice
            as long. The first restart follows at once.
        max_pause_s: Longest pause, seconds.
    """
    attempts = 0 if saved else state.attempts + 1
    is_loader = diagnosis.kind in (StallClass.LOADER_CRASH, StallClass.LOADER_STALL)
    crashes = state.loader_crashes + 1 if is_loader and not diagnosis.moves_down else 0
    level = min(state.level + (diagnosis.moves_down or crashes > 1), len(levels) - 1)
    is_lower = level != state.level
    state, left_out = _with_suspects(state, suspects, epoch)
    state = replace(state, level=level, attempts=attempts, loader_crashes=0 if is_lower else crashes)
    if attempts >= max_attempts:
        return Decision(state, False, 0.0, f"{attempts} attempts in a row without a new checkpoint")
    reason = f"attempt {attempts + 1} of {max_attempts} since the last checkpoint"
    reason += f", fallback level '{levels[level].name}'" if is_lower else ""
    reason += f", leaving out {', '.join(left_out)}" if left_out else ""
    wait_s = min(pause_s * 2 ** (attempts - 2), max_pause_s) if attempts > 1 else 0.0
    return Decision(replace(state, restarts=state.restarts + 1), True, wait_s, reason)


def _with_suspects(state: FallbackState, suspects: Sequence[str], epoch: int) -> tuple[FallbackState, tuple[str, ...]]:
    """Return the state with the suspects counted, and the samples that are newly quarantined."""
    if not suspects:
        return state, ()
    before = state.suspicions if state.suspicious_epoch == epoch else {}
    counts = before | {sample: before.get(sample, 0) + 1 for sample in suspects}
    new = tuple(one for one in suspects if counts[one] >= QUARANTINE_AFTER and one not in state.quarantined)
    return replace(state, suspicions=counts, suspicious_epoch=epoch, quarantined=state.quarantined + new), new
