"""The supervisor: runs attempt after attempt, and carries out what `next_action` decides after each one."""

import json
import math
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

from yolo_lightning.supervision import live_heartbeat
from yolo_lightning.supervision.announcer import Announcer
from yolo_lightning.supervision.attempt import AttemptRunner, Services
from yolo_lightning.supervision.child_process import run_child
from yolo_lightning.supervision.classify import Diagnosis
from yolo_lightning.supervision.evidence import keep
from yolo_lightning.supervision.failure_record import NO_FAILURE, record_of
from yolo_lightning.supervision.fallback_levels import (
    AS_CONFIGURED,
    BACKEND,
    ONE_LEVEL,
    PRECISION_OPTION,
    FallbackState,
    Levels,
    levels_of,
)
from yolo_lightning.supervision.heartbeat import NOT_STARTED, Phase
from yolo_lightning.supervision.incident import Incident
from yolo_lightning.supervision.job import Job, can_resume, has_saved, saved_marks
from yolo_lightning.supervision.kill import Killed, adopt_orphans, kill_tree
from yolo_lightning.supervision.next_action import (
    Action,
    AttemptFacts,
    Finish,
    Lower,
    TestDevice,
    Wait,
    cause_of,
    level_to_take_back,
    next_action,
)
from yolo_lightning.supervision.outcome import describe_exit, has_space, is_full, space_of
from yolo_lightning.supervision.phase_timeouts import AdaptiveTimeouts
from yolo_lightning.supervision.run_disk import STOP_WAIT_S, DiskHangsError, Recorder, RunDisk
from yolo_lightning.supervision.run_lock import Holder, RunInUseError, run_lock
from yolo_lightning.supervision.trainer import marker_of
from yolo_lightning.utils.exit_codes import ExitCode, of_signal
from yolo_lightning.utils.files import write_json
from yolo_lightning.utils.json_record import read_json, read_record
from yolo_lightning.utils.process_identity import is_same, own_mark
from yolo_lightning.utils.run_files import (
    ENVIRONMENT,
    FAILURE_FILE,
    LOG_FILE,
    PHASE_TIMEOUTS_FILE,
    STATE_FILE,
    TRACEBACK_FILE,
)
from yolo_lightning.utils.stop_signals import STOP_SIGNALS, pasteable, signal_name
from yolo_lightning.utils.suspect_checkpoints import set_aside_suspects

Result = TypeVar("Result")
NATIVE_FAILURES = "yolo_lightning.model.native_failures"
LARGEST_DOUBLINGS = 10
LEVEL_TIME = "%Y-%m-%dT%H:%M:%S%z"


def supervise(run: Path, job: Job) -> int:
    """Run a job in a run folder until training has finished or `next_action` ends the run; return the exit code.

    Raises:
        OSError: If the run folder of a service cannot be used; `__main__` tries again.
    """
    adopt_orphans()
    # Begins with the mark of this process: `remove_files_of_dead_processes` deletes the folders with this name.
    token = f"{own_mark()}-{uuid.uuid4().hex[:8]}"
    try:
        with run_lock(run, token) as before, _services(run, job) as services:
            try:
                return Supervisor(run, job, token, services, before).run()
            finally:
                live_heartbeat.remove(token)
    except RunInUseError as error:
        print(f"error: {error}", file=sys.stderr)
        return ExitCode.RUN_IN_USE
    except OSError as error:  # no run folder
        if job.is_service:
            raise
        print(f"error: cannot supervise {run}: {error}", file=sys.stderr)
        return ExitCode.FAILED


@contextmanager
def _services(run: Path, job: Job) -> Iterator[Services]:
    """Yield what the supervisor uses all the time; from now on, stop signals are noted."""
    signals: list[int] = []
    for number in STOP_SIGNALS:
        # nohup ignores SIGHUP, `fit &` in a script SIGINT. SIGTERM is what `stop` sends.
        if number == signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda received, _: signals.append(received))

    disk = RunDisk(run, lambda: bool(signals), lambda event, sentence: announcer.tell(event, sentence))
    recorder = Recorder(run / LOG_FILE, disk)
    announcer = Announcer(run, job.settings.notify, disk, recorder.log)
    try:
        yield Services(disk, recorder, announcer, signals)
    finally:
        recorder.close(STOP_WAIT_S)
        disk.close(0.0 if disk.hangs else STOP_WAIT_S)


def _has_stepped(facts: AttemptFacts, job: Job) -> bool:
    """Return whether an attempt has completed a step.

    Other programs number their steps as they like. Without a heartbeat, a program that has worked for longer than the
    timeout of its start has begun to train.
    """
    heartbeat = facts.heartbeat
    if not job.any_command:
        return heartbeat.step > 0 and heartbeat.phase > Phase.FIRST_BATCH
    if heartbeat.process:
        return Phase.STEP in heartbeat.longest_s
    return facts.grown_s > job.settings.phase_timeouts.import_s


