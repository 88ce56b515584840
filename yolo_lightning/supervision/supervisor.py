"""The supervisor: runs attempt after attempt, and decides after each one whether and how the next one starts."""

import math
import signal
import sys
import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

from yolo_lightning.supervision import live_heartbeat, run_folder_files
from yolo_lightning.supervision.announcer import Announcer
from yolo_lightning.supervision.attempt import Attempt, AttemptRunner
from yolo_lightning.supervision.child_process import run_child
from yolo_lightning.supervision.classify import Diagnosis, StallClass
from yolo_lightning.supervision.fallback_levels import (
    AS_CONFIGURED,
    BACKEND,
    computation_levels,
    levels_below,
    levels_of_words,
)
from yolo_lightning.supervision.heartbeat import Phase
from yolo_lightning.supervision.incident import Incident
from yolo_lightning.supervision.job import Job, can_resume, has_progressed, saved_marks
from yolo_lightning.supervision.kill import adopt_orphans, kill_tree
from yolo_lightning.supervision.outcome import (
    Space,
    ended_by_full_disk,
    error_of,
    is_recoverable,
    signal_name,
    space_of,
)
from yolo_lightning.supervision.phase_timeouts import AdaptiveTimeouts
from yolo_lightning.supervision.restart_policy import REVOKES, FallbackState, Levels, climb, decide, lower
from yolo_lightning.supervision.run_disk import STOP_WAIT_S, DiskHangsError, Recorder, RunDisk
from yolo_lightning.supervision.run_lock import Holder, RunInUseError, run_lock
from yolo_lightning.supervision.trainer import marker_of
from yolo_lightning.utils import run_files
from yolo_lightning.utils.exit_codes import ExitCode, of_signal
from yolo_lightning.utils.json_record import read_json
from yolo_lightning.utils.process_identity import own_mark
from yolo_lightning.utils.run_files import LOG_FILE, PHASE_TIMEOUTS_FILE, STATE_FILE
from yolo_lightning.utils.stop_signals import STOP_SIGNALS, pasteable

EARLY_ATTEMPTS = 2
"""Limit of attempts in a row that stall before data and network are set up: such a stall usually occurs again."""

PROBE = "yolo_lightning.model.native_probe"
LARGEST_DOUBLINGS = 10
LEVEL_TIME = "%Y-%m-%dT%H:%M:%S%z"

End = tuple[int, str]  # exit code and reason of the end of a supervisor


