"""The loop: start the trainer, watch it, look at it when it stalls, end it cleanly, decide, start again."""

import signal
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path
from types import FrameType

from yolo_lightning.allowances import Allowances
from yolo_lightning.files import remove_leftovers
from yolo_lightning.progress import ALLOWANCES_FILE, FINISHED_FILE, PROGRESS_FILE, Phase, Progress, ProgressReader
from yolo_lightning.stopping import pasteable
from yolo_lightning.supervise import run_files
from yolo_lightning.supervise.announcer import Announcer
from yolo_lightning.supervise.classify import StallClass, classify
from yolo_lightning.supervise.evidence import Request, collect, keep
from yolo_lightning.supervise.incident import Incident
from yolo_lightning.supervise.kill import Killed, kill_tree
from yolo_lightning.supervise.ladder import STATE_FILE, Ending, EndKind, LadderState, decide, rungs_from
from yolo_lightning.supervise.outcome import (
    EXIT_BY_TIMER,
    FAULTS,
    ExitCode,
    diagnose_exit,
    diagnose_timer,
    hopeless,
    signal_name,
)
from yolo_lightning.supervise.output import LOG_FILE, append, pass_on
from yolo_lightning.supervise.run_lock import Holder, RunInUseError, run_lock
from yolo_lightning.supervise.settings import Job
from yolo_lightning.supervise.smoke_test import gpu_answers
from yolo_lightning.supervise.trainer import RunningTrainer, marker_of, remove_temporary_folder
from yolo_lightning.supervise.watch import Health, Watch, excuse_for

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
        self.allowances = Allowances(self.settings.floors, {}, self.settings.factor)
        self.reader = ProgressReader(run / PROGRESS_FILE)
        self.signals: list[int] = []
        self._said = ""
        self._seen: Progress | None = None

    def run(self) -> int:
        """Until the end; returns the exit code."""
        try:
            with run_lock(self.run_folder, self.token) as before:
                self._begin(before)
                self.announcer = Announcer(self.run_folder, self.settings.notify, self.settings.attempts)
                code, reason = ExitCode.FAILED.value, "the supervisor itself has failed"
                try:
                    code = self._attempts()
                    reason = self._said
                    return code
                finally:
                    self.announcer.ended(code, reason)
        except RunInUseError as error:
            print(f"error: {error}", file=sys.stderr)
            return ExitCode.RUN_IN_USE
        except OSError as error:  # no run folder, no program
            print(f"error: cannot supervise {self.run_folder}: {error}", file=sys.stderr)
            return ExitCode.FAILED

    def _begin(self, before: Holder | None) -> None:
        for number in STOP_SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # nohup stays nohup
                signal.signal(number, self._note)
        if before is not None and before.marker:
            killed = kill_tree(None, marker_of(before.marker), self.settings.kill_wait_s)
            remove_temporary_folder(before.marker)
            if killed.processes:
                self._say(f"ended {len(killed.processes)} processes that an earlier supervisor had left")
        kept = LadderState.read(self.run_folder / STATE_FILE)
        self.state = kept.begun_anew(len(self.rungs))
        learned = Allowances.read(self.run_folder / ALLOWANCES_FILE)
        if learned is not None:
            self.allowances = Allowances(self.settings.floors, learned.longest_s, self.settings.factor)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signals.append(number)

    def _attempts(self) -> int:
        resume = False
        while True:
            code = self._attempt(resume)
            if code is not None:
                return code
            resume = run_files.has_checkpoint(self.run_folder)

    def _attempt(self, resume: bool) -> int | None:
        """One trainer from start to end; the exit code, or None for another try."""
        run_files.clear(self.run_folder)
        self._seen = None
        self._keep_allowances()
        saved_before = run_files.last_saved(self.run_folder)
        command = self.job.restart_command if resume else self.job.command
        rung = self.rungs[self.state.rung]
        trainer = RunningTrainer(command, rung, self.run_folder, self.token)
        try:
            self.announcer.begins(trainer.pid, rung.name, self.state.restarts)
            incident = self._attend(trainer)
        finally:
            killed = self._end(trainer)
        if (self.run_folder / FINISHED_FILE).is_file():
            self._say("finished")
            if incident is not None:
                incident.keep("ended; the run had finished")
            return ExitCode.FINISHED
        code, lines = trainer.process.returncode, trainer.output.lines()
        if incident is None and not self.signals:
            incident = self._incident_of_exit(trainer)
        outcome = self._stopped(killed)
        if outcome is None and code is not None and not (incident and incident.waited_s):
            outcome = hopeless(code, lines)
        if outcome is None:
            assert incident is not None
            return self._decide(
                incident, code, run_files.has_saved(saved_before, run_files.last_saved(self.run_folder))
            )
        exit_code, reason = outcome
        if incident is not None:
            incident.keep(reason)
        self._say(reason)
        return exit_code

    def _stopped(self, killed: Killed) -> tuple[int, str] | None:
        """Why no further attempt may be made, whatever the trainer did."""
        if killed.needs_reboot:
            left = "; ".join(f"process {pid}: {where}" for pid, where in killed.survivors.items())
            return ExitCode.NEEDS_REBOOT, f"needs reboot: SIGKILL did not end {left}"
        if self.signals:
            saved = run_files.has_checkpoint(self.run_folder)
            resume = f"resume with: {pasteable(self.job.restart_command)}"
            hint = resume if saved else "nothing was saved yet: start again without --resume"
            return 128 + self.signals[0], f"stopped by {signal_name(self.signals[0])}; {hint}"
        return None

    def _decide(self, incident: Incident, code: int | None, saved: bool) -> int | None:
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
        try:
            self.state.write(self.run_folder / STATE_FILE)
        except OSError as error:
            self._say(f"could not write {STATE_FILE} ({error.strerror}); going on without")
        outcome = f"restart in {decision.pause_s:g} s: {decision.reason}" if decision.restart else decision.reason
        incident.keep(outcome)
        self._say(incident.sentence())
        if not decision.restart:
            self._say(f"gave up: {decision.reason}; what was seen lies in {incident.folder}")
            return ExitCode.GAVE_UP
        self._say(outcome)
        step = incident.progress.step if incident.progress is not None else None
        name = self.rungs[self.state.rung].name
        self.announcer.restarts(decision, name, incident.sentence(), step, stalled=bool(incident.waited_s))
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
        if self.signals:
            self._say(f"stopped by {signal_name(self.signals[0])} before the restart")
        return 128 + self.signals[0] if self.signals else None

    def _attend(self, trainer: RunningTrainer) -> Incident | None:
        """Until the trainer has ended, must be killed, or was told to stop; the stall that it is in, if any."""
        watch = Watch(
            lambda: self.reader.read(trainer.pid),
            lambda: excuse_for(trainer.pid),
            self.allowances,
            self.settings.poll_s,
        )
        incident: Incident | None = None
        kill_at_s = 0.0
        last_reason = ""
        while trainer.process.poll() is None:
            trainer.output.pump(self.settings.poll_s)
            if self.signals:
                self._stop(trainer)
                return None
            look = watch.look()
            if look.progress is not None:
                self._seen = look.progress
                self.allowances = self.allowances.learn(look.progress.longest_s, self.settings.kill_after_s)
                watch.allowances = self.allowances
                self.announcer.sees(look.progress)
            if look.reason != last_reason and look.reason:
                self._say(f"{look.health}: {look.reason}")
            last_reason = look.reason
            if look.health is not Health.STALLED:
                if incident is not None:
                    incident.keep("recovered by itself")
                    self._say("recovered")
                    self.announcer.recovered()
                    incident = None
            elif incident is None:
                kill_at_s = time.monotonic() + self.settings.kill_after_s
                incident = self._look_closer(trainer, look.phase, look.progress, look.waited_s)
                watch.keep_looking()
            elif time.monotonic() >= kill_at_s:
                return incident
        return incident

    def _look_closer(
        self, trainer: RunningTrainer, phase: Phase, progress: Progress | None, waited_s: float
    ) -> Incident:
        """Collect evidence and judge it."""
        folder = run_files.incident_folder(self.run_folder)
        lines = trainer.output.lines()
        limits_s = (self.settings.part_timeout_s, self.settings.resample_s)
        request = Request(folder, trainer.pid, self.reader.path, progress, phase, lines, *limits_s)
        incident = Incident(folder, phase, progress, classify(collect(request)), waited_s)
        incident.keep(f"to be ended in {self.settings.kill_after_s:g} s, unless it recovers")
        self._say(f"stalled: {incident.sentence()}; see {folder}")
        self.announcer.stalled(incident.sentence())
        return incident

    def _incident_of_exit(self, trainer: RunningTrainer) -> Incident:
        """A trainer that ended by itself, without having finished."""
        found = self.reader.read(trainer.pid)
        progress = found if isinstance(found, Progress) else self._seen
        folder = run_files.incident_folder(self.run_folder)
        lines = trainer.output.lines()
        keep(folder / "log.txt", "\n".join(lines) + "\n")
        code = trainer.process.returncode or 0
        phase = progress.phase if progress else Phase.IMPORT
        stacks, waited_s = run_files.timer_stacks(self.run_folder) if code == EXIT_BY_TIMER else ("", 0.0)
        if stacks:
            keep(folder / "stacks.txt", stacks)
            return Incident(folder, phase, progress, diagnose_timer(trainer.pid, stacks), waited_s)
        return Incident(folder, phase, progress, diagnose_exit(code, lines), blames_samples=-code in FAULTS)

    def _stop(self, trainer: RunningTrainer) -> None:
        """Pass the signal on and give the trainer time to save; a second signal ends the patience."""
        number = self.signals[0]
        self._say(f"{signal_name(number)}: the trainer has {self.settings.grace_s:g} s to end; again to end it at once")
        trainer.forward(signal.SIGTERM)  # a second SIGINT would end the trainer at once
        end_s = time.monotonic() + self.settings.grace_s
        while trainer.process.poll() is None and time.monotonic() < end_s and len(self.signals) == 1:
            trainer.output.pump(min(self.settings.poll_s, 0.2))

    def _end(self, trainer: RunningTrainer) -> Killed:
        """End whatever is left of the attempt, also after the trainer has ended by itself."""
        trainer.process.poll()
        killed = kill_tree(trainer.pid, marker_of(self.token), self.settings.kill_wait_s)
        trainer.close()
        remove_temporary_folder(self.token)
        if not killed.needs_reboot:
            for folder in (self.run_folder, self.run_folder / run_files.CHECKPOINTS_FOLDER):
                remove_leftovers(folder)
        self._keep_allowances()
        return killed

    def _keep_allowances(self) -> None:
        with suppress(OSError):
            (self.run_folder / ALLOWANCES_FILE).write_text(self.allowances.to_json())

    def _say(self, text: str) -> None:
        self._said = text
        line = f"supervisor: {time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n".encode()
        pass_on(line)
        append(self.run_folder / LOG_FILE, line)
