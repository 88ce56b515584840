"""One supervised fit as a user starts it, and all that is seen of it from outside while it runs."""

import json
import os
import re
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from faults import traces
from faults.inside import FIRED_FILE, note_fired
from faults.launch import Launch
from faults.workshop import REPOSITORY, SCRIPTS, Workshop, busyness, write
from yolo_lightning.supervision import SuperviseSettings, live_heartbeat
from yolo_lightning.supervision.heartbeat import Heartbeat, HeartbeatReader, Phase
from yolo_lightning.supervision.phase_timeouts import PhaseTimeouts
from yolo_lightning.supervision.run_lock import read_holder
from yolo_lightning.supervision.supervised_fit import job
from yolo_lightning.utils.run_files import HEARTBEAT_FILE, LOCK_FILE, LOG_FILE

MARK_VARIABLE = "FAULTS_CASE"
WORKSHOP_VARIABLE = "FAULTS_WORKSHOP"
LOOK_EVERY_S = 0.004
KILLS = "kills"
"""Note of a run: of each kill of a soak its moment, phase, epoch and step."""

RESUMED = re.compile(r"^run folder: .*, checkpoint: (.*\.ckpt)$")


@dataclass(frozen=True, slots=True)
class Beat:
    """The record as it was seen to change.

    Attributes:
        at_s: Monotonic clock.
        process: Trainer.
        phase: Its phase.
        step: Steps trained.
    """

    at_s: float
    process: int
    phase: Phase
    step: int


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the output.

    Attributes:
        at_s: Monotonic clock.
        text: Without its end.
        resumed_step: Steps that the checkpoint had trained which the line names; None for other lines.
    """

    at_s: float
    text: str
    resumed_step: int | None = None


class Run:
    """All commands of a case, one after the other, in one run folder.

    Args:
        case: Settings of the run.
        workshop: Dataset, configuration and reference run of all cases.
        acts: Called again and again while the run lives, one after the other until each returns True.
        prepare: Called before the start.

    Attributes:
        busyness: Processes that wanted to run, for each core, 1 at least; limits of time are that much longer.
    """

    def __init__(
        self,
        case: Launch,
        workshop: Workshop,
        acts: Iterable["Act"] = (),
        prepare: Callable[["Run"], None] | None = None,
    ) -> None:
        self.case, self.workshop = case, workshop
        self.folder = workshop.root / f"case-{case.name}"
        self.run_folder = self.folder / "run"
        elsewhere = case.environment.get("TMPDIR", "").format(name=f"faults-{uuid.uuid4().hex}")
        self.temporary = Path(elsewhere) if elsewhere else self.folder / "tmp"
        self.config_file = self.folder / "config.yaml"
        self.folder.mkdir(parents=True)
        self.temporary.mkdir(parents=True)
        self.configuration = workshop.configuration(case, self.folder)
        self.shared_memory_before = traces.shared_memory()
        self.mark = uuid.uuid4().hex
        self.codes: list[int] = []
        self.lines: list[Line] = []
        self.beats: list[Beat] = []
        self.record: Heartbeat | None = None
        self.hit: set[int] = set()
        self.notes: dict[str, Any] = {}
        self.hung = False
        self.busyness = 1.0
        self.supervisor: subprocess.Popen[bytes]
        self._acts, self._prepare = list(acts), prepare

    def carry_out(self) -> None:
        """Run all commands, and do to them what the case says."""
        if self._prepare:
            self._prepare(self)
        self.write_configuration()
        for number in range(len(self.case.codes)):
            self.supervisor = self.start(self.words(typed=self.case.typed or number > 0, resume=number > 0))
            thread = threading.Thread(target=self._read, args=(self.supervisor.stdout,), daemon=True)
            thread.start()
            self._watch()
            self.codes.append(self.supervisor.wait())
            thread.join(10)
            self.busyness = max(self.busyness, busyness())

    def words(self, *, typed: bool, resume: bool) -> list[str]:
        """The command line: a user's, or that of the supervisor which the user's becomes after ten seconds."""
        fit = ["fit", "--config", str(self.config_file), *(["--resume"] if resume else [])]
        if typed or not self.configuration["supervise"]:
            return [self.workshop.python, "-m", "yolo_lightning", *fit]
        given = dict(self.configuration["supervision"])
        settings = SuperviseSettings(**given | {"phase_timeouts": PhaseTimeouts(**given["phase_timeouts"])})
        made = job(fit, self.run_folder, workers=self.case.workers, settings=settings, on_gpu=False)
        made = replace(made, smoke_test=self.case.smoke_test)
        return [self.workshop.python, "-m", "yolo_lightning.supervision", str(self.run_folder), made.to_json()]

    def start(self, words: list[str]) -> subprocess.Popen[bytes]:
        """A process of this case."""
        environment = {
            "PYTHONPATH": os.pathsep.join(map(str, (SCRIPTS / "faults" / "fakes", REPOSITORY, SCRIPTS))),
            "OMP_NUM_THREADS": "1",
            "TMPDIR": str(self.temporary),
            "TORCHINDUCTOR_CACHE_DIR": str(self.workshop.root / "inductor"),  # torch makes it when it is imported
            "FAULTS_LIBRARY": str(self.workshop.library),
            MARK_VARIABLE: self.mark,
            WORKSHOP_VARIABLE: str(self.workshop.root),
        }
        given = {
            name: value.format(folder=self.folder) for name, value in self.case.environment.items() if name != "TMPDIR"
        }
        if self.case.small_shared_memory:
            words = [*traces.SMALL_SHARED_MEMORY, *words]
        return subprocess.Popen(
            words,
            cwd=self.folder,
            env=os.environ | environment | given,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def write_configuration(self) -> None:
        """As it is now; a restart reads it anew."""
        write(self.configuration, self.config_file)

    def abandon(self) -> None:
        """End whatever lives."""
        traces.end_marked(MARK_VARIABLE, self.mark)

    def note(self, fault: str) -> None:
        """Say that a fault happens now."""
        note_fired(self.folder, fault)

    def fired_s(self) -> list[float]:
        """When faults happened, monotonic clock."""
        path = self.folder / FIRED_FILE
        return sorted(json.loads(line)["at_s"] for line in path.read_text().splitlines()) if path.is_file() else []

    def incidents(self) -> list[dict[str, Any]]:
        """What the supervisor reported, in order."""
        paths = sorted(
            (self.run_folder / "incidents").glob("*/incident.json"), key=lambda path: path.stat().st_ctime_ns
        )
        return [json.loads(path.read_text()) for path in paths]

    def log(self) -> str:
        """All output."""
        return "\n".join(line.text for line in self.lines)

    def log_file(self) -> str:
        """What stands in the run folder, of other processes too."""
        path = self.run_folder / LOG_FILE
        return path.read_text(errors="replace") if path.is_file() else ""

    @property
    def fresh(self) -> Heartbeat | None:
        """The record of a trainer that nothing was done to yet."""
        return None if self.record is None or self.record.process in self.hit else self.record

    def live_record(self) -> Path:
        """The record that the trainer writes, in the /dev/shm of the supervisor; the copy where there is none."""
        holder = read_holder(self.run_folder / LOCK_FILE)
        if holder is not None:
            for folder in live_heartbeat.folders(holder.marker):
                path = Path(f"/proc/{self.supervisor.pid}/root{folder}") / HEARTBEAT_FILE
                if path.is_file():
                    return path
        return self.run_folder / HEARTBEAT_FILE

    def _watch(self) -> None:
        end_s = time.monotonic() + self.case.limit_s
        sequence = -1
        while self.supervisor.poll() is None:
            found = HeartbeatReader(self.live_record()).read()
            self.record = found if isinstance(found, Heartbeat) else None
            if self.record is not None and self.record.sequence != sequence:
                sequence = self.record.sequence
                now = Beat(time.monotonic(), self.record.process, self.record.phase, self.record.step)
                self.beats.append(now)
            if self._acts and self._acts[0](self):
                self._acts.pop(0)
            if time.monotonic() > end_s:
                self.hung = True
                self.abandon()
            time.sleep(LOOK_EVERY_S)

    def _read(self, pipe: IO[bytes]) -> None:
        for content in pipe:
            text = content.decode(errors="replace").rstrip()
            match = RESUMED.match(text)
            self.lines.append(Line(time.monotonic(), text, self._steps_of(match[1]) if match else None))

    def _steps_of(self, checkpoint: str) -> int:
        """By its sidecar, which may soon be gone."""
        path = self.folder / f"{checkpoint}.json"
        try:
            return int(json.loads(path.read_text())["steps"])
        except (OSError, ValueError, KeyError):
            return int("".join(filter(str.isdigit, Path(checkpoint).name)) or 0)


def send(process: int, number: signal.Signals) -> None:
    """A signal to a process, if it is still there."""
    try:
        os.kill(process, number)
    except ProcessLookupError:
        return


Act = Callable[[Run], bool]
"""Something done to a run from outside; called again and again until the return value is True."""
