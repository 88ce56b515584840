"""Reports of the supervisor: `supervisor.json` in the run folder, notifications and pings."""

import math
import os
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from yolo_lightning.supervision.fallback_levels import FallbackState
from yolo_lightning.supervision.heartbeat import Heartbeat, Phase
from yolo_lightning.supervision.helper_process import Call, Helper
from yolo_lightning.supervision.notify import Notifier, NotifySettings
from yolo_lightning.supervision.run_status import (
    Status,
    SupervisorState,
    SupervisorStatus,
    buffer_s,
    read_status,
    remaining,
)
from yolo_lightning.utils.activity import Activity
from yolo_lightning.utils.addresses import redacted
from yolo_lightning.utils.exit_codes import ExitCode
from yolo_lightning.utils.files import write_json
from yolo_lightning.utils.process_identity import started_ticks
from yolo_lightning.utils.run_files import LOG_FILE, STATUS_FILE, SUPERVISOR_FILE

ENDS: dict[int, SupervisorState] = {
    ExitCode.FINISHED: SupervisorState.FINISHED,
    ExitCode.FAILED: SupervisorState.FAILED,
    ExitCode.USAGE: SupervisorState.FAILED,
    ExitCode.GAVE_UP: SupervisorState.GAVE_UP,
    ExitCode.NEEDS_REBOOT: SupervisorState.NEEDS_REBOOT,
}
"""State by exit code; any other code is that of a stop signal."""

AFTER_FIRST_BATCH = frozenset({Phase.FETCH, Phase.STEP, Phase.VALIDATE, Phase.METRICS, Phase.SAVE, Phase.EPOCH_END})
CHECK_INTERVAL_S = 30.0
DAY_S = 86_400.0
WAIT_S = 30.0  # a shorter wait of the trainer is not reported


