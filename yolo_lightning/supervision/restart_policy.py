"""Decision what follows a failed attempt: a restart, a lower fallback level, quarantined samples, or the end.

Two levels are independent of each other: that of the loader and that of the computation. The class of the incident
decides which of them is lowered. After a time without incidents, one level is taken back.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from yolo_lightning.supervision.classify import Diagnosis, StallClass
from yolo_lightning.supervision.fallback_levels import AS_CONFIGURED, FallbackLevel, LevelState
from yolo_lightning.utils.files import write_json
from yolo_lightning.utils.json_record import read_record
from yolo_lightning.utils.run_files import STATE_FILE

QUARANTINE_AFTER = 2
"""A sample at which training has ended this often within an epoch is left out. Between two epochs it was trained."""

LAST_FAILURE = 2
"""A level that has failed this often in a run is not tried again."""

LOWERS_COMPUTATION = frozenset(
    {StallClass.DEVICE_ERROR, StallClass.WRONG_RESULT, StallClass.NOT_FINITE, StallClass.OUT_OF_MEMORY}
)
"""Incidents that lower the level of the computation at once; a GPU stall does so unless the loader is at fault."""

REVOKES = frozenset({StallClass.GPU_STALL, StallClass.DEVICE_ERROR, StallClass.WRONG_RESULT, StallClass.CRASH})
"""Incidents after which `backend: auto` does not choose native convolutions in any run. NaN can have other causes."""


@dataclass(frozen=True, slots=True)
class FallbackState:
    """State between attempts, stored in the run folder."""

    loader: LevelState = field(default_factory=LevelState)
    computation: LevelState = field(default_factory=LevelState)
    on_trial: str = ""  # `loader` or `computation` if that level was taken back and no checkpoint followed yet
    failed_climbs: int = 0  # levels that were taken back and failed again
    crashes: int = 0  # crashes of the trainer at this level of the computation
    attempts: int = 0  # consecutive failed attempts without a new checkpoint
    restarts: int = 0  # since the run began
    loader_crashes: int = 0  # consecutive loader crashes, and loader stalls before the first batch
    suspicions: dict[str, int] = field(default_factory=dict)  # ends of training per sample in `suspicious_epoch`
    suspicious_epoch: int = 0  # epoch of the last end with suspects
    quarantined: tuple[str, ...] = ()  # samples to leave out

    @staticmethod
    def read(path: Path) -> "FallbackState":
        """Return the content of a file, or the initial state if the file is missing or damaged."""
        return read_record(path, FallbackState) or FallbackState()

    def for_new_supervisor(self) -> "FallbackState":
        """Return the state for a supervisor that a person has started: the levels are kept, attempts are reset."""
        return replace(self, attempts=0, loader_crashes=0, on_trial="")

    @property
    def line(self) -> str:
        """Lowered levels with time and reason, for the log, `monitor`, report and notifications."""
        lowered = [
            f"{what}: {one.name} since {one.since} ({one.reason})"
            for what, one in (("loader", self.loader), ("computation", self.computation))
            if one.name != AS_CONFIGURED
        ]
        return "; ".join(lowered) or AS_CONFIGURED

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
    reason: str  # for the log


@dataclass(frozen=True, slots=True)
class Levels:
    """Fallback levels of a run, from fast to safe; the first one is that of the configuration."""

    loader: Sequence[FallbackLevel]
    computation: Sequence[FallbackLevel]

    def overrides(self, state: FallbackState) -> tuple[str, ...]:
        """Return the options of the trainer at both levels."""
        return tuple(
            word
            for levels, one in ((self.loader, state.loader), (self.computation, state.computation))
            for word in levels[one.number(levels)].overrides
        )


def _lowered(
    one: LevelState, levels: Sequence[FallbackLevel], reason: str, now: str, *, saves_memory: bool = False
) -> LevelState:
    """Return the next level, with `saves_memory` the next one that saves memory; the same state if there is none."""
    number = one.number(levels)
    below = next((level for level in levels[number + 1 :] if level.saves_memory or not saves_memory), None)
    if below is None:
        return one
    name = levels[number].name
    return LevelState(below.name, reason, now, one.failures | {name: one.failures.get(name, 0) + 1})


def lower(
    state: FallbackState, diagnosis: Diagnosis, levels: Levels, *, saved: bool, place: str, now: str
) -> FallbackState:
    """Return the state with the levels for the next attempt; see `decide`."""
    kind, reason = diagnosis.kind, f"{diagnosis.kind}{place}"
    is_loader = kind in (StallClass.LOADER_CRASH, StallClass.LOADER_STALL)
    loader_crashes = state.loader_crashes + 1 if is_loader and not diagnosis.moves_down else 0
    crashes = state.crashes + (kind is StallClass.CRASH)
    unproved = "" if saved else state.on_trial
    loader, computation = state.loader, state.computation
    if diagnosis.moves_down or loader_crashes > 1 or unproved == "loader":
        loader = _lowered(loader, levels.loader, reason, now)
    fails = kind in LOWERS_COMPUTATION or (kind is StallClass.GPU_STALL and loader is state.loader)
    fails = fails or (kind is StallClass.CRASH and (crashes > 1 or diagnosis.in_kernel))
    if fails or unproved == "computation":
        is_memory = kind is StallClass.OUT_OF_MEMORY
        computation = _lowered(computation, levels.computation, reason, now, saves_memory=is_memory)
    # The second failure of a level follows an attempt to take the level back.
    pairs = ((state.loader, loader), (state.computation, computation))
    failed_climbs = sum(before is not after and before.name in before.failures for before, after in pairs)
    return replace(
        state,
        loader=loader,
        computation=computation,
        on_trial="",
        failed_climbs=state.failed_climbs + failed_climbs,
        crashes=crashes if computation is state.computation else 0,
        loader_crashes=loader_crashes if loader is state.loader else 0,
    )


def climb(state: FallbackState, levels: Levels, reason: str, now: str) -> FallbackState | None:
    """Return the state with one level taken back, the loader's first; None if no level can be taken back."""
    for what, of_level in (("loader", levels.loader), ("computation", levels.computation)):
        one: LevelState = getattr(state, what)
        number = one.number(of_level)
        if number and one.failures.get(above := of_level[number - 1].name, 0) < LAST_FAILURE:
            taken = LevelState(above, reason, now, one.failures)
            changed = {what: taken, "on_trial": what, "attempts": 0, "restarts": state.restarts + 1}
            return replace(state, **changed)  # type: ignore[arg-type]
    return None


