"""A supervisor of the stand-in trainer in a child process, and the files of its run."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

from tests.conftest import REPOSITORY
from yolo_lightning.supervision.job import JOB_VARIABLE, Job, SuperviseSettings
from yolo_lightning.supervision.phase_timeouts import PhaseTimeouts
from yolo_lightning.supervision.processes import marked, tree
from yolo_lightning.supervision.run_lock import read_holder
from yolo_lightning.supervision.trainer import marker_of

TRAINER = Path(__file__).with_name("stand_in_trainer.py")
PATIENT_S = 30.0
LIMIT_S = 60.0

SHORT = {
    "poll_s": 0.05,
    "kill_after_s": 0.1,
    "grace_s": 0.5,
    "pause_s": 0.05,
    "part_timeout_s": 5.0,
    "patience_h": 0.001,
}


def floors(**short_s: float) -> PhaseTimeouts:
    """Long for what is not named, as the machine may be busy."""
    return PhaseTimeouts(**{field.name: PATIENT_S for field in fields(PhaseTimeouts)} | short_s)


class Supervised:
    """Started, and ended by `wait` or `end`."""

    def __init__(
        self,
        run: Path,
        fault: str,
        until: int = 1,
        *,
        workers: int = 4,
        allowed: PhaseTimeouts | None = None,
        smoke_test: tuple[str, ...] = (),
        stdout: int = subprocess.DEVNULL,
        program: tuple[str, ...] = (),  # in place of the stand-in trainer, run in the parent folder of `run`
        interrupt: signal.Handlers = signal.SIG_DFL,  # reaction to SIGINT that the supervisor inherits
        **settings: Any,
    ) -> None:
        self.run = run
        run.mkdir(parents=True, exist_ok=True)
        options = SuperviseSettings(phase_timeouts=allowed or floors(), **(SHORT | settings))
        command = (sys.executable, str(TRAINER), str(run), fault, str(until))
        job = Job(command, (*command, "--resume"), workers, options, smoke_test)
        if program:
            job = Job(program, program, settings=options, any_command=True)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "yolo_lightning.supervision", str(run)],
            env=os.environ | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", JOB_VARIABLE: job.to_json()},
            cwd=run.parent if program else None,
            stdout=stdout,
            preexec_fn=lambda: signal.signal(signal.SIGINT, interrupt),
        )

    def wait(self) -> int:
        """Its exit code."""
        try:
            return self.process.wait(LIMIT_S)
        finally:
            self.end()

    def end(self) -> None:
        """Leave nothing behind, whatever failed; these are this test's own processes."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
            self.clear()

    def clear(self) -> None:
        """End what a killed supervisor has left."""
        for process in self.left():
            os.kill(process, 9)

    def left(self) -> list[int]:
        """Processes that carry its marker, or are in a trainer's session."""
        holder = read_holder(self.run / "run.lock")
        assert holder is not None
        processes = {process.pid for process in marked(marker_of(holder.marker))}
        for start in self.starts():
            processes |= {process.pid for process in tree(start["process"])}
        return sorted(processes)

    def new_shared_memory(self) -> list[str]:
        """Semaphores that the trainer made and that are still there."""
        path = self.run / "left.json"
        names = [json.loads(path.read_text())["semaphore"]] if path.is_file() else []
        return [name for name in names if Path("/dev/shm", f"sem.{name.lstrip('/')}").exists()]

    def wait_for(self, name: str) -> None:
        """Until the run folder holds a file."""
        end_s = time.monotonic() + LIMIT_S
        while not (self.run / name).exists():
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < end_s, self.log()
            time.sleep(0.02)

    def starts(self) -> list[dict[str, Any]]:
        path = self.run / "starts.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []

    def incidents(self) -> list[dict[str, Any]]:
        paths = (self.run / "incidents").glob("*/incident.json")
        return [json.loads(path.read_text()) for path in sorted(paths, key=lambda path: path.stat().st_mtime_ns)]

    def state(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.run / "supervision.json").read_text())
        return content

    def log(self) -> str:
        return (self.run / "run.log").read_text() if (self.run / "run.log").is_file() else "(no log)"
