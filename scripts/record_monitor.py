"""Record docs/monitor.svg: the output of `monitor` during a loader stall and after the recovery.

Starts the training of the demo under a supervisor with short phase timeouts, sends SIGSTOP to one loader worker, and
records the output of `monitor` twice. Needs the dataset of `scripts/demo.py`; takes a few minutes on two CPU cores.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from io import StringIO
from pathlib import Path

from rich.console import Console

from yolo_lightning.commands.monitor.command import read_machine
from yolo_lightning.commands.monitor.read_run import read_run
from yolo_lightning.commands.monitor.run_state import RunState, RunVerdict
from yolo_lightning.commands.monitor.screen import screen
from yolo_lightning.supervision.heartbeat import Phase

WIDTH = 100
LIMIT_S = 600.0
STEPS_BEFORE, STEPS_AFTER = 46, 10
OPTIONS = {
    "supervision.enabled": "true",
    "supervision.phase_timeouts.fetch_s": "15",
    "supervision.kill_after_s": "10",
    "supervision.pause_s": "2",
    "trainer.max_epochs": "20",
    "trainer.limit_train_batches": "40",
    "trainer.limit_val_batches": "3",
    "trainer.num_sanity_val_steps": "0",
    "trainer.check_val_every_n_epoch": "1",
    "data.loader.num_workers": "3",
    "data.image_size": "128",
}
ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Waiting OpenMP threads do not spin, because the machine does other work as well."""


def main() -> None:
    """Parse the command line, record both states and write the SVG file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("runs/demo-data"), help="dataset of scripts/demo.py")
    parser.add_argument("--output", type=Path, default=Path("docs/monitor.svg"), help="SVG file to write")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        console = Console(record=True, width=WIDTH, file=StringIO(), force_terminal=True, color_system="truecolor")
        record(given.data, Path(temporary), console)
    console.save_svg(str(given.output), title="python -m yolo_lightning monitor runs/demo")


def record(data: Path, place: Path, console: Console) -> None:
    """Run the training in the folder `place` and print both states to `console`."""
    words = [f"--{name}={value}" for name, value in OPTIONS.items()]
    command = [sys.executable, "-m", "yolo_lightning", "fit", "--config", "configs/demo.yaml", *words]
    folder = Path("runs/demo")
    repository = Path(__file__).resolve().parent.parent
    deadline = datetime.now().astimezone() + timedelta(hours=3)
    (place / "configs").symlink_to(repository / "configs")
    with subprocess.Popen(
        [*command, f"--data.root={data.resolve()}"],
        cwd=place,
        env=os.environ | ENVIRONMENT | {"PYTHONPATH": str(repository)},
    ) as supervisor:
        os.chdir(place)
        try:
            running = wait_for(folder, is_training)
            # The workers of the training are older than those of the validation.
            os.kill(min(worker.pid for worker in running.workers), signal.SIGSTOP)
            console.print(screen(wait_for(folder, is_stalled), deadline))
            step = (running.step or 0) + STEPS_AFTER
            console.print(screen(wait_for(folder, lambda state: has_recovered(state, step)), deadline))
        finally:
            os.chdir(repository)
            supervisor.send_signal(signal.SIGTERM)
            supervisor.wait()


def wait_for(folder: Path, condition: Callable[[RunState], bool]) -> RunState:
    """Read the state of the run until `condition` holds, and return it with sensor readings."""
    end_s = time.monotonic() + LIMIT_S
    while time.monotonic() < end_s:
        time.sleep(0.5)
        try:
            state = read_run(folder)
        except (ValueError, OSError):  # the folder contains no run yet
            continue
        if condition(state):
            return read_run(folder, read_machine(folder))
    raise SystemExit(f"the run in {folder} did not reach the expected state within {LIMIT_S:g} s")


def is_training(state: RunState) -> bool:
    """Return whether the training is in the middle of an epoch and has workers."""
    return state.phase in (Phase.FETCH, Phase.STEP) and (state.step or 0) >= STEPS_BEFORE and bool(state.workers)


def is_stalled(state: RunState) -> bool:
    """Return whether the run is stalled and the incident is recorded."""
    return state.judgement.verdict is RunVerdict.STALLED and bool(state.incidents)


def has_recovered(state: RunState, step: int) -> bool:
    """Return whether the run trains again after a restart, has reached `step` and has an ETA."""
    restarted = state.standing is not None and state.standing.restarts > 0
    is_running = state.judgement.verdict is RunVerdict.RUNNING and state.remaining.run_s is not None
    return is_running and restarted and (state.step or 0) >= step


if __name__ == "__main__":
    main()
