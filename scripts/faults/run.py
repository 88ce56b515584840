"""Cases of the fault matrix and their runs: a supervised fit as a user starts it, observed from outside."""

import json
import os
import re
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import IO, Any

import yaml

from faults import traces
from faults.hangs import FIRED_FILE, LIBRARY_VARIABLE, record_fired
from yolo_lightning.options.run_spec import read_spec
from yolo_lightning.supervision import live_heartbeat
from yolo_lightning.supervision.classify import StallClass
from yolo_lightning.supervision.fallback_levels import AS_CONFIGURED
from yolo_lightning.supervision.heartbeat import Heartbeat, Phase, read_heartbeat
from yolo_lightning.supervision.job import JOB_VARIABLE, job
from yolo_lightning.supervision.phase_timeouts import PhaseTimeouts
from yolo_lightning.supervision.run_lock import read_holder
from yolo_lightning.utils.nested_keys import flatten
from yolo_lightning.utils.run_files import HEARTBEAT_FILE, LOCK_FILE, LOG_FILE

FAULTS = Path(__file__).resolve().parent
REPOSITORY = FAULTS.parent.parent
TRAIN_FRAMES, VALID_FRAMES, BATCH, EPOCHS = 64, 8, 4, 2
STEPS_PER_EPOCH = TRAIN_FRAMES // BATCH
MARK_VARIABLE = "FAULTS_CASE"
ROOT_VARIABLE = "FAULTS_ROOT"
POLL_S = 0.004
LONG_S = 90.0  # phase timeout that no case reaches
PROCESS_STARTS = frozenset({"import_s", "setup_s", "first_batch_s", "validate_s", "exit_s"})
"""Timeouts of phases in which processes start or end. They are longer on a busy machine."""
RESUMED = re.compile(r"^run folder: .*, checkpoint: (.*\.ckpt)$")


@dataclass(frozen=True, slots=True)
class Report:
    """Expected incident report of the supervisor."""

    kind: StallClass | None  # None accepts every class
    words: tuple[str, ...] = ()  # parts of the sentence
    phase: str = ""  # an empty string accepts every phase
    within_s: float | None = None  # from the fault to the report; None for the phase timeout plus five seconds


@dataclass(frozen=True)
class Case:
    """One row of the matrix: a run, its faults and the expected outcome."""

    name: str  # number of the row, and a letter if the row has several cases
    fault: str  # description
    inside: tuple[str, ...] = ()  # faults called by the trainer or a worker, texts of `InsideFault`
    outside: "tuple[Action, ...]" = ()  # actions from outside, one after another
    reports: tuple[Report, ...] = ()  # expected reports, in order
    codes: tuple[int, ...] = (0,)  # expected exit codes: of the first command, then of each following `fit --resume`
    # Settings of the run.
    timeouts_s: dict[str, float] = field(default_factory=dict)  # short phase timeouts by name; the others are long
    supervision: dict[str, Any] = field(default_factory=dict)  # other settings of the supervisor
    config: dict[str, Any] = field(default_factory=dict)  # other values of the configuration, by dotted key
    workers: int = 0
    environment: dict[str, str] = field(default_factory=dict)
    smoke_test: tuple[str, ...] = ()  # command that replaces the smoke test of a GPU
    small_shared_memory: bool = False  # whether the run has its own /dev/shm of 2 MB
    # Whether the command line of a user starts the run. Otherwise its supervisor is started directly, which saves ten
    # seconds of imports. Every `fit --resume` is the command line of a user.
    typed: bool = False
    limit_s: float = 600.0  # after this time the run is ended as hung
    # Expected outcome.
    fallback_level: int = 0  # of the loader
    computation: str = AS_CONFIGURED  # fallback level of the computation
    precision: str = AS_CONFIGURED  # fallback level of the precision
    exact: bool = True  # whether the final state must equal that of the uninterrupted run, bit for bit
    lost_steps: int | None = 5  # largest number of steps that a restart may repeat; None for any
    possible_report: str = ""  # part of the sentence of a report that is made only if the fault lasts long enough
    log: tuple[str, ...] = ()  # texts that the output must contain
    check: "Callable[[Run], list[str]]" = lambda run: []  # returns what else is wrong
    prepare: "Callable[[Run], None]" = lambda run: None  # called before the start
    clean_up: "Callable[[Run], None]" = lambda run: None  # called after the verdict, also after an error
    unavailable: Callable[[], str] = lambda: ""  # returns why this machine cannot run the case

    @property
    def row(self) -> int:
        """Number of the row."""
        return int(self.name.rstrip("abcdefghijklmnopqrstuvwxyz"))


