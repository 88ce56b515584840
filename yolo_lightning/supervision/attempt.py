"""One attempt: start the trainer, watch it, look at it when it stalls, and end all that is left of it."""

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from yolo_lightning.supervision import live_heartbeat
from yolo_lightning.supervision.announcer import Announcer
from yolo_lightning.supervision.classify import WRITES_IN_KERNEL, Diagnosis, StallClass, classify
from yolo_lightning.supervision.evidence import Request, collect, keep, keep_disk_usage
from yolo_lightning.supervision.fallback import Rung
from yolo_lightning.supervision.heartbeat import Heartbeat, HeartbeatReader, Phase, parse
from yolo_lightning.supervision.incident import Incident
from yolo_lightning.supervision.kill import Killed, kill_tree
from yolo_lightning.supervision.outcome import FAULTS, diagnose_exit, signal_name
from yolo_lightning.supervision.output import Recorder
from yolo_lightning.supervision.phase_timeouts import AdaptiveTimeouts
from yolo_lightning.supervision.processes import is_same
from yolo_lightning.supervision.run_disk import PROBE_S, RunDisk
from yolo_lightning.supervision.settings import SuperviseSettings
from yolo_lightning.supervision.trainer import RunningTrainer, make_temporary_folder, marker_of, remove_temporary_folder
from yolo_lightning.supervision.watch import Health, Look, Watch, excuse_for
from yolo_lightning.utils import run_files
from yolo_lightning.utils.run_files import PHASE_TIMEOUTS_FILE


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt that has ended.

    Attributes:
        code: Exit code of the trainer; None if it has not ended.
        lines: Last lines that it printed.
        incident: The stall or crash; None where the trainer was told to stop or has finished.
        killed: What ending it did.
        finished: Whether the trainer said that all is trained.
        disk_hung: Whether the disk of the run folder did not answer as the trainer had stalled.
    """

    code: int | None
    lines: tuple[str, ...]
    incident: Incident | None
    killed: Killed
    finished: bool
    disk_hung: bool


class Attendant:
    """Watches the attempts of a run, one after the other. While a trainer lives, no method waits for the run folder.

    Args:
        run: Run folder.
        token: Marker of all processes of the trainer.
        settings: How patient to be.
        disk: For all access to the run folder.
        recorder: For all output.
        say: Writes a line for a person.
        signals: Signals that told the supervisor to stop; grows.
        timeouts: What is known of the length of the phases.
    """

    def __init__(
        self,
        run: Path,
        token: str,
        settings: SuperviseSettings,
        disk: RunDisk,
        recorder: Recorder,
        announcer: Announcer,
        say: Callable[[str], None],
        signals: list[int],
        timeouts: AdaptiveTimeouts,
    ) -> None:
        self.run_folder, self.token, self.settings, self.disk, self.recorder = run, token, settings, disk, recorder
        self.announcer, self.say, self.signals, self.timeouts = announcer, say, signals, timeouts
        self._incidents: set[str] = set()
        self._seen: Heartbeat | None = None
        self._disk_hung = False
        self._copied_s = 0.0
        self._reader: HeartbeatReader

    def attempt(self, command: Sequence[str], rung: Rung, restarts: int) -> Attempt:
        """Run a trainer from start to end.

        Raises:
            OSError: If it cannot be started.
            DiskHangsError: If the supervisor is told to stop while the disk hangs.
        """
        self.disk.ask(run_files.clear, self.run_folder)
        self.disk.ask(make_temporary_folder, self.token)
        self._incidents |= self.disk.ask(run_files.incident_names, self.run_folder)
        self._reader, self._seen = HeartbeatReader(live_heartbeat.make(self.token)), None
        self._disk_hung = False
        self._keep_timeouts()
        incident: Incident | None = None
        try:
            trainer = RunningTrainer(command, rung, self._reader.path, self.token, self.recorder.record)
        except OSError:
            self.disk.post(remove_temporary_folder, self.token)
            raise
        try:
            self.announcer.begins(trainer.pid, rung.name, restarts)
            incident = self._attend(trainer)
        finally:
            killed = self._end(trainer, incident)
        finished = self.disk.ask(run_files.is_finished, self.run_folder)
        if incident is None and not self.signals and not finished:
            incident = self._incident_of_exit(trainer)
        code, lines = trainer.process.returncode, trainer.output.lines()
        return Attempt(code, lines, incident, killed, finished, self._disk_hung)

    def keep_incident(self, incident: Incident, outcome: str) -> None:
        """Write the report of an incident; `outcome` says what is done about it."""
        path = incident.folder / run_files.INCIDENT_FILE
        self.disk.post(keep, path, incident.report(outcome), replaces=str(path))

    def _attend(self, trainer: RunningTrainer) -> Incident | None:
        """Until the trainer has ended, must be killed, or was told to stop; the stall that it is in, if any."""
        watch = Watch(
            lambda: self._reader.read(trainer.pid),
            lambda: excuse_for(trainer.pid),
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
            look = watch.look()
            if look.heartbeat is not None:
                self._seen = look.heartbeat
                self.timeouts = self.timeouts.learn(look.heartbeat.longest_s, self.settings.kill_after_s)
                watch.timeouts = self.timeouts
                self.announcer.sees(look.heartbeat)
                self._copy_record()
            if look.reason != last_reason and look.reason:
                self.say(f"{look.health}: {look.reason}")
            last_reason = look.reason
            if look.health is not Health.STALLED:
                if incident is not None:
                    self.keep_incident(incident, "recovered by itself")
                    self.say("recovered")
                    self.announcer.recovered()
                    incident = None
            elif incident is None:
                kill_at_s = time.monotonic() + self.settings.kill_after_s
                incident = self._look_closer(trainer, look)
                watch.keep_looking()
            elif time.monotonic() >= kill_at_s:
                return incident
        return incident

    def _serve(self) -> None:
        self.recorder.serve()
        self.disk.look()

    def _copy_record(self, *, now: bool = False) -> None:
        """Store the record in the run folder, for readers on other machines."""
        if not now and time.monotonic() < self._copied_s + live_heartbeat.COPY_INTERVAL_S:
            return
        self._copied_s = time.monotonic()
        try:
            content = self._reader.path.read_bytes()
        except OSError:
            return
        if isinstance(parse(content), Heartbeat):
            self.disk.post(live_heartbeat.write_copy, content, self.run_folder, replaces="record")

    def _look_closer(self, trainer: RunningTrainer, look: Look) -> Incident:
        """Judge a stall, tell, and keep the evidence; where the disk hangs, what is told does not wait for evidence."""
        folder = run_files.incident_folder(self.run_folder, self._incidents)
        limits_s = (self.settings.part_timeout_s, self.settings.resample_s)
        lines = trainer.output.lines()
        heartbeat = look.heartbeat or self._seen
        request = Request(folder, trainer.pid, self._reader.path, heartbeat, look.phase, lines, *limits_s)
        self._disk_hung = not self.disk.answers(min(PROBE_S, self.settings.part_timeout_s))
        if not self._disk_hung:
            diagnosis = classify(collect(request, self._keep))
            incident = Incident(folder, look.phase, heartbeat, diagnosis, look.waited_s)
            self._tell_stalled(incident)
        else:
            silent = f"the disk of the run folder has not answered for {self.disk.silent_s:.0f} s"
            hangs = Diagnosis(StallClass.STORAGE, f"{silent}; the trainer is process {trainer.pid}")
            incident = Incident(folder, look.phase, heartbeat, hangs, look.waited_s)
            self._tell_stalled(incident)
            seen = classify(collect(request, self._keep)).sentence
            incident = replace(incident, diagnosis=replace(hangs, sentence=f"{silent}; {seen}"))
        self.disk.post(keep_disk_usage, folder / "disk.txt", self.run_folder)
        self.keep_incident(incident, f"to be ended in {self.settings.kill_after_s:g} s, unless it recovers")
        return incident

    def _tell_stalled(self, incident: Incident) -> None:
        self.announcer.stalled(incident.sentence())
        self.say(f"stalled: {incident.sentence()}; see {incident.folder}")

    def _keep(self, path: Path, text: str) -> None:
        self.disk.post(keep, path, text)

    def _incident_of_exit(self, trainer: RunningTrainer) -> Incident:
        """A trainer that ended by itself, without having finished."""
        found = self._reader.read(trainer.pid)
        heartbeat = found if isinstance(found, Heartbeat) else self._seen
        folder = run_files.incident_folder(self.run_folder, self._incidents)
        lines = trainer.output.lines()
        self._keep(folder / "log.txt", "\n".join(lines) + "\n")
        code = trainer.process.returncode or 0
        phase = heartbeat.phase if heartbeat else Phase.IMPORT
        return Incident(folder, phase, heartbeat, diagnose_exit(code, lines), blames_samples=-code in FAULTS)

    def _stop(self, trainer: RunningTrainer) -> None:
        """Pass the signal on and give the trainer time to save; a second signal ends the patience."""
        number = self.signals[0]
        self.say(f"{signal_name(number)}: the trainer has {self.settings.grace_s:g} s to end; again to end it at once")
        trainer.forward(signal.SIGTERM)  # a second SIGINT would end the trainer at once
        end_s = time.monotonic() + self.settings.grace_s
        while trainer.process.poll() is None and time.monotonic() < end_s and len(self.signals) == 1:
            trainer.output.pump(min(self.settings.poll_s, 0.2))
            self._serve()

    def _end(self, trainer: RunningTrainer, incident: Incident | None) -> Killed:
        """End whatever is left of the attempt, also after the trainer has ended by itself."""
        trainer.process.poll()
        killed = kill_tree(trainer.pid, marker_of(self.token), self.settings.kill_wait_s)
        if self._waits_for_storage(killed, incident):
            killed = self._outwait(trainer, killed)
        trainer.close()
        self._copy_record(now=True)
        self.disk.post(remove_temporary_folder, self.token)
        if not killed.needs_reboot:
            self.disk.post(run_files.clear_leftovers, self.run_folder)
        self._keep_timeouts()
        return killed

    def _waits_for_storage(self, killed: Killed, incident: Incident | None) -> bool:
        """Whether processes that outlived SIGKILL will end as soon as a disk answers."""
        if not killed.needs_reboot:
            return False
        is_storage = incident is not None and incident.diagnosis.kind is StallClass.STORAGE
        in_kernel = all(WRITES_IN_KERNEL.search(where) for where in killed.survivors.values())
        return self.disk.hangs or is_storage or in_kernel

    def _outwait(self, trainer: RunningTrainer, killed: Killed) -> Killed:
        """Wait until the disk answers and the killed processes end, or the supervisor is told to stop."""
        left = "; ".join(f"process {pid}: {where}" for pid, where in killed.survivors.items())
        sentence = f"SIGKILL takes effect when the disk answers: {left}; the restart waits for that"
        self.announcer.waits_for_storage(sentence)
        self.say(sentence)
        began_s = time.monotonic()
        while any(map(is_same, killed.left)):
            if self.signals:
                return killed
            time.sleep(self.settings.poll_s)
            self._serve()
        self.say(f"the killed processes have ended after {time.monotonic() - began_s:.0f} s")
        trainer.process.poll()
        return kill_tree(trainer.pid, marker_of(self.token), self.settings.kill_wait_s)

    def _keep_timeouts(self) -> None:
        path = self.run_folder / PHASE_TIMEOUTS_FILE
        self.disk.post(keep, path, self.timeouts.to_json(), replaces=str(path))