def _without_ended(facts: AttemptFacts) -> AttemptFacts:
    """Return the facts without the survivors of SIGKILL if all of them have ended, for example as a disk responds."""
    if any(map(is_same, facts.killed.survivors)):
        return facts
    return replace(facts, killed=Killed())


class Supervisor:
    """Runs a job in a run folder, which is locked. `before` is the process that has locked the folder before."""

    def __init__(self, run: Path, job: Job, token: str, services: Services, before: Holder | None = None) -> None:
        self.run_folder = run
        self.job = job
        self.settings = job.settings
        self.services = services
        self.disk = services.disk
        self.announcer = services.announcer
        self.log = services.recorder.log
        self.state = FallbackState()
        self.runner = AttemptRunner(run, job, token, services)
        self._before = before
        self._is_watched = not job.is_service
        self._failing_since_s = math.inf  # first failure after the last checkpoint
        self._marks: frozenset[int] = frozenset()  # of the checkpoints, when the disk was read last
        self._environment: dict[str, Any] = {}  # what the trainer has written about the machine and its convolutions

    def run(self) -> int:
        """Run attempts until the end, and report it; return the exit code."""
        code: int = ExitCode.FAILED
        reason = "internal error of the supervisor"
        try:
            self._prepare()
            end = self._run_attempts()
            code = end.code
            reason = end.reason
        except DiskHangsError:
            number = self.services.stop_signal
            code = of_signal(number)
            reason = f"stopped by {signal_name(number)} while the disk of {self.run_folder} hangs"
        finally:
            if not self._is_refused_start(code):
                self.log(reason)
            self.announcer.ended(code, reason)
        return code

    def _is_refused_start(self, code: int) -> bool:
        """Return whether a fit cannot start: the trainer has printed why. A later refusal belongs into the log."""
        return code == ExitCode.USAGE and not self.job.any_command and not self.state.restarts

    def _prepare(self) -> None:
        """Remove what an earlier supervisor has left, and read its state and timeouts."""
        if self._before is not None and self._before.marker:
            killed = kill_tree(None, marker_of(self._before.marker), self.settings.kill_wait_s)
            if killed.processes:
                self.log(f"killed {len(killed.processes)} processes of an earlier supervisor")
        file = self.run_folder / STATE_FILE
        state = self._ask(read_record, file, FallbackState, default=None)
        if state is None and self._ask(file.exists, default=False):
            self.log(f"{file} is damaged: fallback levels and quarantined samples are those of a new run")
        self.state = (state or FallbackState()).for_new_supervisor()
        learned = self._ask(read_record, self.run_folder / PHASE_TIMEOUTS_FILE, AdaptiveTimeouts, default=None)
        if learned is not None:
            self.runner.timeouts = replace(self.runner.timeouts, longest_s=learned.longest_s)
        self._read_environment()

    def _run_attempts(self) -> Finish:
        command = self.job.command
        while True:
            saved_before = self._saved()
            facts = self._run_attempt(command)
            if "WrongResultError" in facts.record.names and not self.job.any_command:
                names: list[str] = self._ask(set_aside_suspects, self.run_folder, default=[])
                self.log(f"checkpoints set aside after the last passed self-check: {', '.join(names) or 'none'}")
            end = self._react(self._completed(facts, saved_before))
            self._is_watched = False
            if end is not None:
                return end
            command = self.job.restart_command if self._can_resume() else self.job.command

    def _run_attempt(self, command: tuple[str, ...]) -> AttemptFacts:
        """Run one trainer from start to end."""
        levels = self._levels()
        words = [*command, *levels.overrides(self.state)]
        try:
            return self.runner.run(words, self.state, self._climb_after_s(levels))
        except OSError as error:  # of the run folder, the temporary folder, /dev/shm or the start of a process
            facts = self.runner.new_facts()
            return replace(facts, record=replace(record_of(error), step=facts.heartbeat.step))

    def _ask(self, function: Callable[..., Result], *arguments: Any, default: Result) -> Result:
        """Return what a call of the disk returns, or `default` after an error of the disk."""
        try:
            return self.disk.ask(function, *arguments)
        except OSError:
            return default

    def _saved(self) -> frozenset[int]:
        self._marks = self._ask(saved_marks, self.run_folder, self.job, default=self._marks)
        return self._marks

    def _can_resume(self) -> bool:
        return self._ask(can_resume, self.run_folder, self.job, default=True)

    def _completed(self, facts: AttemptFacts, saved_before: frozenset[int]) -> AttemptFacts:
        """Return the facts of an attempt with those of the run, for the decision."""
        record = facts.record
        if record.process and record.step < facts.heartbeat.step:
            record = NO_FAILURE  # training went on after this error
        has_stepped = _has_stepped(facts, self.job)
        if has_stepped:
            self._is_watched = False
        saved = has_saved(saved_before, self._saved())
        if saved:
            self._failing_since_s = math.inf
        self._failing_since_s = min(self._failing_since_s, time.monotonic())
        self._read_environment()
        # The checkpoints of another program can be older than the run.
        has_checkpoint = saved if self.job.any_command else bool(self._marks)
        return replace(
            _without_ended(facts),
            levels=self._levels(),
            stop_signal=self.services.stop_signal,
            record=record,
            saved=saved,
            trained=self.state.trained or has_stepped or has_checkpoint or record.has_trained,
            is_watched=self._is_watched,
            failing_s=time.monotonic() - self._failing_since_s,
            disk_is_full=self._disk_is_full(facts),
            can_test=bool(self.job.smoke_test),
            now=time.strftime(LEVEL_TIME),
        )

    def _disk_is_full(self, facts: AttemptFacts) -> bool:
        if facts.finished or facts.waited_s or self.services.signals:
            return False
        space = self._ask(space_of, self.run_folder, default=None)
        return space is not None and is_full(facts.code, facts.record, space)

    def _react(self, facts: AttemptFacts) -> Finish | None:
        """Carry out the reaction to an attempt; return the end, or None if another attempt follows."""
        action = next_action(self.state, facts)
        if isinstance(action, TestDevice):
            facts = self._tested(facts)
            action = next_action(self.state, facts)
        if isinstance(action, Finish) and (facts.finished or facts.stop_signal):
            if facts.waited_s:
                self.runner.keep_incident(self._incident(facts), action.reason)
            return self._with_hint(action)
        if facts.climbs:
            self._change_state(action, self.state.restarts + 1)
            self.log(_outcome(action))
            self.announcer.restarting(action.reason, self.state, 0)
            return None
        return self._react_to_failure(facts, action)

    def _react_to_failure(self, facts: AttemptFacts, action: Action) -> Finish | None:
        restarts = self.state.restarts + 1
        incident = self._incident(facts)
        if not (isinstance(action, Finish) and self._is_refused_start(action.code)):
            self.log(incident.sentence())
        if isinstance(action, Lower) and action.revokes:
            self._revoke(f"{incident.diagnosis.kind} at step {facts.heartbeat.step:,}")
        if action.longer is not None:
            self.runner.timeouts = self.runner.timeouts.doubled(action.longer)
        lost = None
        if facts.heartbeat.process and not self.job.any_command:  # whose steps in checkpoints are unknown
            lost = max(0, facts.heartbeat.step - max(self._marks, default=0))
        while not isinstance(action, Finish):
            self._change_state(action, restarts)
            self._announce(action, incident, facts, lost)
            self._pause(action.pause_s)
            facts = self._look_again(facts)
            if facts.stop_signal:
                return self._with_hint(next_action(self.state, facts))
            if not isinstance(action, Wait) or not (facts.is_blocked or facts.disk_is_full):
                self.runner.keep_incident(incident, _outcome(action))  # again, because the disk could be full before
                return None
            action = next_action(self.state, facts)
        self.runner.keep_incident(incident, action.reason)
        if action.code == ExitCode.USAGE:
            return action
        return replace(action, reason=f"{action.reason}; see {incident.folder}")

    def _announce(self, action: Action, incident: Incident, facts: AttemptFacts, lost: int | None) -> None:
        """Report that another attempt follows, or that the next one waits for something."""
        self.runner.keep_incident(incident, _outcome(action))
        self.log(_outcome(action))
        if isinstance(action, Wait):
            self.announcer.waiting(f"{action.reason}; {incident.sentence()}", self.state, lost)
            return
        if not facts.waited_s:
            self.announcer.notifier.send("crashed", incident.sentence())
        self.announcer.restarting(incident.sentence(), self.state, lost)

    def _incident(self, facts: AttemptFacts) -> Incident:
        """Return the incident of an attempt that has not finished, and store its evidence."""
        record = facts.record
        if facts.lines:
            self.disk.post(keep, facts.folder / "log.txt", "\n".join(facts.lines) + "\n")
        if record.process:
            self.disk.post(keep, facts.folder / FAILURE_FILE, json.dumps(asdict(record), indent=2) + "\n")
            self.disk.post(keep, facts.folder / TRACEBACK_FILE, record.traceback)
            # The trainer prints a mistake of the user in one line, and prints no traceback if its teardown hangs.
            if not record.is_user_error and not any(record.sentence in line for line in facts.lines):
                self.services.recorder.record(f"{record.traceback}\n".encode())
        if facts.evidence is None:
            sentence = describe_exit(facts.code, record, has_started=facts.heartbeat is not NOT_STARTED)
        elif not record.error:
            sentence = facts.evidence.sentence
        else:
            sentence = f"{record.sentence}; {facts.evidence.sentence}"
        incident = facts.incident(Diagnosis(cause_of(facts), sentence))
        return replace(incident, rank=incident.rank or record.rank)

    def _with_hint(self, action: Action) -> Finish:
        """Return the end by a stop signal with the command that resumes the run."""
        assert isinstance(action, Finish)
        if action.code == ExitCode.FINISHED or not self.services.signals:
            return action
        hint = "nothing was saved: start again without --resume"
        if self._can_resume():
            hint = f"resume with: {pasteable(self.job.restart_command)}"
        return replace(action, reason=f"{action.reason}; {hint}")

    def _tested(self, facts: AttemptFacts) -> AttemptFacts:
        """Return the facts with the result of the device test; an error is a response, which the trainer reports."""
        answers = run_child(self.job.smoke_test, self.settings.smoke_test_s).code is not None
        return replace(facts, device_answers=answers)

    def _look_again(self, facts: AttemptFacts) -> AttemptFacts:
        """Return the facts after a pause: whether what was missing is there again."""
        facts = replace(
            facts,
            saved=False,
            failing_s=time.monotonic() - self._failing_since_s,
            stop_signal=self.services.stop_signal,
        )
        if facts.stop_signal:
            return facts
        facts = _without_ended(facts)
        if facts.disk_is_full:
            facts = replace(facts, disk_is_full=not self._ask(has_space, self.run_folder, default=True))
        if facts.device_answers is False:
            facts = self._tested(facts)
        return facts

    def _change_state(self, action: Action, restarts: int) -> None:
        self.state = replace(action.state, restarts=restarts)
        try:
            self.disk.ask(write_json, self.run_folder / STATE_FILE, asdict(self.state))
        except OSError as error:
            self.log(f"could not write {STATE_FILE} ({error.strerror})")

    def _pause(self, pause_s: float) -> None:
        """Wait for `pause_s` seconds or for a stop signal."""
        end_s = time.monotonic() + pause_s
        while not self.services.signals and time.monotonic() < end_s:
            time.sleep(min(max(0.0, end_s - time.monotonic()), self.settings.poll_s))
            self.services.serve()

    def _climb_after_s(self, levels: Levels) -> float:
        """Return the seconds without an incident after which a level is taken back; infinite if none can be."""
        hours = self.settings.climb_after_h
        if not hours or self.job.any_command or level_to_take_back(self.state, levels) is None:
            return math.inf
        return hours * 3600 * 2.0 ** min(self.state.failed_climbs, LARGEST_DOUBLINGS)

    def _levels(self) -> Levels:
        """Return the levels without those that compute as `auto` has chosen for convolutions and precision."""
        if self.job.any_command:
            return ONE_LEVEL
        options = dict(self.job.options)
        if "convolutions" in self._environment and self.state.computation.name == AS_CONFIGURED:
            options[BACKEND] = self._environment["convolutions"]
        if "precision" in self._environment and self.state.precision.name == AS_CONFIGURED:
            options[PRECISION_OPTION] = self._environment["precision"]
        return levels_of(options, self.job.workers, cpu=self.settings.cpu_fallback)

    def _read_environment(self) -> None:
        """Read what the trainer has written at its start, before the first attempt and after each attempt."""
        content: Any = self._ask(read_json, self.run_folder / ENVIRONMENT, default={})
        self._environment = content if isinstance(content, dict) else {}

    def _revoke(self, incident: str) -> None:
        """Store that native convolutions have failed on this device, for `backend: auto` of all runs."""
        key = self._environment.get("native verdict key")
        cache = self._environment.get("native verdict file")
        if self._environment.get("convolutions") != "native" or not isinstance(key, str) or not isinstance(cache, str):
            return
        failure = f"{incident} in run {self.run_folder.absolute()}"
        code = run_child((sys.executable, "-m", NATIVE_FAILURES, key, cache, failure), self.settings.smoke_test_s).code
        not_stored = " (not stored)" if code else ""
        self.log(f"native convolutions on this device: failed, {failure}{not_stored}")


def _outcome(action: Action) -> str:
    return f"restart in {action.pause_s:g} s: {action.reason}"
