"""Decision what follows a failed attempt: a restart, a lower fallback level, quarantined samples, or the end."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from yolo_lightning.supervision.classify import Diagnosis, StallClass
from yolo_lightning.supervision.fallback import FallbackLevel
from yolo_lightning.utils.files import write_json
from yolo_lightning.utils.json_record import read_record
from yolo_lightning.utils.run_files import STATE_FILE

QUARANTINE_AFTER = 2
"""A sample at which training has ended this often within an epoch is left out. Between two epochs it was trained."""


@dataclass(frozen=True, slots=True)
class FallbackState:
    """State between attempts, stored in the run folder."""

    level: int = 0  # number of the fallback level; never decreases within a run
    attempts: int = 0  # failed attempts in a row without a new checkpoint
    restarts: int = 0  # since the run began
    loader_crashes: int = 0  # loader crashes, and loader stalls before the first batch, in a row
    suspicions: dict[str, int] = field(default_factory=dict)  # ends of training per sample in `suspicious_epoch`
    suspicious_epoch: int = 0  # epoch of the last end with suspects
    quarantined: tuple[str, ...] = ()  # samples to leave out

    def __post_init__(self) -> None:
        if self.level < 0:
            raise ValueError(f"level must be >= 0, got {self.level}")

    @staticmethod
    def read(path: Path) -> "FallbackState":
        """Return the content of a file, or the initial state if the file is missing or damaged."""
        return read_record(path, FallbackState) or FallbackState()

    def for_new_supervisor(self, levels: int) -> "FallbackState":
        """Return the state for a supervisor that a person has started: the level is kept, attempts are reset."""
        return replace(self, level=min(self.level, levels - 1), attempts=0, loader_crashes=0)

    def write(self, path: Path) -> None:
        write_json(path, asdict(self))


def quarantined(run: Path) -> tuple[str, ...]:
    """Return the samples that a run must leave out, as `id=...` or `index=...`."""
    names = FallbackState.read(run / STATE_FILE).quarantined
    return tuple(name for name in names if name.startswith(("id=", "index=")))


@dataclass(frozen=True, slots=True)
class Decision:
    """Decision after a failed attempt."""

    state: FallbackState  # for the next attempt
    restart: bool  # whether there is a next attempt
    pause_s: float  # seconds before the next attempt
    reason: str  # for the log


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
    `saved` is whether the attempt has written a checkpoint of further steps, `suspects` are the samples that were being
    processed; `SuperviseSettings` describes the pauses.
    """
    attempts = 0 if saved else state.attempts + 1
    is_loader = diagnosis.kind in (StallClass.LOADER_CRASH, StallClass.LOADER_STALL)
    crashes = state.loader_crashes + 1 if is_loader and not diagnosis.moves_down else 0
    level = min(state.level + (diagnosis.moves_down or crashes > 1), len(levels) - 1)
    is_lower = level != state.level
    left_out: list[str] = []
    if suspects:
        before = state.suspicions if state.suspicious_epoch == epoch else {}
        counts = before | {sample: before.get(sample, 0) + 1 for sample in suspects}
        left_out = [one for one in suspects if counts[one] >= QUARANTINE_AFTER and one not in state.quarantined]
        quarantined = (*state.quarantined, *left_out)
        state = replace(state, suspicions=counts, suspicious_epoch=epoch, quarantined=quarantined)
    state = replace(state, level=level, attempts=attempts, loader_crashes=0 if is_lower else crashes)
    if attempts >= max_attempts:
        return Decision(state, False, 0.0, f"{attempts} attempts in a row without a new checkpoint")
    reason = f"attempt {attempts + 1} of {max_attempts} since the last checkpoint"
    reason += f", fallback level '{levels[level].name}'" if is_lower else ""
    reason += f", leaving out {', '.join(left_out)}" if left_out else ""
    wait_s = min(pause_s * 2 ** (attempts - 2), max_pause_s) if attempts > 1 else 0.0
    return Decision(replace(state, restarts=state.restarts + 1), True, wait_s, reason)
