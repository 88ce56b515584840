"""Decision what follows a failed attempt: a restart, a lower fallback level, quarantined samples, or the end."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from yolo_lightning.supervision.classify import Diagnosis, StallClass
from yolo_lightning.supervision.fallback_levels import FallbackState, Levels, lower
from yolo_lightning.utils.run_files import STATE_FILE

QUARANTINE_AFTER = 2
"""A sample at which training has ended this often within an epoch is left out. Between two epochs it was trained."""

REVOKES = frozenset({StallClass.GPU_STALL, StallClass.DEVICE_ERROR, StallClass.WRONG_RESULT, StallClass.CRASH})
"""Incidents after which `backend: auto` does not choose native convolutions in any run. NaN can have other causes."""


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
