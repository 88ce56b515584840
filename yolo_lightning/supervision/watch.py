"""Detection of stalls: a heartbeat that does not change within the timeout of its phase."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from yolo_lightning.supervision.heartbeat import NOT_STARTED, Heartbeat, NoHeartbeat, Phase, read_heartbeat
from yolo_lightning.supervision.phase_timeouts import AdaptiveTimeouts
from yolo_lightning.supervision.processes import STOPPED, tracer, tree, written_bytes
from yolo_lightning.utils.activity import Activity
from yolo_lightning.utils.process_identity import read_process, since_boot_s

GAP_POLLS = 3.0
GAP_LEAST_S = 2.0
"""A watching process that did not run for three polls, and at least for this time, was suspended."""


@dataclass(frozen=True, slots=True)
class Look:
    """One look at the heartbeat."""

    heartbeat: Heartbeat  # the last one that could be read, with an unknown activity while none can be read
    waited_s: float = 0.0  # seconds since the last change of the heartbeat
    is_stalled: bool = False
    reason: str = ""  # why a trainer without progress is not stalled yet, if there is a reason
    has_grown: bool = False  # whether a program without a heartbeat has shown another sign of life
    is_readable: bool = True  # whether the heartbeat could be read at this look


class Watch:
    """Detects stalls; used by the supervisor and by the process of `StallMonitor`.

    Time is measured with the clock of the watching process. Times in the heartbeat or of the file are not compared with
    this clock, because network file systems and changes of the wall clock falsify them. Before the first heartbeat the
    phase is `IMPORT`. A heartbeat that cannot be read for the largest timeout of all phases is a stall.

    `path` is the heartbeat file of the process `trainer`. `excuse` returns the reason why the trainer is allowed to
    stop at the moment, or None; `poll_s` is the time between two looks, in seconds. `has_grown` returns whether a
    program that has not reported a heartbeat yet has shown another sign of life since the last call.
    """

    def __init__(
        self, path: Path, trainer: int, excuse: Callable[[int], str | None], timeouts: AdaptiveTimeouts, poll_s: float
    ) -> None:
        self.path = path
        self.trainer = trainer
        self.excuse = excuse
        self.timeouts = timeouts
        self.has_grown: Callable[[], bool] = lambda: False
        self.heartbeat = NOT_STARTED  # the last one that could be read
        self._gap_s = max(GAP_LEAST_S, GAP_POLLS * poll_s)
        self._written_bytes = 0
        self._last_look_s = since_boot_s()
        self._last_change_s = self._last_look_s

    def update(self) -> NoHeartbeat | None:
        """Read the heartbeat; return the reason if there is none, and keep the last one."""
        content = read_heartbeat(self.path, self.trainer)
        if isinstance(content, NoHeartbeat):
            return content
        if content.sequence != self.heartbeat.sequence:
            self._last_change_s = self._last_look_s
        self.heartbeat = content
        return None

    def look(self) -> Look:
        """Read and judge the heartbeat."""
        now_s = since_boot_s()
        gap_s = now_s - self._last_look_s
        self._last_look_s = now_s
        problem = self.update()
        phase = self.heartbeat.phase
        is_started = self.heartbeat is not NOT_STARTED
        has_grown = not is_started and self.has_grown()
        excuse = self.excuse(self.trainer)
        if gap_s > self._gap_s:
            excuse = f"the watching process was suspended for {gap_s:.0f} s"
        if has_grown or (phase is Phase.SAVE and self._has_written()) or excuse:
            self._last_change_s = now_s
        timeout_s = self.timeouts.seconds(phase)
        reason = ""
        if problem is not None and (is_started or problem is not NoHeartbeat.MISSING):
            timeout_s = self.timeouts.largest_s()
            reason = f"no heartbeat: {problem}"
        if excuse:
            reason = f"excused: {excuse}"
        waited_s = now_s - self._last_change_s
        is_stalled = not excuse and waited_s >= timeout_s
        heartbeat = self.heartbeat
        if problem is not None:
            heartbeat = replace(heartbeat, activity=Activity.UNKNOWN)
        return Look(heartbeat, waited_s, is_stalled, reason, has_grown, is_readable=problem is None)

    def _has_written(self) -> bool:
        """Return whether more has been written since the last look: a slow save makes progress."""
        before = self._written_bytes
        self._written_bytes = written_bytes(self.trainer)
        return self._written_bytes > before

    def keep_looking(self) -> None:
        """Exclude the examination since the last look, in which the trainer writes its stacks; the wait continues."""
        self._last_look_s = since_boot_s()
        self._written_bytes = written_bytes(self.trainer)


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
