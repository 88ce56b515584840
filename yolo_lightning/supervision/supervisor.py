"""Attempt after attempt: what an ending means, what to try next, when to give up."""

import signal
import sys
import time
import uuid
from dataclasses import replace
from pathlib import Path
from types import FrameType

from yolo_lightning.supervision import disk_space, live_heartbeat
from yolo_lightning.supervision.announcer import Announcer, write_standing
from yolo_lightning.supervision.attempt import Attempt, Attendant
from yolo_lightning.supervision.classify import Diagnosis, StallClass
from yolo_lightning.supervision.fallback import Ending, EndKind, LadderState, decide, rungs_from
from yolo_lightning.supervision.heartbeat import Phase
from yolo_lightning.supervision.incident import Incident
from yolo_lightning.supervision.kill import Killed, kill_tree
from yolo_lightning.supervision.outcome import ExitCode, hopeless, signal_name
from yolo_lightning.supervision.output import Recorder
from yolo_lightning.supervision.phase_timeouts import AdaptiveTimeouts
from yolo_lightning.supervision.run_disk import PATIENCE_S, DiskHangsError, RunDisk
from yolo_lightning.supervision.run_lock import Holder, RunInUseError, run_lock
from yolo_lightning.supervision.settings import Job
from yolo_lightning.supervision.smoke_test import gpu_answers
from yolo_lightning.supervision.state_file import Standing
from yolo_lightning.supervision.trainer import marker_of, remove_temporary_folder
from yolo_lightning.utils import run_files
from yolo_lightning.utils.run_files import LOG_FILE, PHASE_TIMEOUTS_FILE, STATE_FILE
from yolo_lightning.utils.stop_signals import pasteable

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
EARLY_ATTEMPTS = 2
"""A trainer that stalls before it has data and network gets one more try; what hangs there hangs again."""


