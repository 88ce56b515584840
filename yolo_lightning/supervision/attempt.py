"""One attempt: a trainer from its start to its end, a stall that ends it, or a stop signal."""

import signal
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from yolo_lightning.supervision import live_heartbeat, run_disk
from yolo_lightning.supervision.announcer import Announcer
from yolo_lightning.supervision.classify import Diagnosis, StallClass
from yolo_lightning.supervision.evidence import Request, examine, keep
from yolo_lightning.supervision.failure_record import read_failure
from yolo_lightning.supervision.fallback_levels import FallbackState
from yolo_lightning.supervision.heartbeat import NOT_STARTED, RECORD_BYTES, Heartbeat, Phase, parse
from yolo_lightning.supervision.helper_process import bounded
from yolo_lightning.supervision.incident import Incident
from yolo_lightning.supervision.job import Job
from yolo_lightning.supervision.kill import Killed, kill_tree, reap_orphans
from yolo_lightning.supervision.next_action import AttemptFacts
from yolo_lightning.supervision.outcome import record_of_output
from yolo_lightning.supervision.phase_timeouts import AdaptiveTimeouts
from yolo_lightning.supervision.program_growth import ProgramGrowth
from yolo_lightning.supervision.rank_status import hanging_rank
from yolo_lightning.supervision.run_disk import PROBE_S, Recorder, RunDisk
from yolo_lightning.supervision.trainer import RunningTrainer, make_temporary_folder, marker_of, remove_temporary_folder
from yolo_lightning.supervision.unsaved_checkpoint import read_unsaved
from yolo_lightning.supervision.watch import Look, Watch, excuse_for
from yolo_lightning.utils import run_files
from yolo_lightning.utils.activity import Activity
from yolo_lightning.utils.exit_codes import of_signal
from yolo_lightning.utils.files import write_json
from yolo_lightning.utils.regular_files import read_regular
from yolo_lightning.utils.stop_signals import signal_name

WORKS_ON_S = 1.0
"""A heartbeat this much later than the last output shows that the error in the output has not ended the trainer."""

SAME_REQUEST_S = 2.0
"""Further signals within this time after the first one belong to the same request: a closed terminal sends SIGHUP twice
(from the shell and from the kernel), the end of a session SIGTERM and SIGHUP, `timeout` SIGTERM twice."""

STEP_PHASES = frozenset({Phase.FETCH, Phase.STEP})


@dataclass(frozen=True, slots=True)
class Services:
    """What the supervisor uses all the time."""

    disk: RunDisk
    recorder: Recorder
    announcer: Announcer
    signals: list[int]  # stop signals that have arrived

    @property
    def stop_signal(self) -> int:
        """The first stop signal; 0 for none."""
        return self.signals[0] if self.signals else 0

    def serve(self) -> None:
        """Write and send what is queued; must be called regularly."""
        self.recorder.serve()
        self.disk.check_alarm()
        self.announcer.serve()


