"""Run one system once: start its command, inject the faults from outside, and act as the person who looks after it."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from faults import actions, traces

from race.account import Outcome, Record
from race.hook import NAN_VARIABLE, RECORD_VARIABLE
from race.schedule import Fault
from race.systems import SCRIPTS, TRAINING_VARIABLE, System, Training

MARK_VARIABLE = "FAULT_RACE_RUN"
DISK_BYTES = 512 << 20
"""Size of the file system of the run folder; several checkpoints fit."""
POLL_S = 0.005
SAVE_POLL_S = 0.0005
CHECKPOINT_MARKS = (".ckpt", ".pt")  # in the names of checkpoints and of their temporary files
END_S = 30.0  # for the end of the processes after the final weights


@dataclass(frozen=True)
class Rules:
    """Constants of the race in seconds, the same for every system."""

    reaction_s: float = 60.0  # without a finite step after which a person restarts the system
    full_s: float = 10.0  # that the disk stays full
    limit_s: float = 900.0  # after which a run counts as not finished


class Contest:
    """A run of a system in its own folder."""

    def __init__(self, system: System, training: Training, folder: Path, faults: Sequence[Fault], rules: Rules) -> None:
        self.system, self.training, self.folder, self.rules = system, training, folder, rules
        self.pending = [fault for fault in faults if fault.kind != "nan"]
        self.nan_step = sum(fault.step for fault in faults if fault.kind == "nan")
        self.record = Record(folder / "record.jsonl")
        self.mark = uuid.uuid4().hex
        self.happened: list[tuple[float, str]] = []
        self.interventions: list[float] = []
        self.full_until_s = 0.0
        self.files: dict[Path, tuple[int, int, int]] | None = None

    def run(self) -> Outcome:
        """Train until the final weights are finite or the time is over."""
        shutil.rmtree(self.folder, ignore_errors=True)
        run_folder = Path(self.training.run_folder)
        run_folder.mkdir(parents=True)
        has_disk = any(fault.kind == "disk" for fault in self.pending)
        if has_disk and (error := actions.mount(self.folder / "disk.img", run_folder, DISK_BYTES)):
            raise OSError(error)
        try:
            begin_s = time.monotonic()
            process = self._start()
            self._watch(begin_s)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
        finally:
            self._end_all()
            if has_disk:
                actions.unmount(run_folder)
                (self.folder / "disk.img").unlink(missing_ok=True)
        return Outcome.of(self.record.entries, begin_s, self.happened, self.interventions)

    def _watch(self, begin_s: float) -> None:
        active_s = begin_s
        while (now_s := time.monotonic()) < begin_s + self.rules.limit_s:
            for entry in self.record.update():
                if entry.finite and (entry.step or entry.digest):
                    active_s = max(active_s, entry.at_s)
                if entry.finite and entry.digest:
                    return
            if self.pending and self._inject(self.pending[0]):
                self.happened.append((time.monotonic(), self.pending.pop(0).kind))
            if self.full_until_s and now_s > self.full_until_s:
                shutil.rmtree(self._filler())
                self.full_until_s = 0.0
            if now_s > active_s + self.rules.reaction_s:
                self._intervene()
                active_s = time.monotonic()
            time.sleep(POLL_S if self.files is None else SAVE_POLL_S)

    def _start(self) -> subprocess.Popen[bytes]:
        command = self.system.line(self.training)
        with (self.folder / "output.txt").open("a") as output:
            output.write(f"$ {command}\n")
            output.flush()
            return subprocess.Popen(
                ["bash", "-c", command],
                cwd=self.folder,
                env=os.environ | self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _environment(self) -> dict[str, str]:
        paths = (str(SCRIPTS), str(SCRIPTS.parent), os.environ.get("PYTHONPATH"))
        settings = self.folder.parents[1] / "ultralytics-settings"
        return {
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "OMP_NUM_THREADS": "1",
            "YOLO_CONFIG_DIR": str(settings),
            MARK_VARIABLE: self.mark,
            RECORD_VARIABLE: str(self.record.path),
            TRAINING_VARIABLE: self.training.text(),
            **({NAN_VARIABLE: str(self.nan_step)} if self.nan_step else {}),
        }

    # Faults. Each method returns whether the fault has happened.

    def _inject(self, fault: Fault) -> bool:
        steps = [entry for entry in self.record.entries if entry.step]
        if not steps or max(entry.step for entry in steps) < fault.step:
            return False
        process = self.record.entries[-1].process
        try:
            if fault.kind == "kill":
                os.kill(process, signal.SIGKILL)
                return True
            if fault.kind == "hang":
                return stop_workers(process)
            if fault.kind == "save":
                return self._kill_in_save(process)
        except (ProcessLookupError, FileNotFoundError):  # the process has ended for another reason
            return False
        fill_disk(self._filler())
        self.full_until_s = time.monotonic() + self.rules.full_s
        return True

    def _kill_in_save(self, process: int) -> bool:
        """Kill the trainer as soon as a checkpoint, or a temporary file of one, appears or changes."""
        files = checkpoint_files(Path(self.training.run_folder))
        previous = self.files
        self.files = files
        if previous is None or all(previous.get(path) == state for path, state in files.items()):
            return False
        os.kill(process, signal.SIGKILL)
        self.files = None
        return True

    def _filler(self) -> Path:
        return Path(self.training.run_folder) / "filler"

    # The person.

    def _intervene(self) -> None:
        """Kill all processes, delete unusable checkpoints, and start the same command again."""
        self.interventions.append(time.monotonic())
        self._end_all()
        command = [sys.executable, "-m", "race.unusable", self.training.run_folder]
        with (self.folder / "output.txt").open("a") as output:
            subprocess.run(command, env=os.environ | self._environment(), stdout=output, check=True)
        self._start()

    def _end_all(self) -> None:
        while traces.end_marked(MARK_VARIABLE, self.mark):
            time.sleep(0.2)  # a process may have been starting another one


def stop_workers(process: int) -> bool:
    """Send SIGSTOP to the loader workers of a trainer: forked ones have its command line."""
    trainer_command = Path(f"/proc/{process}/cmdline").read_bytes()
    workers = []
    for children in Path(f"/proc/{process}/task").glob("*/children"):
        for child in map(int, children.read_text().split()):
            command = Path(f"/proc/{child}/cmdline").read_bytes()
            if command == trainer_command or b"multiprocessing.spawn" in command:
                workers.append(child)
    for child in workers:
        os.kill(child, signal.SIGSTOP)
    return bool(workers)


def checkpoint_files(folder: Path) -> dict[Path, tuple[int, int, int]]:
    """Return inode, size and time of every checkpoint and temporary file of one."""
    states = {}
    for directory, _, names in os.walk(folder):
        for name in names:
            if any(mark in name for mark in CHECKPOINT_MARKS):
                with contextlib.suppress(OSError):  # deleted meanwhile
                    path = Path(directory) / name
                    status = path.lstat()
                    states[path] = (status.st_ino, status.st_size, status.st_mtime_ns)
    return states


def fill_disk(filler: Path) -> None:
    """Fill the file system of a new file, most of it at once."""
    filler.mkdir()
    with (filler / "most").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(filler).free * 9 // 10)
    actions.fill(filler / "rest")
