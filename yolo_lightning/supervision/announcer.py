"""Says what the supervisor does: into the run folder for whoever looks on, and to those who want to be told."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from yolo_lightning.supervision.fallback import Decision
from yolo_lightning.supervision.heartbeat import Heartbeat, Phase
from yolo_lightning.supervision.messenger import Messenger
from yolo_lightning.supervision.notify import Event, News, NotifySettings
from yolo_lightning.supervision.outcome import ExitCode
from yolo_lightning.supervision.state_file import Standing, SupervisorState
from yolo_lightning.utils.run_files import SUPERVISOR_FILE

ENDS = {
    ExitCode.FINISHED: (SupervisorState.FINISHED, Event.FINISHED),
    ExitCode.FAILED: (SupervisorState.FAILED, Event.FAILED),
    ExitCode.USAGE: (SupervisorState.FAILED, Event.FAILED),
    ExitCode.GAVE_UP: (SupervisorState.GAVE_UP, Event.GAVE_UP),
    ExitCode.NEEDS_REBOOT: (SupervisorState.NEEDS_REBOOT, Event.NEEDS_REBOOT),
}
"""Any other code is that of a signal that ended the run."""

AT_WORK = frozenset({Phase.FETCH, Phase.STEP, Phase.VALIDATE, Phase.METRICS, Phase.SAVE, Phase.EPOCH_END})
"""Phases that a trainer reaches after its first batch."""


def write_standing(standing: Standing, path: Path) -> None:
    """Write the supervisor's state into the run folder; a full disk must not end the run."""
    with suppress(OSError):
        standing.write(path)


class Announcer:
    """Told by the supervisor's loop, tells others.

    Args:
        run: Run folder.
        settings: Whom to tell.
        attempts: Failed attempts in a row after which the supervisor gives up.
        write: Writes the standing into a file of the run folder, now or later.
    """

    def __init__(
        self,
        run: Path,
        settings: NotifySettings,
        attempts: int,
        write: Callable[[Standing, Path], None] = write_standing,
    ) -> None:
        self.run, self.settings, self._write = run, settings, write
        self._standing = Standing.of_this_process(
            SupervisorState.RUNNING, "", attempt=1, attempts=attempts, restarts=0, rung=""
        )
        self._messenger = Messenger(run, settings)
        self._furthest = (-1, 0, 0)
        self._pinged_s: float | None = None
        self._lost: int | None = None
        self._started = False

    def begins(self, trainer: int, rung: str, restarts: int) -> None:
        """An attempt has been started as process `trainer`."""
        self._stand(SupervisorState.RUNNING, "", trainer=trainer, rung=rung, restarts=restarts)
        if not self._started:
            self._tell(Event.STARTED, f"rung '{rung}'", rung=rung)
        self._started = True

    def sees(self, heartbeat: Heartbeat | None) -> None:
        """The record as it is now: pings while it goes on, and says when a restart has worked."""
        if heartbeat is None or heartbeat.phase not in AT_WORK:
            return
        self._say_recovered(f"trains on from step {heartbeat.step}")
        is_validating = heartbeat.phase is Phase.VALIDATE
        place = (heartbeat.step, int(is_validating), heartbeat.batch if is_validating else 0)
        now_s = time.monotonic()
        is_due = self._pinged_s is None or now_s >= self._pinged_s + self.settings.ping_interval_s
        if place > self._furthest and is_due:  # going through the same steps again and again is no progress
            self._furthest, self._pinged_s = place, now_s
            self._messenger.ping()

    def stalled(self, sentence: str) -> None:
        """It makes no progress."""
        self._tell(Event.STALLED, sentence)
        self._stand(SupervisorState.STALLED, sentence)

    def storage_hangs(self, sentence: str) -> None:
        """The disk of the run folder has not answered for a while."""
        self._tell(Event.STORAGE_HANGS, sentence)

    def storage_answers(self, sentence: str) -> None:
        """The disk of the run folder answers again."""
        self._tell(Event.STORAGE_ANSWERS, sentence)

    def waits_for_storage(self, sentence: str) -> None:
        """Processes cannot be ended before the disk answers; the next attempt waits for that."""
        self._tell(Event.WAITS_FOR_STORAGE, sentence)
        self._stand(SupervisorState.STALLED, sentence)

    def disk_full(self, sentence: str, lost: int | None, restarts: int, *, first: bool) -> None:
        """The disk of the run folder is full; the next attempt waits for space."""
        if first:
            self._tell(Event.DISK_FULL, sentence)
        if lost is not None:
            self._lost = lost
        self._stand(SupervisorState.RESTARTING, sentence, restarts=restarts, trainer=0)

    def recovered(self) -> None:
        """It makes progress again, without a restart."""
        self._stand(SupervisorState.RUNNING, "")
        self._tell(Event.RECOVERED, "by itself, no step lost", steps_lost=0, rung=self._standing.rung)

    def restarts(self, decision: Decision, rung: str, sentence: str, lost: int | None, *, stalled: bool) -> None:
        """An attempt has failed, `lost` steps after its last checkpoint, and another one follows on `rung`."""
        if not stalled:
            self._tell(Event.CRASHED, sentence)
        if rung != self._standing.rung:
            self._tell(Event.DEGRADED, f"the loader goes on with '{rung}', not '{self._standing.rung}'", rung=rung)
        if lost is not None:
            self._lost = lost
        state = decision.state
        self._stand(
            SupervisorState.RESTARTING,
            sentence,
            attempt=state.attempts + 1,
            restarts=state.restarts,
            rung=rung,
            trainer=0,
        )

    def ended(self, code: int, reason: str) -> None:
        """The supervisor ends with exit code `code`."""
        state, event = next(
            (ends for known, ends in ENDS.items() if known == code), (SupervisorState.INTERRUPTED, Event.INTERRUPTED)
        )
        self._stand(state, reason, trainer=0)
        if state is SupervisorState.FINISHED:
            self._say_recovered("trained on to the end")
        self._tell(event, "" if reason == event else reason, exit_code=int(code))
        self._messenger.close()

    def _say_recovered(self, what: str) -> None:
        """Once after a restart that has worked."""
        if self._lost is None:
            return
        rung = self._standing.rung
        self._tell(Event.RECOVERED, f"{what}, {self._lost} steps lost, rung '{rung}'", steps_lost=self._lost, rung=rung)
        self._lost = None

    def _stand(self, state: SupervisorState, sentence: str, **changed: str | int) -> None:
        self._standing = replace(self._standing, state=state, sentence=sentence, since_s=time.time(), **changed)  # type: ignore[arg-type]
        self._write(self._standing, self.run / SUPERVISOR_FILE)

    def _tell(self, event: Event, text: str, **details: str | int | float) -> None:
        self._messenger.tell(News(event, text, details))
