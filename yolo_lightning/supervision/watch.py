"""Detection of stalls: a heartbeat that does not change within the timeout of its phase."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from yolo_lightning.supervision.heartbeat import Heartbeat, NoHeartbeat, Phase
from yolo_lightning.supervision.phase_timeouts import AdaptiveTimeouts
from yolo_lightning.supervision.processes import STOPPED, tracer, tree
from yolo_lightning.utils.process_identity import PROC, read_process, since_boot_s

GAP_POLLS = 3.0
GAP_LEAST_S = 2.0
"""A watching process that did not run for three polls, and at least for this time, was suspended."""


class Health(StrEnum):
    """Result of a look at the heartbeat."""

    HEALTHY = "healthy"
    EXCUSED = "excused"
    NO_HEARTBEAT = "no heartbeat"
    STALLED = "stalled"


@dataclass(frozen=True, slots=True)
class Look:
    """One look at the heartbeat."""

    health: Health
    phase: Phase  # last recorded phase; `IMPORT` before the first heartbeat
    heartbeat: Heartbeat | None  # None if it cannot be read
    waited_s: float  # seconds since the last change of the heartbeat
    reason: str = ""  # reason of `EXCUSED` and `NO_HEARTBEAT`; else empty
    has_grown: bool = False  # whether a program without a heartbeat has shown another sign of life


class Watch:
    """Detects stalls; used by the supervisor and by the process of `StallMonitor`.

    Time is measured with the clock of the watching process. Times in the heartbeat or of the file are not compared with
    this clock, because network file systems and changes of the wall clock falsify them. Before the first heartbeat the
    phase is `IMPORT`. A heartbeat that cannot be read for the largest timeout of all phases is a stall.

    `excuse` returns the reason why the trainer is allowed to stop at the moment, or None; `poll_s` is the time between
    two looks, in seconds. `written` returns the number of bytes that the trainer has written so far. `has_grown`
    returns whether a program that has not reported a heartbeat yet has shown another sign of life since the last call.
    """

    def __init__(
        self,
        read: Callable[[], Heartbeat | NoHeartbeat],
        excuse: Callable[[], str | None],
        timeouts: AdaptiveTimeouts,
        poll_s: float,
        clock: Callable[[], float] = since_boot_s,
        written: Callable[[], int] = lambda: 0,
        has_grown: Callable[[], bool] = lambda: False,
    ) -> None:
        self.read = read
        self.excuse = excuse
        self.timeouts = timeouts
        self.clock = clock
        self.written = written
        self.has_grown = has_grown
        self._written = 0
        self.gap_s = max(GAP_LEAST_S, GAP_POLLS * poll_s)
        self._last_look_s = self._last_change_s = clock()
        self._sequence = -1
        self._phase = Phase.IMPORT

    def look(self) -> Look:
        """Read and judge the heartbeat."""
        now_s = self.clock()
        gap_s, self._last_look_s = now_s - self._last_look_s, now_s
        found = self.read()
        heartbeat = found if isinstance(found, Heartbeat) else None
        if heartbeat is not None and heartbeat.sequence != self._sequence:
            self._sequence, self._phase, self._last_change_s = heartbeat.sequence, heartbeat.phase, now_s
        has_grown = self._sequence < 0 and self.has_grown()
        if has_grown or (self._phase is Phase.SAVE and self._has_written()):
            self._last_change_s = now_s
        reason = f"the watching process was suspended for {gap_s:.0f} s" if gap_s > self.gap_s else self.excuse() or ""
        if reason:
            self._last_change_s = now_s
        waited_s = now_s - self._last_change_s
        is_lost = heartbeat is None and not (found is NoHeartbeat.MISSING and self._sequence < 0)
        timeout_s = self.timeouts.largest_s() if is_lost else self.timeouts.seconds(self._phase)
        if reason:
            health = Health.EXCUSED
        elif waited_s >= timeout_s:
            health = Health.STALLED
        else:
            health = Health.NO_HEARTBEAT if is_lost else Health.HEALTHY
        return Look(health, self._phase, heartbeat, waited_s, reason or (str(found) if is_lost else ""), has_grown)

    def _has_written(self) -> bool:
        """Return whether more has been written since the last look: a slow save makes progress."""
        before = self._written
        self._written = self.written()
        return self._written > before

    def keep_looking(self) -> None:
        """Exclude the examination since the last look, in which the trainer writes its stacks; the wait continues."""
        self._last_look_s = self.clock()
        self._written = self.written()


def excuse_for(leader: int) -> str | None:
    """Return the reason why a trainer is stopped on purpose, or None.

    Reasons are a debugger on the trainer, and a stop of all of several processes (`kill -STOP` on the group, a
    suspended job). A stop of the trainer alone is a stall.
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


def written_bytes(pid: int) -> int:
    """Return the number of bytes that a process has passed to the kernel for writing; 0 if it cannot be read."""
    try:
        text = (PROC / str(pid) / "io").read_text()
    except OSError:
        return 0
    match = re.search(r"^wchar: (\d+)$", text, re.MULTILINE)
    return int(match[1]) if match else 0