@dataclass(frozen=True, slots=True)
class Beat:
    """Observed change of the heartbeat file; `at_s` is the monotonic clock."""

    at_s: float
    process: int
    phase: Phase
    step: int


@dataclass(frozen=True, slots=True)
class OutputLine:
    """OutputLine of the output; `resumed_step` is the step of the checkpoint that the line names, None without one."""

    at_s: float
    text: str
    resumed_step: int | None = None


class Run:
    """All commands of a case, one after another, in one run folder below `root`, which contains the datasets."""

    def __init__(self, case: Case, root: Path) -> None:
        self.case, self.root = case, root
        self.folder = root / f"case-{case.name}"
        self.run_folder = self.folder / "run"
        self.config_file = self.folder / "config.yaml"
        self.folder.mkdir(parents=True)
        default_folder = self.folder / "tmp"
        self.temporary = Path(
            case.environment.get("TMPDIR", str(default_folder)).format(name=f"faults-{uuid.uuid4().hex}")
        )
        self.temporary.mkdir(parents=True)
        self.configuration = configuration(case, root, self.folder)
        self.shared_memory_before = traces.shared_memory()
        self.mark = uuid.uuid4().hex
        self.codes: list[int] = []
        self.lines: list[OutputLine] = []
        self.beats: list[Beat] = []
        self.record: Heartbeat | None = None
        self.hit: set[int] = set()  # process ids of trainers to which a fault has been done
        self.notes: dict[str, Any] = {}  # values that actions and checks share
        self.hung = False
        self.busyness = 1.0  # largest number of runnable processes per core; time limits are multiplied by it
        self.process: subprocess.Popen[bytes]

    def carry_out(self) -> None:
        """Run all commands and the actions of the case."""
        self.case.prepare(self)
        self.write_configuration()
        actions = list(self.case.outside)
        for number in range(len(self.case.codes)):
            self.process = self.start(self.command(typed=self.case.typed or number > 0, resume=number > 0))
            thread = threading.Thread(target=self._read, args=(self.process.stdout,), daemon=True)
            thread.start()
            self._watch(actions)
            self.codes.append(self.process.wait())
            thread.join(10)
            self.busyness = max(self.busyness, busyness())

    def command(self, *, typed: bool, resume: bool) -> list[str]:
        """Return the command line of a user, or that of the supervisor which the user's command becomes."""
        fit = ["fit", "--config", str(self.config_file), *(["--resume"] if resume else [])]
        if typed or not self.configuration["supervision"]["enabled"]:
            return [sys.executable, "-m", "yolo_lightning", *fit]
        self.run_folder.mkdir(parents=True, exist_ok=True)
        self.write_configuration()
        supervised_job = replace(job(self.run_folder, flatten(self.configuration)), smoke_test=self.case.smoke_test)
        words = [sys.executable, "-m", "yolo_lightning.supervision", str(self.run_folder)]
        return ["env", f"{JOB_VARIABLE}={supervised_job.to_json()}", *words]

    def start(self, command: list[str]) -> subprocess.Popen[bytes]:
        """Start a process of this case."""
        return subprocess.Popen(
            [*(traces.SMALL_SHARED_MEMORY if self.case.small_shared_memory else ()), *command],
            cwd=self.folder,
            env=os.environ | self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def environment(self) -> dict[str, str]:
        """Return the environment variables of the processes of this case."""
        given = {
            name: value.format(folder=self.folder) for name, value in self.case.environment.items() if name != "TMPDIR"
        }
        return given | {
            "PYTHONPATH": os.pathsep.join(map(str, (FAULTS / "fakes", REPOSITORY, FAULTS.parent))),
            "OMP_NUM_THREADS": "1",
            "TMPDIR": str(self.temporary),
            "TORCHINDUCTOR_CACHE_DIR": str(self.root / "inductor"),  # importing torch creates it
            LIBRARY_VARIABLE: str(self.root / "hang.so"),
            MARK_VARIABLE: self.mark,
            ROOT_VARIABLE: str(self.root),
        }

    def write_configuration(self) -> None:
        """Replace the configuration file, and the options of the run that every restart reads, at any time."""
        temporary = self.config_file.with_suffix(".part")
        temporary.write_text(yaml.safe_dump(self.configuration, sort_keys=False))
        temporary.replace(self.config_file)
        if self.run_folder.is_dir():
            read_spec(["fit", "--config", str(self.config_file)], {}).write(self.run_folder)

    def kill(self) -> None:
        """Kill all processes of the case."""
        traces.end_marked(MARK_VARIABLE, self.mark)

    def begin_fault(self, fault: str) -> None:
        """Record that a fault of the trainer happens now."""
        record_fired(self.folder, fault)
        self.hit.add(self.trainer)

    def fired_s(self) -> list[float]:
        """Return the times of all faults, on the monotonic clock."""
        path = self.folder / FIRED_FILE
        return sorted(json.loads(line)["at_s"] for line in path.read_text().splitlines()) if path.is_file() else []

    def incidents(self) -> list[dict[str, Any]]:
        """Return the incident reports of the supervisor in order."""
        paths = (self.run_folder / "incidents").glob("*/incident.json")
        return [json.loads(path.read_text()) for path in sorted(paths, key=lambda path: path.stat().st_ctime_ns)]

    def output(self) -> str:
        return "\n".join(line.text for line in self.lines)

    def log_file(self) -> str:
        """Return the log in the run folder, which other processes write as well."""
        path = self.run_folder / LOG_FILE
        return path.read_text(errors="replace") if path.is_file() else ""

    @property
    def trainer(self) -> int:
        """Process id of the trainer."""
        assert self.record is not None
        return self.record.process

    @property
    def fresh(self) -> Heartbeat | None:
        """Heartbeat of a trainer without a fault so far; None if there is no such trainer."""
        return None if self.record is None or self.record.process in self.hit else self.record

    def heartbeat_file(self) -> Path:
        """Return the file that the trainer writes, in the /dev/shm of the supervisor, or its copy without one."""
        holder = read_holder(self.run_folder / LOCK_FILE)
        for folder in live_heartbeat.folders(holder.marker) if holder is not None else ():
            path = Path(f"/proc/{self.process.pid}/root{folder}") / HEARTBEAT_FILE
            if path.is_file():
                return path
        return self.run_folder / HEARTBEAT_FILE

    def _watch(self, actions: "list[Action]") -> None:
        end_s = time.monotonic() + self.case.limit_s
        sequence = -1
        while self.process.poll() is None:
            record = read_heartbeat(self.heartbeat_file())
            self.record = record if isinstance(record, Heartbeat) else None
            if self.record is not None and self.record.sequence != sequence:
                sequence = self.record.sequence
                self.beats.append(Beat(time.monotonic(), self.record.process, self.record.phase, self.record.step))
            if actions and actions[0](self):
                actions.pop(0)
            if time.monotonic() > end_s:
                self.hung = True
                self.kill()
            time.sleep(POLL_S)

    def _read(self, pipe: IO[bytes]) -> None:
        for content in pipe:
            text = content.decode(errors="replace").rstrip()
            match = RESUMED.match(text)
            self.lines.append(OutputLine(time.monotonic(), text, self._steps_of(match[1]) if match else None))

    def _steps_of(self, checkpoint: str) -> int:
        """Return the step of a checkpoint, from its sidecar file if the file still exists."""
        try:
            return int(json.loads((self.folder / f"{checkpoint}.json").read_text())["steps"])
        except (OSError, ValueError, KeyError):
            return int("".join(filter(str.isdigit, Path(checkpoint).name)) or 0)


Action = Callable[[Run], bool]
"""Something done to a run from outside; called repeatedly until it returns True."""


def configuration(case: Case, root: Path, folder: Path) -> dict[str, Any]:
    """Return the configuration of a case, whose faults are recorded in `folder`."""
    tree: dict[str, Any] = yaml.safe_load((FAULTS / "config.yaml").read_text())
    long_s = {timeout.name: LONG_S * busyness() for timeout in fields(PhaseTimeouts)}
    short_s = {name: value * (busyness() if name in PROCESS_STARTS else 1) for name, value in case.timeouts_s.items()}
    tree["supervision"] |= {**case.supervision, "phase_timeouts": long_s | short_s}
    tree["data"] |= {"root": str(root / "data"), "storage": {"index_root": str(root / "index")}}
    tree["data"]["loader"]["num_workers"] = case.workers
    arguments = {"faults": list(case.inside), "folder": str(folder)}
    tree["trainer"]["callbacks"].append({"class_path": "faults.injector.Injector", "init_args": arguments})
    for key, value in case.config.items():
        put(tree, key, value.format(root=root) if isinstance(value, str) else value)
    return tree


def put(tree: dict[str, Any], key: str, value: Any) -> None:
    """Set the value of a dotted key."""
    *parents, last = key.split(".")
    for parent in parents:
        tree = tree.setdefault(parent, {})
    tree[last] = value


def busyness() -> float:
    """Return the number of runnable processes per core, at least 1."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