class Supervisor:
    """Runs a job in a run folder until training has finished, a restart cannot help, or a stop signal arrives."""

    def __init__(self, run: Path, job: Job) -> None:
        self.run_folder, self.job, self.settings = run, job, job.settings
        if job.any_command:
            self.levels = Levels(levels_of_words(job.fallbacks), levels_of_words(()))
        else:
            computation = computation_levels(job.options, cpu=self.settings.cpu_fallback)
            self.levels = Levels(levels_below(job.workers), computation)
        self._furthest_step = 0
        # Begins with the mark of this process: `remove_files_of_dead_processes` deletes the folders with this name.
        self.token = f"{own_mark()}-{uuid.uuid4().hex[:8]}"
        self.state = FallbackState()
        self.signals: list[int] = []
        self._space_pauses = 0
        self.disk: RunDisk
        self.recorder: Recorder
        self.announcer: Announcer
        self.runner: AttemptRunner

    def run(self) -> int:
        adopt_orphans()
        try:
            with run_lock(self.run_folder, self.token) as before:
                self.disk = RunDisk(self.run_folder, lambda: bool(self.signals), self._report_disk)
                self.recorder = Recorder(self.run_folder / LOG_FILE, self.disk)
                try:
                    return self._run(before)
                finally:
                    live_heartbeat.remove(self.token)
                    self.recorder.close(STOP_WAIT_S)
                    self.disk.close(0.0 if self.disk.hangs else STOP_WAIT_S)
        except RunInUseError as error:
            print(f"error: {error}", file=sys.stderr)
            return ExitCode.RUN_IN_USE
        except OSError as error:  # no run folder, no program
            print(f"error: cannot supervise {self.run_folder}: {error}", file=sys.stderr)
            return ExitCode.FAILED

    def _run(self, before: Holder | None) -> int:
        for number in STOP_SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
                signal.signal(number, lambda received, _: self.signals.append(received))
        notify, attempts = self.settings.notify, self.settings.attempts
        self.announcer = Announcer(self.run_folder, notify, attempts, self.disk, self.recorder.log)
        end: End = ExitCode.FAILED, "internal error of the supervisor"
        try:
            timeouts = self._prepare(before)
            self.runner = AttemptRunner(
                self.token, self.job, self.disk, self.recorder, self.announcer, self.signals, timeouts
            )
            end = self._run_attempts()
        except DiskHangsError:
            name = signal_name(self.signals[0])
            end = of_signal(self.signals[0]), f"stopped by {name} while the disk of {self.run_folder} hangs"
        except OSError as error:
            end = ExitCode.FAILED, f"failed: {error}"
            raise
        finally:
            code, reason = end
            # A fit that cannot start has printed its error in one line. A later refusal is a part of the run's history.
            if code != ExitCode.USAGE or self.job.any_command or self.state.restarts:
                self.recorder.log(reason)
            self.announcer.ended(code, reason)
        return code

    def _prepare(self, before: Holder | None) -> AdaptiveTimeouts:
        """Remove what an earlier supervisor has left, and read its state and timeouts."""
        if before is not None and before.marker:
            killed = kill_tree(None, marker_of(before.marker), self.settings.kill_wait_s)
            if killed.processes:
                self.recorder.log(f"killed {len(killed.processes)} processes of an earlier supervisor")
        kept = self.disk.ask(FallbackState.read, self.run_folder / STATE_FILE)
        self.state = kept.for_new_supervisor()
        learned = self.disk.ask(AdaptiveTimeouts.read, self.run_folder / PHASE_TIMEOUTS_FILE)
        return AdaptiveTimeouts(
            self.settings.phase_timeouts, learned.longest_s if learned else {}, self.settings.factor
        )

    def _run_attempts(self) -> End:
        resume = False
        while True:
            end = self._run_attempt(self.job.restart_command if resume else self.job.command)
            if end is not None:
                return end
            resume = self.disk.ask(can_resume, self.run_folder, self.job, self._furthest_step)

    def _run_attempt(self, command: tuple[str, ...]) -> End | None:
        """Run one trainer from start to end; return None if another attempt follows."""
        saved_before = self.disk.ask(saved_marks, self.run_folder, self.job)
        attempt = self.runner.run(command, self.levels.overrides(self.state), self.state, self._climb_after_s())
        incident = attempt.incident
        end = self._end_after(attempt)
        if end is not None:
            if incident is not None:
                self.runner.keep_incident(incident, end[1])
            return end
        if attempt.climbs:
            self._climb()
            return None
        assert incident is not None
        if incident.diagnosis.kind is StallClass.WRONG_RESULT and not self.job.any_command:
            names = self.disk.ask(run_folder_files.set_aside_suspects, self.run_folder)
            self.recorder.log(f"checkpoints set aside after the last passed self-check: {', '.join(names) or 'none'}")
        saved_after = self.disk.ask(saved_marks, self.run_folder, self.job)
        saved = has_progressed(self.job, saved_before, saved_after, incident.heartbeat, self._furthest_step)
        lost = None
        if incident.heartbeat is not None:
            self._furthest_step = max(self._furthest_step, incident.heartbeat.step)
            if not self.job.any_command:  # the steps in the checkpoints of another command are unknown
                lost = max(0, incident.heartbeat.step - max(saved_after, default=0))
        if not incident.waited_s:
            if (space := self._full_disk(attempt)) is not None:
                return self._wait_for_space(incident, space, saved, lost)
            lines = () if attempt.worked_on else attempt.lines
            if attempt.code is not None and not (is_recoverable(attempt.code, lines) or self._can_lower(incident)):
                error = error_of(lines)
                reason = "failed; a restart cannot correct this error" + (f": {error}" if error else "")
                self.runner.keep_incident(incident, reason)
                return ExitCode.USAGE if attempt.code == ExitCode.USAGE else ExitCode.FAILED, reason
        if attempt.disk_hung:  # the trainer was not the cause, so that the attempt does not count
            self.state = replace(self.state, attempts=self.state.attempts - 1)
        return self._restart(incident, saved, lost)

    def _end_after(self, attempt: Attempt) -> End | None:
        """Return the end if no further attempt may follow, whatever the incident."""
        if attempt.finished:
            return ExitCode.FINISHED, "finished"
        if attempt.killed.survivors:
            return ExitCode.NEEDS_REBOOT, f"needs reboot: SIGKILL did not end {attempt.killed}"
        if self.signals:
            saved = self.disk.ask(can_resume, self.run_folder, self.job, self._furthest_step)
            resume = f"resume with: {pasteable(self.job.restart_command)}"
            hint = resume if saved else "nothing was saved: start again without --resume"
            return of_signal(self.signals[0]), f"stopped by {signal_name(self.signals[0])}; {hint}"
        return None

    def _full_disk(self, attempt: Attempt) -> Space | None:
        """Return the space of the run folder's disk if a full disk has ended the trainer."""
        try:
            space = self.disk.ask(space_of, self.run_folder)
        except OSError:
            return None
        return space if ended_by_full_disk(attempt.code or 0, attempt.lines, space) else None

    def _wait_for_space(self, incident: Incident, space: Space, saved: bool, lost: int | None) -> End | None:
        """Wait until the next attempt can write its files. An attempt that a full disk has ended does not count."""
        if saved:
            self._space_pauses = 0
            self.state = replace(self.state, attempts=0)
        self.state = replace(self.state, restarts=self.state.restarts + 1)
        sentence = f"{incident.diagnosis.sentence}; the disk of {self.run_folder} is full: {space}"
        incident = replace(incident, diagnosis=Diagnosis(StallClass.DISK_FULL, sentence))
        self.runner.keep_incident(incident, "restart when there is space; this attempt does not count")
        self.recorder.log(incident.sentence())
        event = None if self._space_pauses else "disk full"
        self.announcer.restarting(event, incident.sentence(), self.state, lost)
        while True:
            self._space_pauses += 1
            pause_s = self.settings.pause_after(self._space_pauses)
            self.recorder.log(f"waits {pause_s:g} s for space on the disk of {self.run_folder}: {space}")
            end = self._pause(max(pause_s, self.settings.poll_s))
            if end is not None:
                return end
            try:
                space = self.disk.ask(space_of, self.run_folder)
            except OSError:
                break
            if space.suffices:
                break
        self._keep_state()
        # Written again, because the first report may have been lost on the full disk.
        self.runner.keep_incident(incident, "restart, because there is space again; this attempt does not count")
        self.recorder.log(f"restart in 0 s: there is space again: {space}")
        return None

    def _restart(self, incident: Incident, saved: bool, lost: int | None) -> End | None:
        """Decide whether another attempt follows a stall or an unexpected exit, and wait before it."""
        is_stall = bool(incident.waited_s)
        is_early = is_stall and incident.phase <= Phase.SETUP
        attempts = self.settings.attempts
        decision = decide(
            self.state,
            incident.diagnosis,
            self._levels_now(),
            saved=saved,
            suspects=incident.suspects(),
            epoch=incident.epoch,
            place=incident.place,
            now=time.strftime(LEVEL_TIME),
            max_attempts=min(attempts, EARLY_ATTEMPTS) if is_early else attempts,
        )
        if decision.state.computation is not self.state.computation and incident.diagnosis.kind in REVOKES:
            self._revoke(incident)
        self.state = decision.state
        self._space_pauses = 0
        self._keep_state()
        self.recorder.log(incident.sentence())
        if not decision.restart:
            self.runner.keep_incident(incident, decision.reason)
            return ExitCode.GAVE_UP, f"gave up: {decision.reason}; see {incident.folder}"
        pause_s = self.settings.pause_after(self.state.attempts - 1) if self.state.attempts > 1 else 0.0
        outcome = f"restart in {pause_s:g} s: {decision.reason}"
        self.runner.keep_incident(incident, outcome)
        self.recorder.log(outcome)
        event = None if is_stall else "crashed"
        self.announcer.restarting(event, incident.sentence(), self.state, lost)
        limit_s = self.settings.smoke_test_s
        must_test = incident.diagnosis.kind is StallClass.GPU_STALL and self.job.smoke_test
        # An error counts as a response: the driver works, and the trainer reports the error.
        if must_test and run_child(self.job.smoke_test, limit_s).code is None:
            return ExitCode.NEEDS_REBOOT, f"needs reboot: the GPU has not responded for {limit_s:g} s"
        return self._pause(pause_s)

    def _climb_after_s(self) -> float:
        """Return the seconds without an incident after which a level is taken back; infinite if none can be."""
        hours = self.settings.climb_after_h
        if not hours or self.job.any_command or climb(self.state, self.levels, "", "") is None:
            return math.inf
        return hours * 3600 * 2.0 ** min(self.state.failed_climbs, LARGEST_DOUBLINGS)

    def _climb(self) -> None:
        reason = f"no incident for {self._climb_after_s() / 3600:g} h"
        after = climb(self.state, self.levels, reason, time.strftime(LEVEL_TIME))
        assert after is not None
        self.state = after
        self._keep_state()
        self.recorder.log(f"restart in 0 s: {reason}, fallback level: {after.line}")
        self.announcer.restarting(None, reason, after, 0)

    def _levels_now(self) -> Levels:
        """Return the levels without those that compute as `model.convolution.backend: auto` has chosen."""
        chosen = self._facts().get("convolutions")
        if self.job.any_command or chosen is None or self.state.computation.name != AS_CONFIGURED:
            return self.levels
        computation = computation_levels(self.job.options | {BACKEND: chosen}, cpu=self.settings.cpu_fallback)
        return replace(self.levels, computation=computation)

    def _facts(self) -> dict[str, Any]:
        """Return what the trainer has written about the machine and its convolutions."""
        try:
            facts = self.disk.ask(read_json, self.run_folder / run_files.ENVIRONMENT)
        except (OSError, ValueError):
            return {}
        return facts if isinstance(facts, dict) else {}

    def _revoke(self, incident: Incident) -> None:
        """Store that native convolutions have failed on this device, for `backend: auto` of all runs."""
        facts = self._facts()
        key, cache = (facts.get(name) for name in ("native verdict key", "native verdict file"))
        if facts.get("convolutions") != "native" or not isinstance(key, str) or not isinstance(cache, str):
            return
        failure = f"{incident.diagnosis.kind}{incident.place} in run {self.run_folder.absolute()}"
        words = ("--key", key, "--file", cache, "--failure", failure)
        code = run_child((sys.executable, "-m", PROBE, *words), self.settings.smoke_test_s).code
        self.recorder.log(
            f"native convolutions on this device: failed, {failure}" + ("" if code == 0 else " (not stored)")
        )

    def _can_lower(self, incident: Incident) -> bool:
        """Return whether the trainer ended by NaN, which recurs after a restart, and a lower level may prevent it."""
        if incident.diagnosis.kind is not StallClass.NOT_FINITE:
            return False
        after = lower(self.state, incident.diagnosis, self.levels, saved=True, place="", now="")
        return after.computation is not self.state.computation

    def _pause(self, pause_s: float) -> End | None:
        end_s = time.monotonic() + pause_s
        while not self.signals and (left_s := end_s - time.monotonic()) > 0:
            time.sleep(min(left_s, self.settings.poll_s))
            self.runner.serve()
        if not self.signals:
            return None
        return of_signal(self.signals[0]), f"stopped by {signal_name(self.signals[0])} before the restart"

    def _keep_state(self) -> None:
        try:
            self.disk.ask(FallbackState.write, self.state, self.run_folder / STATE_FILE)
        except OSError as error:
            self.recorder.log(f"could not write {STATE_FILE} ({error.strerror})")

    def _report_disk(self, hangs: bool, sentence: str) -> None:
        self.recorder.log(sentence)
        self.announcer.notifier.send("storage hangs" if hangs else "storage answers again", sentence)