class Announcer:
    """Reports the state of the supervisor. No method waits, except `ended`; `disk` makes all file accesses."""

    def __init__(self, run: Path, settings: NotifySettings, disk: Helper, log: Callable[[str], None]) -> None:
        self.run = run
        self._disk = disk
        self._status = SupervisorStatus(
            state=SupervisorState.RUNNING,
            since_s=time.time(),
            process=os.getpid(),
            process_started_ticks=started_ticks(os.getpid()),
            host=socket.gethostname(),
        )
        self._log = log
        self.notifier = Notifier(run, settings, log)
        self._began_s = time.time()
        self._next_check_s = 0.0 if settings.webhook else math.inf
        self._check: Call[Status | None] | None = None
        self._alarms: dict[str, float] = {}  # begin of each alarm that was sent, by name of the watch
        self._buffer_s = math.inf  # until a deadline without a plan, as last read
        self._steps_lost: int | None = None
        self._next_waiting_s = 0.0  # next notification of a wait
        self._waits_since_s = math.inf  # begin of a wait of the trainer itself
        self._started = False
        self._growths = 0  # signs of life of a program without a heartbeat

    def serve(self) -> None:
        """Send what is queued, and read the status file from time to time."""
        self.notifier.serve()
        if self._check is not None and self._check.answered:
            if isinstance(self._check.value, Status):
                self._report_status(self._check.value)
            self._check = None
        if self._check is None and time.monotonic() >= self._next_check_s:
            self._next_check_s = time.monotonic() + CHECK_INTERVAL_S
            self._check = self._disk.begin(read_status, self.run / STATUS_FILE)

    def tell(self, event: str, text: str) -> None:
        """Send a notification of an event, and write the event to the log."""
        self._log(f"{event}: {text}")
        self.notifier.send(event, text)

    def attempt_started(self, trainer: int, state: FallbackState) -> None:
        """Report the start of an attempt as process `trainer`."""
        self._update(SupervisorState.RUNNING, "", trainer=trainer, fallback_level=state.line, restarts=state.restarts)
        if not self._started:
            self.notifier.send("started", f"fallback level: {state.line}")
        self._started = True

    def progress_made(self, progress: Heartbeat) -> None:
        """Ping if training has made progress, and report that a restart was successful."""
        if progress.activity is Activity.WAIT:
            self._report_wait()
            return
        self._waits_since_s = math.inf
        if progress.phase not in AFTER_FIRST_BATCH:
            return
        self._report_recovery(f"training resumed from step {progress.step}")
        place = (progress.step, 0, 0)
        if progress.phase is Phase.VALIDATE:
            place = (progress.step, 1, progress.batch)
        self.notifier.progress(place)

    def _report_wait(self) -> None:
        """Report that the trainer itself waits for absent files: at the start of the wait, and once a day."""
        self._waits_since_s = min(self._waits_since_s, time.monotonic())
        if time.monotonic() >= self._waits_since_s + WAIT_S:
            self._steps_lost = self._steps_lost or 0
            self._tell_wait(f"the trainer waits for absent files; see {self.run / LOG_FILE}")

    def _tell_wait(self, sentence: str) -> None:
        """Send a notification of a wait, at most once a day."""
        if time.monotonic() >= self._next_waiting_s:
            self._next_waiting_s = time.monotonic() + DAY_S
            self.notifier.send("waiting", sentence)

    def program_grew(self) -> None:
        """Ping because a program without a heartbeat has shown another sign of life."""
        self._growths += 1
        self.notifier.progress((self._growths, 0, 0))

    def stalled(self, sentence: str, folder: Path) -> None:
        """Report a stall, whose incident report is in `folder`."""
        self.tell("stalled", f"{sentence}; see {folder}")
        self._update(SupervisorState.STALLED, sentence)

    def recovered(self) -> None:
        """Report progress after a stall, without a restart."""
        self._update(SupervisorState.RUNNING, "")
        self.tell("recovered", "without a restart, 0 steps lost")

    def restarting(self, sentence: str, state: FallbackState, lost: int | None) -> None:
        """Report that an attempt has ended because of `sentence`, and that another one follows with `state`.

        `lost` is the number of steps trained since the last checkpoint, if known.
        """
        if state.line != self._status.fallback_level:
            change = "restored" if state.on_trial else "degraded"
            self.notifier.send(change, f"fallback level: {state.line}; before: {self._status.fallback_level}")
        if lost is not None:
            self._steps_lost = lost
        self._update(
            SupervisorState.RESTARTING,
            sentence,
            attempt=state.attempts + 1,
            restarts=state.restarts,
            fallback_level=state.line,
            trainer=0,
        )

    def waiting(self, sentence: str, state: FallbackState, lost: int | None) -> None:
        """Report that the next attempt waits for something outside of the run: at the start, and once a day."""
        self._tell_wait(sentence)
        self.restarting(sentence, state, lost)

    def ended(self, code: int, reason: str) -> None:
        """Report that the supervisor ends with exit code `code`, and send what is queued."""
        state = ENDS.get(code, SupervisorState.INTERRUPTED)
        self._update(state, reason, trainer=0)
        if state is SupervisorState.FINISHED:
            self._report_recovery("training finished")
        self.notifier.send(state.value, "" if reason == state else reason)
        self.notifier.close()

    def _report_recovery(self, event: str) -> None:
        if self._steps_lost is not None:
            level = self._status.fallback_level
            self.notifier.send("recovered", f"{event}, {self._steps_lost} steps lost, fallback level: {level}")
            self._steps_lost = None
            self._next_waiting_s = 0.0

    def _report_status(self, status: Status) -> None:
        """Report non-finite losses, a missed deadline, each new alarm of a watch, and the end of a reported alarm."""
        if status.written_s < self._began_s:
            return
        losses = ", ".join(status.not_finite())
        if losses:
            place = f"in epoch {status.epoch + 1}, batch {status.batch}, step {status.step}"
            self.notifier.send("loss is not finite", f"{losses} {place}")
        if status.deadline_problem:
            self.notifier.send("deadline cannot be met", status.deadline_problem)
        self._report_buffer(status)
        for finding in status.findings:
            watch = finding.watch
            is_sent = self._alarms.get(watch) == finding.since_s
            if finding.until_s is None and not is_sent:
                self._alarms[watch] = finding.since_s
                self.notifier.send(watch, finding.sentence)
            elif finding.until_s is not None and is_sent:
                del self._alarms[watch]
                minutes = (finding.until_s - finding.since_s) / 60
                self.notifier.send(f"{watch}: over", f"after {minutes:.0f} min; last: {finding.sentence}")

    def _report_buffer(self, status: Status) -> None:
        """Report once that the buffer until a deadline without a plan has fallen below a day, or that it is used up."""
        rest = remaining(status, status.step_s, status.validation_s, status.epoch, status.batch)
        now_buffer_s = buffer_s(status, rest, status.written_s)
        if status.is_planned or now_buffer_s is None:
            return
        before_s = self._buffer_s
        self._buffer_s = now_buffer_s
        hours = now_buffer_s / 3600
        if now_buffer_s < 0 <= before_s:
            self.notifier.send("deadline cannot be met", f"the estimated end is {-hours:.1f} h after the deadline")
        elif now_buffer_s < DAY_S <= before_s:
            self.notifier.send("less than a day of buffer", f"the estimated end is {hours:.1f} h before the deadline")

    def _update(self, state: SupervisorState, sentence: str, **changed: str | int) -> None:
        sentence = redacted(sentence)
        self._status = replace(self._status, state=state, sentence=sentence, since_s=time.time(), **changed)  # type: ignore[arg-type]
        self._disk.post(write_json, self.run / SUPERVISOR_FILE, asdict(self._status), replaces=SUPERVISOR_FILE)
