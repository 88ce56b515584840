"""Whether the trainer makes progress, judged from outside by the change of its record."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from yolo_lightning.supervision.heartbeat import Blind, Phase, Progress
from yolo_lightning.supervision.phase_timeouts import Allowances
from yolo_lightning.supervision.processes import STOPPED, read_process, tracer, tree

GAP_POLLS = 3.0
GAP_LEAST_S = 2.0
"""A supervisor that was away for more than three polls, and at least that long, was asleep itself."""


class Health(StrEnum):
    """What a look at the record says."""

    HEALTHY = "healthy"
    EXCUSED = "excused"
    BLIND = "blind"
    STALLED = "stalled"


@dataclass(frozen=True, slots=True)
class Look:
    """One look at the record.

    Attributes:
        health: The judgement.
        phase: The phase last seen; `IMPORT` before there was a record.
        progress: The record, or None while blind.
        waited_s: Seconds since it last changed, of the watch's own clock.
        allowance_s: Seconds that it may take.
        reason: Why it is excused or blind; empty else.
    """

    health: Health
    phase: Phase
    progress: Progress | None
    waited_s: float
    allowance_s: float
    reason: str = ""


def boot_clock_s() -> float:
    """Seconds since boot, the time spent suspended included, so that a suspend shows as a gap."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Watch:
    """Looks again and again, and remembers when the record last changed.

    The watch's own clock counts, not times in the record or of the file: those lie on network file systems and when
    the wall clock is set. Before the first record the phase is `IMPORT`. A record that cannot be read counts as blind;
    after the largest allowance of all phases that is a stall too, as the restart brings a record back.

    Args:
        read: Reads the record.
        excuse: Why the trainer may stand still right now, or None.
        allowances: How long it may take.
        poll_s: Seconds between two looks.
        clock: Seconds, never set back.
    """

    def __init__(
        self,
        read: Callable[[], Progress | Blind],
        excuse: Callable[[], str | None],
        allowances: Allowances,
        poll_s: float,
        clock: Callable[[], float] = boot_clock_s,
    ) -> None:
        self.read, self.excuse, self.allowances, self.clock = read, excuse, allowances, clock
        self.gap_s = max(GAP_LEAST_S, GAP_POLLS * poll_s)
        self._last_look_s = self._last_change_s = clock()
        self._sequence = -1
        self._phase = Phase.IMPORT

    def look(self) -> Look:
        """Judge."""
        now_s = self.clock()
        gap_s, self._last_look_s = now_s - self._last_look_s, now_s
        found = self.read()
        progress = found if isinstance(found, Progress) else None
        if progress is not None and progress.sequence != self._sequence:
            self._sequence, self._phase, self._last_change_s = progress.sequence, progress.phase, now_s
        reason = f"the supervisor itself was away for {gap_s:.0f} s" if gap_s > self.gap_s else ""
        if not reason:
            reason = self.excuse() or ""
        if reason:
            self._last_change_s = now_s
        waited_s = now_s - self._last_change_s
        blind = progress is None and not (found is Blind.MISSING and self._sequence < 0)
        allowance_s = self.allowances.largest_s() if blind else self.allowances.seconds(self._phase)
        if reason:
            health = Health.EXCUSED
        elif waited_s >= allowance_s:
            health = Health.STALLED
        else:
            health = Health.BLIND if blind else Health.HEALTHY
        return Look(health, self._phase, progress, waited_s, allowance_s, reason or (str(found) if blind else ""))

    def keep_looking(self) -> None:
        """Say that the supervisor was busy, not asleep; the wait goes on."""
        self._last_look_s = self.clock()


def excuse_for(leader: int) -> str | None:
    """Why the trainer may stand still: somebody holds it on purpose.

    A debugger on the trainer, or all of several processes stopped (`kill -STOP` on the group, a job put to sleep). A
    trainer stopped alone is a stall like any other.
    """
    debugger = tracer(leader)
    if debugger:
        return f"process {debugger} traces the trainer"
    trainer = read_process(leader)
    if trainer is None or trainer.state not in STOPPED:
        return None
    members = tree(leader)
    if len(members) > 1 and all(process.state in STOPPED for process in members):
        return "all processes of the trainer are stopped"
    return None
