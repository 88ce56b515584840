"""One attempt: start the trainer, watch it, write an incident report if it stalls, and kill all of its processes."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from signal import SIGTERM

from yolo_lightning.supervision import live_heartbeat, run_folder_files
from yolo_lightning.supervision.announcer import Announcer
from yolo_lightning.supervision.classify import WRITES_IN_KERNEL, Diagnosis, StallClass, classify
from yolo_lightning.supervision.evidence import Request, collect, keep
from yolo_lightning.supervision.heartbeat import RECORD_BYTES, Heartbeat, Phase, parse, read_heartbeat
from yolo_lightning.supervision.incident import Incident
from yolo_lightning.supervision.job import Job
from yolo_lightning.supervision.kill import Killed, kill_tree, reap_orphans
from yolo_lightning.supervision.outcome import FAULTS, diagnose_exit, signal_name
from yolo_lightning.supervision.phase_timeouts import AdaptiveTimeouts
from yolo_lightning.supervision.restart_policy import FallbackState
from yolo_lightning.supervision.run_disk import PROBE_S, Recorder, RunDisk
from yolo_lightning.supervision.trainer import RunningTrainer, make_temporary_folder, marker_of, remove_temporary_folder
from yolo_lightning.supervision.watch import Health, Look, Watch, excuse_for
from yolo_lightning.utils import run_files
from yolo_lightning.utils.exit_codes import of_signal
from yolo_lightning.utils.files import write_json
from yolo_lightning.utils.process_identity import is_same
from yolo_lightning.utils.regular_files import read_regular
from yolo_lightning.utils.run_files import PHASE_TIMEOUTS_FILE

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
    climbs: bool  # whether the trainer was stopped so that the next attempt takes a fallback level back
    disk_hung: bool  # whether the disk of the run folder did not respond during the stall


@dataclass
class AttemptRunner:
    """Runs the attempts of a run, one after the other. While a trainer runs, no method waits for the run folder."""

    token: str  # marks all processes of the trainer
    job: Job
    disk: RunDisk
    recorder: Recorder
    announcer: Announcer
    signals: list[int]  # the supervisor appends the stop signals that it receives
    timeouts: AdaptiveTimeouts

    def __post_init__(self) -> None:
        self.run_folder, self.settings = self.disk.run, self.job.settings
        self._incidents: set[str] = set()
        self._last_heartbeat: Heartbeat | None = None
        self._copied_s = 0.0
        self._quiet_since_s = time.monotonic()  # end of the last incident
        self._heartbeat_path: Path

    def run(
        self, command: Sequence[str], overrides: Sequence[str], state: FallbackState, climb_after_s: float = math.inf
    ) -> Attempt:
        """Run one attempt. The trainer is stopped after a step when `climb_after_s` have passed without an incident."""
        self.disk.ask(run_folder_files.clear, self.run_folder)
        self.disk.ask(make_temporary_folder, self.token)
        self._incidents |= self.disk.ask(run_files.incident_names, self.run_folder)
        self._heartbeat_path, self._last_heartbeat = live_heartbeat.make(self.token), None
        self._disk_hung = False
        self._keep_timeouts()
        self._climb_after_s, self._climbs = climb_after_s, False
        incident: Incident | None = None
        try:
            trainer = RunningTrainer([*command, *overrides], self._heartbeat_path, self.token, self.recorder.record)
        except OSError:
            self.disk.post(remove_temporary_folder, self.token)
            raise
        try:
            self.announcer.attempt_started(trainer.process.pid, state)
            incident = self._watch(trainer)
        finally:
            killed = self._end(trainer, incident)
        if self.job.any_command:
            finished = incident is None and trainer.process.returncode == 0
        else:
            finished = self.disk.ask(run_files.is_finished, self.run_folder)
        code = trainer.process.returncode
        climbs = self._climbs and incident is None and not finished and code in (of_signal(SIGTERM), -SIGTERM)
        if incident is None and not self.signals and not finished and not climbs:
            incident = self._incident_of_exit(trainer)
        output, last = trainer.output, incident.heartbeat if incident else None
        worked_on = last is not None and last.phase_began_s > output.last_s + WORKS_ON_S
        return Attempt(code, output.lines(), worked_on, incident, killed, finished, climbs, self._disk_hung)

    def keep_incident(self, incident: Incident, outcome: str) -> None:
        """Write the report of an incident; `outcome` describes the reaction of the supervisor."""
        self._quiet_since_s = time.monotonic()
        path = incident.folder / run_files.INCIDENT_FILE
        self.disk.post(keep, path, incident.report(outcome), replaces=str(path))

    def serve(self) -> None:
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
            self.serve()
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
                    self.keep_incident(incident, "recovered without a restart")
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
        is_due = time.monotonic() >= self._quiet_since_s + self._climb_after_s
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
            self.settings.resample_s,
        )
        self._disk_hung = not self.disk.answers(min(PROBE_S, self.settings.part_timeout_s))
        silent = f"the disk of the run folder has not responded for {self.disk.silent_s:.0f} s"
        if self._disk_hung:
            diagnosis = Diagnosis(StallClass.STORAGE, f"{silent}; the trainer is process {trainer.process.pid}")
        else:
            diagnosis = classify(collect(request, self._keep))
        incident = Incident(folder, look.phase, heartbeat, diagnosis, look.waited_s)
        self.announcer.stalled(incident.sentence())
        self.recorder.log(f"stalled: {incident.sentence()}; see {folder}")
        if self._disk_hung:
            sentence = f"{silent}; {classify(collect(request, self._keep)).sentence}"
            incident = replace(incident, diagnosis=replace(diagnosis, sentence=sentence))
        self.keep_incident(incident, f"kill in {self.settings.kill_after_s:g} s unless it recovers")
        return incident

    def _keep(self, path: Path, text: str) -> None:
        self.disk.post(keep, path, text)

    def _incident_of_exit(self, trainer: RunningTrainer) -> Incident:
        """Return the incident of a trainer that has ended without having finished."""
        found = read_heartbeat(self._heartbeat_path, trainer.process.pid)
        heartbeat = found if isinstance(found, Heartbeat) else self._last_heartbeat
        folder = run_files.incident_folder(self.run_folder, self._incidents)
        lines = trainer.output.lines()
        self._keep(folder / "log.txt", "\n".join(lines) + "\n")
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
            self.serve()

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
            self.disk.post(run_folder_files.clear_leftovers, self.run_folder)
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
            self.serve()
        self.recorder.log(f"the killed processes ended after {time.monotonic() - began_s:.0f} s")
        trainer.process.poll()
        return kill_tree(trainer.process.pid, marker_of(self.token), self.settings.kill_wait_s)

    def _keep_timeouts(self) -> None:
        path = self.run_folder / PHASE_TIMEOUTS_FILE
        self.disk.post(write_json, path, self.timeouts.as_json(), replaces=str(path))
