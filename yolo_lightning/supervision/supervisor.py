"""The supervisor: runs attempt after attempt, and decides after each one whether and how the next one starts."""

import math
import signal
import sys
import time
import uuid
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from yolo_lightning.supervision import live_heartbeat, run_disk
from yolo_lightning.supervision.announcer import Announcer
from yolo_lightning.supervision.child_process import run_child
from yolo_lightning.supervision.classify import WRITES_IN_KERNEL, Diagnosis, StallClass, classify
from yolo_lightning.supervision.evidence import Request, collect, keep
from yolo_lightning.supervision.fallback_levels import (
    AS_CONFIGURED,
    BACKEND,
    LOADER_LEVELS,
    FallbackState,
    Levels,
    climb,
    computation_levels,
    levels_below,
    lower,
)
from yolo_lightning.supervision.heartbeat import RECORD_BYTES, Heartbeat, Phase, parse, read_heartbeat
from yolo_lightning.supervision.incident import Incident
from yolo_lightning.supervision.job import Job, can_resume, has_saved, saved_marks
from yolo_lightning.supervision.kill import Killed, adopt_orphans, kill_tree, reap_orphans
from yolo_lightning.supervision.outcome import (
    FAULTS,
    Space,
    diagnose_exit,
    ended_by_full_disk,
    error_of,
    is_recoverable,
    signal_name,
    space_of,
)
from yolo_lightning.supervision.phase_timeouts import AdaptiveTimeouts
from yolo_lightning.supervision.restart_policy import REVOKES, decide
from yolo_lightning.supervision.run_disk import PROBE_S, STOP_WAIT_S, DiskHangsError, Recorder, RunDisk
from yolo_lightning.supervision.run_lock import Holder, RunInUseError, run_lock
from yolo_lightning.supervision.trainer import RunningTrainer, make_temporary_folder, marker_of, remove_temporary_folder
from yolo_lightning.supervision.watch import Health, Look, Watch, excuse_for
from yolo_lightning.utils import run_files
from yolo_lightning.utils.exit_codes import ExitCode, of_signal
from yolo_lightning.utils.files import write_json
from yolo_lightning.utils.json_record import read_json, read_record
from yolo_lightning.utils.process_identity import is_same, own_mark
from yolo_lightning.utils.regular_files import read_regular
from yolo_lightning.utils.run_files import LOG_FILE, PHASE_TIMEOUTS_FILE, STATE_FILE
from yolo_lightning.utils.stop_signals import STOP_SIGNALS, pasteable
from yolo_lightning.utils.suspect_checkpoints import set_aside_suspects

EARLY_ATTEMPTS = 2
"""Limit of consecutive attempts that stall before data and network are set up: such a stall usually occurs again."""

NATIVE_FAILURES = "yolo_lightning.model.native_failures"
LARGEST_DOUBLINGS = 10
LEVEL_TIME = "%Y-%m-%dT%H:%M:%S%z"

End = tuple[int, str]  # exit code and reason of the end of a supervisor

WORKS_ON_S = 1.0
"""A heartbeat this much later than the last output shows that the error in the output has not ended the trainer."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt that has ended."""

    code: int | None  # exit code of the trainer; None if it has not ended
    lines: tuple[str, ...]  # last lines of its output
    worked_on: bool  # whether it has reported a heartbeat after its last output
    incident: Incident | None  # stall or unexpected exit; None after a stop signal or the end of training
    killed: Killed  # processes that were killed
    finished: bool  # whether the trainer has reported the end of training