class AttemptRunner:
    """Starts trainers in a run folder, watches each until it ends, and kills its processes."""

    def __init__(self, run: Path, job: Job, token: str, services: Services) -> None:
        self.run_folder = run
        self.job = job
        self.settings = job.settings
        self.token = token
        self.services = services
        self.disk = services.disk
        self.recorder = services.recorder
        self.announcer = services.announcer
        self.timeouts = AdaptiveTimeouts(self.settings.phase_timeouts, {}, self.settings.factor)
        self.quiet_since_s = time.monotonic()  # end of the last incident
        self._incidents: set[str] = set()
        # Of the present attempt:
        self._heartbeat = NOT_STARTED  # the last one that could be read
        self._heartbeat_path = run
        self._copied_s = 0.0
        self._climbs = False
        self._grown_s = 0.0
        self._unsaved: Incident | None = None  # a checkpoint that could not be saved
        self._unsaved_since_s = 0.0  # seconds since 1970

    def run(self, words: list[str], state: FallbackState, climb_after_s: float) -> AttemptFacts:
        """Run a trainer until it ends, and for at most `climb_after_s` seconds without an incident; return the facts.

        Raises:
            OSError: If a file of the attempt cannot be written, or the trainer cannot be started.
        """
        self._heartbeat = NOT_STARTED
        self.disk.ask(run_disk.clear_attempt, self.run_folder)
        self.disk.ask(make_temporary_folder, self.token)
        self._incidents |= self.disk.ask(run_files.incident_names, self.run_folder)
        self._heartbeat_path = live_heartbeat.make(self.token)
        self._climbs = False
        self._grown_s = 0.0
        self._unsaved = None
        self.keep_timeouts()
        try:
            trainer = RunningTrainer(
                words,
                self._heartbeat_path,
                self.token,
                self.recorder.record,
                self.settings.patience_h * 3600,
                any_command=self.job.any_command,
            )
        except OSError:
            self.disk.post(remove_temporary_folder, self.token)
            raise
        try:
            self.announcer.attempt_started(trainer.process.pid, state)
            watch = self._watch_of(trainer)
            stall = self._watch(trainer, watch, climb_after_s)
            killed = self._end(trainer)
        except BaseException:  # such as no free file descriptor: no trainer may remain without a supervisor
            self._kill(trainer)
            raise
        watch.update()
        return self._facts(trainer, watch.heartbeat, stall, killed)

    def _kill(self, trainer: RunningTrainer) -> Killed:
        trainer.process.poll()
        return kill_tree(trainer.process.pid, marker_of(self.token), self.settings.kill_wait_s)

    def _facts(
        self, trainer: RunningTrainer, heartbeat: Heartbeat, stall: AttemptFacts | None, killed: Killed
    ) -> AttemptFacts:
        """Return what is known about a trainer that has ended."""
        code: int | None = trainer.process.returncode  # None for a process that survived SIGKILL
        finished = code == 0  # also after a stall: a program that was killed has the code of the signal
        if not self.job.any_command:
            finished = self.disk.ask(run_files.is_finished, self.run_folder)
        record = read_failure(self._heartbeat_path)
        facts = stall
        if facts is None:
            lines = trainer.output.lines()
            last_words = lines
            if heartbeat.phase_began_s > trainer.output.last_s + WORKS_ON_S:
                last_words = ()
            if not record.error:
                record = record_of_output(code or 0, last_words)
            climbs = self._climbs and not finished and code in (of_signal(signal.SIGTERM), -signal.SIGTERM)
            facts = replace(self.new_facts(), heartbeat=heartbeat, code=code, lines=lines, climbs=climbs)
        return replace(facts, record=record, killed=killed, finished=finished, grown_s=self._grown_s)

    def new_facts(self) -> AttemptFacts:
        """Return the facts of an attempt of which only the heartbeat is known; its incident folder does not exist."""
        folder = run_files.incident_folder(self.run_folder, self._incidents)
        return AttemptFacts(self.settings, folder, heartbeat=self._heartbeat)

    def keep_incident(self, incident: Incident, outcome: str) -> None:
        """Write the report of an incident; `outcome` describes the reaction of the supervisor."""
        self.quiet_since_s = time.monotonic()
        path = incident.folder / run_files.INCIDENT_FILE
        self.disk.post(keep, path, incident.report(outcome), replaces=str(path))

    def keep_timeouts(self) -> None:
        path = self.run_folder / run_files.PHASE_TIMEOUTS_FILE
        self.disk.post(write_json, path, asdict(self.timeouts), replaces=str(path))

    def _watch_of(self, trainer: RunningTrainer) -> Watch:
        """Return the detection of stalls of a trainer. Another program than a fit can show other signs of life."""
        watch = Watch(self._heartbeat_path, trainer.process.pid, excuse_for, self.timeouts, poll_s=self.settings.poll_s)
        if self.job.any_command:
            last_output_s = partial(getattr, trainer.output, "last_s")
            growth = ProgramGrowth(self.job.progress, self.run_folder, last_output_s, self.disk)
            watch.has_grown = growth.has_grown
        return watch

    def _watch(self, trainer: RunningTrainer, watch: Watch, climb_after_s: float) -> AttemptFacts | None:
        """Wait until the trainer has ended, must be killed, or a stop signal arrives; return the stall, if any."""
        stall: AttemptFacts | None = None
        began_s = time.monotonic()
        kill_at_s = 0.0
        last_reason = ""
        while trainer.process.poll() is None:
            trainer.output.pump(self.settings.poll_s)
            self.services.serve()
            if self.services.signals:
                self._stop(trainer)
                return None
            with suppress(OSError):  # such as no free file descriptor: the next look repeats it
                reap_orphans(trainer.process.pid)
            look = watch.look()
            if look.is_readable:
                self._note_progress(look.heartbeat)
                watch.timeouts = self.timeouts
                if time.monotonic() >= self.quiet_since_s + climb_after_s and look.heartbeat.phase in STEP_PHASES:
                    self._stop_to_climb(trainer)
            self._report_unsaved(look)
            if look.has_grown:
                self._grown_s = time.monotonic() - began_s
                self.announcer.program_grew()
            if look.reason and look.reason != last_reason:
                self.recorder.log(look.reason)
            last_reason = look.reason
            if not look.is_stalled:
                if stall is not None:
                    self._report_recovery(stall)
                stall = None
            elif stall is None:
                kill_at_s = time.monotonic() + self.settings.kill_after_s
                stall = self._report_stall(trainer, look)
                watch.keep_looking()
            elif time.monotonic() >= kill_at_s:
                return stall
        return stall

    def _note_progress(self, heartbeat: Heartbeat) -> None:
        self._heartbeat = heartbeat
        self.timeouts = self.timeouts.learn(heartbeat.longest_s, self.settings.kill_after_s)
        self.announcer.progress_made(heartbeat)
        if time.monotonic() >= self._copied_s + live_heartbeat.COPY_INTERVAL_S:
            self._copy_heartbeat()

    def _report_unsaved(self, look: Look) -> None:
        """Report a checkpoint that the trainer could not save, and that checkpoints are saved again."""
        unsaved = read_unsaved(self._heartbeat_path)
        if unsaved is not None and self._unsaved is None:
            sentence = unsaved.sentence(time.time())
            facts = replace(self.new_facts(), heartbeat=look.heartbeat)
            self._unsaved = facts.incident(Diagnosis(StallClass.ENVIRONMENT, sentence))
            self._unsaved_since_s = unsaved.since_s
            self.keep_incident(self._unsaved, "training continues")
            self.announcer.tell("checkpoint not saved", sentence)
        elif unsaved is None and self._unsaved is not None:
            sentence = f"after {(time.time() - self._unsaved_since_s) / 60:.0f} min"
            self.keep_incident(self._unsaved, f"saved again {sentence}")
            self._unsaved = None
            self.announcer.tell("checkpoints are saved again", sentence)

    def _stop_to_climb(self, trainer: RunningTrainer) -> None:
        """Let the trainer save and exit; it finishes its step first."""
        self._climbs = True
        self.quiet_since_s = time.monotonic()
        self.recorder.log("no incident for some time: the trainer is stopped to take a fallback level back")
        trainer.process.terminate()

    def _copy_heartbeat(self) -> None:
        """Copy the heartbeat file to the run folder, for readers on other machines."""
        self._copied_s = time.monotonic()
        try:
            content = read_regular(self._heartbeat_path, RECORD_BYTES)
        except OSError:
            return
        if isinstance(parse(content), Heartbeat):
            self.disk.post(live_heartbeat.write_copy, content, self.run_folder, replaces="record")

    def _report_stall(self, trainer: RunningTrainer, look: Look) -> AttemptFacts:
        """Examine and report a stall. If the disk hangs, notifications are sent before the processes are examined."""
        pid = trainer.process.pid
        part_timeout_s = self.settings.part_timeout_s
        heartbeat = look.heartbeat
        rank = 0
        if heartbeat.activity is Activity.EXCHANGE:
            hanging = bounded(lambda: hanging_rank(self.run_folder), part_timeout_s)
            if hanging is not None:
                rank, heartbeat = hanging
        stall = replace(
            self.new_facts(),
            heartbeat=heartbeat,
            rank=rank,
            waited_s=look.waited_s,
            disk_hangs=not self.disk.answers(min(PROBE_S, part_timeout_s)),
        )
        lines = trainer.output.lines()
        request = Request(stall.folder, self.disk, pid, self._heartbeat_path, heartbeat, lines, part_timeout_s)
        if stall.disk_hangs:
            silent = f"the disk of the run folder has not responded for {self.disk.silent_s:.0f} s"
            evidence = Diagnosis(StallClass.STORAGE, f"{silent}; the trainer is process {pid}")
            self.announcer.stalled(stall.incident(evidence).sentence(), stall.folder)
            examined = examine(request)
            evidence = replace(evidence, sentence=f"{silent}; {examined.sentence}")
        else:
            evidence = examine(request)
            self.announcer.stalled(stall.incident(evidence).sentence(), stall.folder)
        self.keep_incident(stall.incident(evidence), f"kill in {self.settings.kill_after_s:g} s unless it recovers")
        return replace(stall, evidence=evidence)

    def _report_recovery(self, stall: AttemptFacts) -> None:
        assert stall.evidence is not None
        self.keep_incident(stall.incident(stall.evidence), "recovered without a restart")
        self.announcer.recovered()

    def _stop(self, trainer: RunningTrainer) -> None:
        """Pass the stop signal on and wait for the trainer to save and exit; a second request ends the wait.

        A second request is a second Ctrl-C, or any signal later than `SAME_REQUEST_S` after the first one.
        """
        signals = self.services.signals
        grace_s = self.settings.grace_s
        name = signal_name(signals[0])
        self.recorder.log(f"{name}: the trainer has {grace_s:g} s to exit; a second Ctrl-C or a later signal kills it")
        trainer.process.terminate()  # SIGTERM, because a second SIGINT would end the trainer without saving
        began_s = time.monotonic()
        of_request = len(signals)
        while trainer.process.poll() is None and time.monotonic() < began_s + grace_s:
            if len(signals) > of_request or signals.count(signal.SIGINT) > 1:
                break
            trainer.output.pump(min(self.settings.poll_s, 0.2))
            self.services.serve()
            if time.monotonic() < began_s + SAME_REQUEST_S:
                of_request = len(signals)

    def _end(self, trainer: RunningTrainer) -> Killed:
        """Kill all remaining processes of the attempt, also if the trainer has ended by itself."""
        killed = self._kill(trainer)
        trainer.close()
        self._copy_heartbeat()
        self.disk.post(remove_temporary_folder, self.token)
        if killed.survivors:
            self.recorder.log(f"SIGKILL takes effect when the kernel permits it: {killed}")
        else:
            self.disk.post(run_disk.clear_leftovers, self.run_folder)
        self.keep_timeouts()
        return killed