class Supervisor:
    """Runs a job in a run folder until it has finished, cannot, or is told to stop.

    Args:
        run: Run folder.
        job: What to run.
    """

    def __init__(self, run: Path, job: Job) -> None:
        self.run_folder, self.job, self.settings = run, job, job.settings
        self.rungs = rungs_from(job.workers)
        self.token = uuid.uuid4().hex
        self.state = LadderState()
        self.signals: list[int] = []
        self._said = ""
        self._space_pauses = 0
        self.disk: RunDisk
        self.recorder: Recorder
        self.announcer: Announcer
        self.attendant: Attendant

    def run(self) -> int:
        """Until the end; returns the exit code."""
        try:
            with run_lock(self.run_folder, self.token) as before:
                self.disk = RunDisk(self.run_folder, lambda: bool(self.signals), self._report_disk)
                self.recorder = Recorder(self.run_folder / LOG_FILE, self.disk.helper)
                try:
                    return self._run(before)
                finally:
                    live_heartbeat.remove(self.token)
                    self.recorder.close(PATIENCE_S)
                    self.disk.close()
        except RunInUseError as error:
            print(f"error: {error}", file=sys.stderr)
            return ExitCode.RUN_IN_USE
        except OSError as error:  # no run folder, no program
            print(f"error: cannot supervise {self.run_folder}: {error}", file=sys.stderr)
            return ExitCode.FAILED

    def _run(self, before: Holder | None) -> int:
        for number in STOP_SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # nohup stays nohup
                signal.signal(number, self._note)
        settings = self.settings
        self.announcer = Announcer(self.run_folder, settings.notify, settings.attempts, self._write_standing)
        code, reason = ExitCode.FAILED.value, "the supervisor itself has failed"
        try:
            timeouts = self._begin(before)
            self.attendant = Attendant(
                self.run_folder,
                self.token,
                settings,
                self.disk,
                self.recorder,
                self.announcer,
                self._say,
                self.signals,
                timeouts,
            )
            code = self._attempts()
            reason = self._said
            return code
        except DiskHangsError:
            reason = f"stopped by {signal_name(self.signals[0])} while the disk of {self.run_folder} hangs"
            self._say(reason)
            code = 128 + self.signals[0]
            return code
        finally:
            self.announcer.ended(code, reason)

    def _begin(self, before: Holder | None) -> AdaptiveTimeouts:
        """Clear up after an earlier supervisor, and read what it has learned."""
        if before is not None and before.marker:
            killed = kill_tree(None, marker_of(before.marker), self.settings.kill_wait_s)
            self.disk.post(remove_temporary_folder, before.marker)
            live_heartbeat.remove(before.marker)
            if killed.processes:
                self._say(f"ended {len(killed.processes)} processes that an earlier supervisor had left")
        kept = self.disk.ask(LadderState.read, self.run_folder / STATE_FILE)
        self.state = kept.begun_anew(len(self.rungs))
        learned = self.disk.ask(AdaptiveTimeouts.read, self.run_folder / PHASE_TIMEOUTS_FILE)
        return AdaptiveTimeouts(
            self.settings.phase_timeouts, learned.longest_s if learned else {}, self.settings.factor
        )

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signals.append(number)

    def _attempts(self) -> int:
        resume = False
        while True:
            code = self._attempt(resume)
            if code is not None:
                return code
            resume = self.disk.ask(run_files.has_checkpoint, self.run_folder)

    def _attempt(self, resume: bool) -> int | None:
        """One trainer from start to end; the exit code, or None for another try."""
        saved_before = self.disk.ask(run_files.saved_steps, self.run_folder)
        command = self.job.restart_command if resume else self.job.command
        attempt = self.attendant.attempt(command, self.rungs[self.state.rung], self.state.restarts)
        incident = attempt.incident
        if attempt.finished:
            self._say("finished")
            if incident is not None:
                self.attendant.keep_incident(incident, "ended; the run had finished")
            return ExitCode.FINISHED
        outcome = self._stopped(attempt.killed)
        if outcome is None:
            assert incident is not None
            saved_after = self.disk.ask(run_files.saved_steps, self.run_folder)
            saved = run_files.has_saved(saved_before, saved_after)
            newest = max(saved_after, default=0)
            lost = None if incident.heartbeat is None else max(0, incident.heartbeat.step - newest)
            if not incident.waited_s and (found := self._full_disk(attempt)) is not None:
                return self._wait_for_space(incident, found, saved, lost)
            if attempt.code is not None and not incident.waited_s:
                outcome = hopeless(attempt.code, attempt.lines)
            if outcome is None:
                if attempt.disk_hung:  # does not count, as the disk was waited for
                    self.state = replace(self.state, attempts=self.state.attempts - 1)
                return self._decide(incident, attempt.code, saved, lost)
        exit_code, reason = outcome
        if incident is not None:
            self.attendant.keep_incident(incident, reason)
        self._say(reason)
        return exit_code

    def _stopped(self, killed: Killed) -> tuple[int, str] | None:
        """Why no further attempt may be made, whatever the trainer did."""
        if killed.needs_reboot:
            left = "; ".join(f"process {pid}: {where}" for pid, where in killed.survivors.items())
            return ExitCode.NEEDS_REBOOT, f"needs reboot: SIGKILL did not end {left}"
        if self.signals:
            saved = self.disk.ask(run_files.has_checkpoint, self.run_folder)
            resume = f"resume with: {pasteable(self.job.restart_command)}"
            hint = resume if saved else "nothing was saved yet: start again without --resume"
            return 128 + self.signals[0], f"stopped by {signal_name(self.signals[0])}; {hint}"
        return None

    def _full_disk(self, attempt: Attempt) -> disk_space.Space | None:
        """The space of the run folder's disk if its lack has ended the trainer."""
        try:
            found = self.disk.ask(disk_space.space_of, self.run_folder)
        except OSError:
            return None
        return found if disk_space.ended_by_full_disk(attempt.code or 0, attempt.lines, found) else None

    def _wait_for_space(self, incident: Incident, found: disk_space.Space, saved: bool, lost: int | None) -> int | None:
        """Wait until the next attempt can write its files; an attempt that a full disk has ended does not count."""
        if saved:
            self._space_pauses = 0
            self.state = replace(self.state, attempts=0)
        self.state = replace(self.state, restarts=self.state.restarts + 1)
        sentence = f"{incident.diagnosis.sentence}; the disk of {self.run_folder} is full: {found}"
        incident = replace(incident, diagnosis=Diagnosis(StallClass.DISK_FULL, sentence))
        self.attendant.keep_incident(incident, "restart when there is space; this attempt does not count")
        self._say(incident.sentence())
        first = self._space_pauses == 0
        self.announcer.disk_full(incident.sentence(), lost, self.state.restarts, first=first)
        while True:
            pause_s = disk_space.pause_s(self._space_pauses, self.settings.pause_s, self.settings.max_pause_s)
            self._space_pauses += 1
            self._say(f"waits {pause_s:g} s for space on the disk of {self.run_folder}: {found}")
            code = self._pause(max(pause_s, self.settings.poll_s))
            if code is not None:
                return code
            try:
                found = self.disk.ask(disk_space.space_of, self.run_folder)
            except OSError:
                break
            if found.suffices:
                break
        self._keep_state()
        # Once more, as the full disk may have kept nothing of it.
        self.attendant.keep_incident(incident, "restart, as there is space again; this attempt does not count")
        self._say(f"restart in 0 s: there is space again: {found}")
        return None

    def _decide(self, incident: Incident, code: int | None, saved: bool, lost: int | None) -> int | None:
        kind = EndKind.STALL if incident.waited_s else EndKind.CRASH if code else EndKind.EXIT_WITHOUT_MARKER
        early = bool(incident.waited_s) and incident.phase <= Phase.SETUP
        decision = decide(
            self.state,
            Ending(kind, incident.diagnosis, saved, incident.suspects(), incident.epoch),
            self.rungs,
            min(self.settings.attempts, EARLY_ATTEMPTS) if early else self.settings.attempts,
            self.settings.pause_s,
            self.settings.max_pause_s,
        )
        self.state = decision.state
        self._space_pauses = 0
        self._keep_state()
        outcome = f"restart in {decision.pause_s:g} s: {decision.reason}" if decision.restart else decision.reason
        self.attendant.keep_incident(incident, outcome)
        self._say(incident.sentence())
        if not decision.restart:
            self._say(f"gave up: {decision.reason}; what was seen lies in {incident.folder}")
            return ExitCode.GAVE_UP
        self._say(outcome)
        name = self.rungs[self.state.rung].name
        self.announcer.restarts(decision, name, incident.sentence(), lost, stalled=bool(incident.waited_s))
        if incident.diagnosis.kind is StallClass.GPU_STALL and not self._gpu_answers():
            self._say(f"needs reboot: the GPU has not answered for {self.settings.smoke_test_s:g} s")
            return ExitCode.NEEDS_REBOOT
        return self._pause(decision.pause_s)

    def _gpu_answers(self) -> bool:
        command = self.job.smoke_test
        return not command or gpu_answers(command, self.settings.smoke_test_s, self.token)

    def _pause(self, pause_s: float) -> int | None:
        end_s = time.monotonic() + pause_s
        while not self.signals and (left_s := end_s - time.monotonic()) > 0:
            time.sleep(min(left_s, self.settings.poll_s))
            self.recorder.serve()
            self.disk.look()
        if self.signals:
            self._say(f"stopped by {signal_name(self.signals[0])} before the restart")
        return 128 + self.signals[0] if self.signals else None

    def _keep_state(self) -> None:
        try:
            self.disk.ask(LadderState.write, self.state, self.run_folder / STATE_FILE)
        except OSError as error:
            self._say(f"could not write {STATE_FILE} ({error.strerror}); going on without")

    def _write_standing(self, standing: Standing, path: Path) -> None:
        self.disk.post(write_standing, standing, path, replaces=path.name)

    def _report_disk(self, hangs: bool, sentence: str) -> None:
        """The disk of the run folder hangs, or answers again."""
        self._say(sentence)
        if hangs:
            self.announcer.storage_hangs(sentence)
        else:
            self.announcer.storage_answers(sentence)

    def _say(self, text: str) -> None:
        self._said = text
        self.recorder.record(f"supervisor: {time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n".encode())