class Supervisor:
    """Runs a job in a run folder until training has finished, a restart cannot help, or a stop signal arrives."""

    def __init__(self, run: Path, job: Job) -> None:
        self.run_folder, self.job, self.settings = run, job, job.settings
        if job.any_command:
            self.levels = Levels(LOADER_LEVELS[:1], LOADER_LEVELS[:1])
        else:
            computation = computation_levels(job.options, cpu=self.settings.cpu_fallback)
            self.levels = Levels(levels_below(job.workers), computation)
        # Begins with the mark of this process: `remove_files_of_dead_processes` deletes the folders with this name.
        self.token = f"{own_mark()}-{uuid.uuid4().hex[:8]}"
        self.state = FallbackState()
        self.signals: list[int] = []
        self._space_pauses = 0
        self.disk: RunDisk
        self.recorder: Recorder
        self.announcer: Announcer
        self._incidents: set[str] = set()
        self._last_heartbeat: Heartbeat | None = None
        self._copied_s = 0.0
        self._quiet_since_s = time.monotonic()  # end of the last incident
        self._disk_hung = False  # whether the disk of the run folder did not respond during the stall of the attempt
        self._climbs = False  # whether the trainer was stopped so that the next attempt takes a fallback level back
        self._heartbeat_path: Path

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
            self._prepare(before)
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

    def _prepare(self, before: Holder | None) -> None:
        """Remove what an earlier supervisor has left, and read its state and timeouts."""
        if before is not None and before.marker:
            killed = kill_tree(None, marker_of(before.marker), self.settings.kill_wait_s)
            if killed.processes:
                self.recorder.log(f"killed {len(killed.processes)} processes of an earlier supervisor")
        file = self.run_folder / STATE_FILE
        state = self.disk.ask(read_record, file, FallbackState)
        if state is None and self.disk.ask(file.exists):
            self.recorder.log(f"{file} is damaged: fallback levels and quarantined samples are those of a new run")
        self.state = (state or FallbackState()).for_new_supervisor()
        learned = self.disk.ask(AdaptiveTimeouts.read, self.run_folder / PHASE_TIMEOUTS_FILE)
        longest_s = learned.longest_s if learned else {}
        self.timeouts = AdaptiveTimeouts(self.settings.phase_timeouts, longest_s, self.settings.factor)

    def _run_attempts(self) -> End:
        resume = False
        while True:
            end = self._run_attempt(self.job.restart_command if resume else self.job.command)
            if end is not None:
                return end
            resume = self.disk.ask(can_resume, self.run_folder, self.job)

    def _run_attempt(self, command: tuple[str, ...]) -> End | None:
        """Run one trainer from start to end; return None if another attempt follows."""
        saved_before = self.disk.ask(saved_marks, self.run_folder, self.job)
        attempt = self._train(command)
        incident = attempt.incident
        end = self._end_after(attempt)
        if end is not None:
            if incident is not None:
                self._keep_incident(incident, end[1])
            return end
        if self._climbs:
            self._climb()
            return None
        assert incident is not None
        if incident.diagnosis.kind is StallClass.WRONG_RESULT and not self.job.any_command:
            names = self.disk.ask(set_aside_suspects, self.run_folder)
            self.recorder.log(f"checkpoints set aside after the last passed self-check: {', '.join(names) or 'none'}")
        saved_after = self.disk.ask(saved_marks, self.run_folder, self.job)
        saved = has_saved(saved_before, saved_after)
        lost = None
        if incident.heartbeat is not None and not self.job.any_command:  # whose steps in checkpoints are unknown
            lost = max(0, incident.heartbeat.step - max(saved_after, default=0))
        if not incident.waited_s:
            if (space := self._full_disk(attempt)) is not None:
                return self._wait_for_space(incident, space, saved, lost)
            lines = () if attempt.worked_on else attempt.lines
            if attempt.code is not None and not (is_recoverable(attempt.code, lines) or self._can_lower(incident)):
                error = error_of(lines)
                reason = "failed; a restart cannot correct this error" + (f": {error}" if error else "")
                self._keep_incident(incident, reason)
                return ExitCode.USAGE if attempt.code == ExitCode.USAGE else ExitCode.FAILED, reason
        if self._disk_hung:  # the trainer was not the cause, so that the attempt does not count
            self.state = replace(self.state, attempts=self.state.attempts - 1)
        return self._restart(incident, saved, lost)

    def _train(self, command: tuple[str, ...]) -> Attempt:
        """Start a trainer, watch it until it ends, must be killed or a stop signal arrives, and kill its processes."""
        self.disk.ask(run_disk.clear_attempt, self.run_folder)
        self.disk.ask(make_temporary_folder, self.token)
        self._incidents |= self.disk.ask(run_files.incident_names, self.run_folder)
        self._heartbeat_path, self._last_heartbeat = live_heartbeat.make(self.token), None
        self._disk_hung = self._climbs = False
        self._keep_timeouts()
        incident: Incident | None = None
        words = [*command, *self.levels.overrides(self.state)]
        try:
            trainer = RunningTrainer(words, self._heartbeat_path, self.token, self.recorder.record)
        except OSError:
            self.disk.post(remove_temporary_folder, self.token)
            raise
        try:
            self.announcer.attempt_started(trainer.process.pid, self.state)
            incident = self._watch(trainer)
        finally:
            killed = self._end(trainer, incident)
        if self.job.any_command:
            finished = incident is None and trainer.process.returncode == 0
        else:
            finished = self.disk.ask(run_files.is_finished, self.run_folder)
        code = trainer.process.returncode
        self._climbs &= incident is None and not finished and code in (of_signal(signal.SIGTERM), -signal.SIGTERM)
        if incident is None and not self.signals and not finished and not self._climbs:
            incident = self._incident_of_exit(trainer)
        output, last = trainer.output, incident.heartbeat if incident else None
        worked_on = last is not None and last.phase_began_s > output.last_s + WORKS_ON_S
        return Attempt(code, output.lines(), worked_on, incident, killed, finished)

    def _keep_incident(self, incident: Incident, outcome: str) -> None:
        """Write the report of an incident; `outcome` describes the reaction of the supervisor."""
        self._quiet_since_s = time.monotonic()
        path = incident.folder / run_files.INCIDENT_FILE
        self.disk.post(keep, path, incident.report(outcome), replaces=str(path))

    def _serve(self) -> None:
        self.recorder.serve()
        self.disk.check_alarm()
        self.announcer.serve()

    def _watch(self, trainer: RunningTrainer) -> Incident | None:
        """Wait until the trainer has ended, must be killed, or a stop signal arrives; return the stall, if any."""
        pid = trainer.process.pid
        watch = Watch(
            lambda: read_heartbeat(self._heartbeat_path, pid),
            lambda: excuse_for(pid),
            self.timeouts,
            self.settings.poll_s,
        )
        incident: Incident | None = None
        kill_at_s = 0.0
        last_reason = ""
        while trainer.process.poll() is None:
            trainer.output.pump(self.settings.poll_s)
            self._serve()
            if self.signals:
                self._stop(trainer)
                return None
            reap_orphans(pid)
            look = watch.look()
            if look.heartbeat is not None:
                self._last_heartbeat = look.heartbeat
                self.timeouts = self.timeouts.learn(look.heartbeat.longest_s, self.settings.kill_after_s)
                watch.timeouts = self.timeouts
                self.announcer.progress_made(look.heartbeat)
                self._copy_record()
                self._stop_to_climb(trainer, look.phase)
            if look.reason != last_reason and look.reason:
                self.recorder.log(f"{look.health}: {look.reason}")
            last_reason = look.reason
            if look.health is not Health.STALLED:
                if incident is not None:
                    self._keep_incident(incident, "recovered without a restart")
                    self.recorder.log("recovered")
                    self.announcer.recovered()
                    incident = None
            elif incident is None:
                kill_at_s = time.monotonic() + self.settings.kill_after_s
                incident = self._report_stall(trainer, look)
                watch.keep_looking()
            elif time.monotonic() >= kill_at_s:
                return incident
        return incident

    def _stop_to_climb(self, trainer: RunningTrainer, phase: Phase) -> None:
        """Let the trainer save and exit once the time without incidents has passed; it finishes its step first."""
        is_due = time.monotonic() >= self._quiet_since_s + self._climb_after_s()
        if is_due and not self._climbs and phase in (Phase.FETCH, Phase.STEP):
            self._climbs, self._quiet_since_s = True, time.monotonic()
            self.recorder.log("no incident for some time: the trainer is stopped to take a fallback level back")
            trainer.process.terminate()

    def _copy_record(self, *, now: bool = False) -> None:
        """Copy the heartbeat file to the run folder, for readers on other machines."""
        if not now and time.monotonic() < self._copied_s + live_heartbeat.COPY_INTERVAL_S:
            return
        self._copied_s = time.monotonic()
        try:
            content = read_regular(self._heartbeat_path, RECORD_BYTES)
        except OSError:
            return
        if isinstance(parse(content), Heartbeat):
            self.disk.post(live_heartbeat.write_copy, content, self.run_folder, replaces="record")

    def _report_stall(self, trainer: RunningTrainer, look: Look) -> Incident:
        """Diagnose and report a stall. If the disk hangs, notifications are sent before the processes are examined."""
        folder = run_files.incident_folder(self.run_folder, self._incidents)
        heartbeat = look.heartbeat or self._last_heartbeat
        request = Request(
            folder,
            trainer.process.pid,
            self._heartbeat_path,
            heartbeat,
            look.phase,
            trainer.output.lines(),
            self.settings.part_timeout_s,
        )
        store = partial(self.disk.post, keep)
        self._disk_hung = not self.disk.answers(min(PROBE_S, self.settings.part_timeout_s))
        silent = f"the disk of the run folder has not responded for {self.disk.silent_s:.0f} s"
        if self._disk_hung:
            diagnosis = Diagnosis(StallClass.STORAGE, f"{silent}; the trainer is process {trainer.process.pid}")
        else:
            diagnosis = classify(collect(request, store))
        incident = Incident(folder, look.phase, heartbeat, diagnosis, look.waited_s)
        self.announcer.stalled(incident.sentence())
        self.recorder.log(f"stalled: {incident.sentence()}; see {folder}")
        if self._disk_hung:
            sentence = f"{silent}; {classify(collect(request, store)).sentence}"
            incident = replace(incident, diagnosis=replace(diagnosis, sentence=sentence))
        self._keep_incident(incident, f"kill in {self.settings.kill_after_s:g} s unless it recovers")
        return incident

    def _incident_of_exit(self, trainer: RunningTrainer) -> Incident:
        """Return the incident of a trainer that has ended without having finished."""
        found = read_heartbeat(self._heartbeat_path, trainer.process.pid)
        heartbeat = found if isinstance(found, Heartbeat) else self._last_heartbeat
        folder = run_files.incident_folder(self.run_folder, self._incidents)
        lines = trainer.output.lines()
        self.disk.post(keep, folder / "log.txt", "\n".join(lines) + "\n")
        code = trainer.process.returncode or 0
        phase = heartbeat.phase if heartbeat else Phase.IMPORT
        return Incident(folder, phase, heartbeat, diagnose_exit(code, lines), blames_samples=-code in FAULTS)

    def _stop(self, trainer: RunningTrainer) -> None:
        """Pass the stop signal on and wait for the trainer to save and exit; a second signal ends the wait."""
        name, grace_s = signal_name(self.signals[0]), self.settings.grace_s
        self.recorder.log(f"{name}: the trainer has {grace_s:g} s to exit; a second signal kills it")
        trainer.process.terminate()  # SIGTERM, because a second SIGINT would end the trainer without saving
        end_s = time.monotonic() + grace_s
        while trainer.process.poll() is None and time.monotonic() < end_s and len(self.signals) == 1:
            trainer.output.pump(min(self.settings.poll_s, 0.2))
            self._serve()

    def _end(self, trainer: RunningTrainer, incident: Incident | None) -> Killed:
        """Kill all remaining processes of the attempt, also if the trainer has ended by itself."""
        trainer.process.poll()
        killed = kill_tree(trainer.process.pid, marker_of(self.token), self.settings.kill_wait_s)
        if killed.survivors:
            # Processes that survived SIGKILL end as soon as a disk responds, if they wait for one.
            is_storage = incident is not None and incident.diagnosis.kind is StallClass.STORAGE
            in_kernel = all(WRITES_IN_KERNEL.search(where) for where in killed.survivors.values())
            if self.disk.hangs or is_storage or in_kernel:
                killed = self._wait_for_storage(trainer, killed)
        trainer.close()
        self._copy_record(now=True)
        self.disk.post(remove_temporary_folder, self.token)
        if not killed.survivors:
            self.disk.post(run_disk.clear_leftovers, self.run_folder)
        self._keep_timeouts()
        return killed

    def _wait_for_storage(self, trainer: RunningTrainer, killed: Killed) -> Killed:
        """Wait until the disk responds and the killed processes end, or a stop signal arrives."""
        sentence = f"SIGKILL takes effect when the disk responds: {killed}; the restart waits for this"
        self.announcer.stalled(sentence, "waits for storage")
        self.recorder.log(sentence)
        began_s = time.monotonic()
        while any(map(is_same, killed.survivors)):
            if self.signals:
                return killed
            time.sleep(self.settings.poll_s)
            self._serve()
        self.recorder.log(f"the killed processes ended after {time.monotonic() - began_s:.0f} s")
        trainer.process.poll()
        return kill_tree(trainer.process.pid, marker_of(self.token), self.settings.kill_wait_s)

    def _keep_timeouts(self) -> None:
        path = self.run_folder / PHASE_TIMEOUTS_FILE
        self.disk.post(write_json, path, self.timeouts.as_json(), replaces=str(path))

    def _end_after(self, attempt: Attempt) -> End | None:
        """Return the end if no further attempt may follow, whatever the incident."""
        if attempt.finished:
            return ExitCode.FINISHED, "finished"
        if attempt.killed.survivors:
            return ExitCode.NEEDS_REBOOT, f"needs reboot: SIGKILL did not end {attempt.killed}"
        if self.signals:
            saved = self.disk.ask(can_resume, self.run_folder, self.job)
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
        self._keep_incident(incident, "restart when there is space; this attempt does not count")
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
        self._keep_incident(incident, "restart, because there is space again; this attempt does not count")
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
            epoch=incident.heartbeat.epoch if incident.heartbeat else 0,
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
            self._keep_incident(incident, decision.reason)
            return ExitCode.GAVE_UP, f"gave up: {decision.reason}; see {incident.folder}"
        pause_s = self.settings.pause_after(self.state.attempts - 1) if self.state.attempts > 1 else 0.0
        outcome = f"restart in {pause_s:g} s: {decision.reason}"
        self._keep_incident(incident, outcome)
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
        code = run_child((sys.executable, "-m", NATIVE_FAILURES, key, cache, failure), self.settings.smoke_test_s).code
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
            self._serve()
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