def decide(
    state: FallbackState,
    diagnosis: Diagnosis,
    levels: Levels,
    *,
    saved: bool,
    suspects: Sequence[str] = (),
    epoch: int = 0,
    place: str = "",
    now: str = "",
    max_attempts: int,
) -> Decision:
    """Return what follows a failed attempt.

    The level of the loader is lowered by loader stalls, stopped GPU queues and the second consecutive loader crash. A
    loader stall before the first batch counts as a crash, because a slow start looks the same. The level of the
    computation is lowered by other GPU stalls, device errors, wrong results, NaN after rollbacks, lack of memory, and a
    crash that repeats or occurs in a convolution. A level that was taken back is lowered by any failure before the
    first checkpoint. At a lower level of the computation, the failed attempts are counted anew.

    `saved` is whether the attempt has written a checkpoint of further steps, `suspects` are the samples that were being
    processed; `place` and `now` describe the incident in the state.
    """
    after = lower(state, diagnosis, levels, saved=saved, place=place, now=now)
    attempts = 0 if saved or after.computation is not state.computation else state.attempts + 1
    left_out: list[str] = []
    if suspects:
        before = state.suspicions if state.suspicious_epoch == epoch else {}
        counts = before | {sample: before.get(sample, 0) + 1 for sample in suspects}
        left_out = [one for one in suspects if counts[one] >= QUARANTINE_AFTER and one not in state.quarantined]
        quarantined = (*state.quarantined, *left_out)
        after = replace(after, suspicions=counts, suspicious_epoch=epoch, quarantined=quarantined)
    names = [one.name for one in (after.loader, after.computation) if one not in (state.loader, state.computation)]
    after = replace(after, attempts=attempts)
    if attempts >= max_attempts:
        return Decision(after, False, f"{attempts} consecutive attempts without a new checkpoint")
    reason = f"attempt {attempts + 1} of {max_attempts} since the last checkpoint"
    reason += "".join(f", fallback level '{name}'" for name in names)
    reason += f", leaving out {', '.join(left_out)}" if left_out else ""
    return Decision(replace(after, restarts=state.restarts + 1), True, reason)
