"""Train with a deadline while the machine slows down, the trainer is paused or killed; print when each run ended."""

import argparse
import csv
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from common import markdown_table

CONFIG = Path(__file__).resolve().parent.parent / "configs" / "demo.yaml"
COLUMNS = ("case", "limit s", "training s", "share", "early s", "start s", "steps", "last lr / lr0", "lrf", "exit code")
PAUSE_SHARE = 0.08


def burn() -> None:
    """Compete for a processor core."""
    while True:
        pass


class Disturbance:
    """A run, the time limit of which is known, and the processes that compete with it."""

    def __init__(self, run: Path, limit_s: float) -> None:
        self.run, self.limit_s = run, limit_s
        self.burning: list[multiprocessing.Process] = []

    def signal_trainer(self, number: int) -> None:
        with suppress(OSError, ValueError):
            os.kill(json.loads((self.run / "status.json").read_text())["process"], number)

    def wait_for_first_step(self) -> None:
        """Return when the training has made its first steps. This is the time of a restart, too."""
        path = self.run / "status.json"
        while not path.exists() or not json.loads(path.read_text())["step"]:
            time.sleep(0.2)

    def kill(self) -> None:
        self.signal_trainer(signal.SIGKILL)

    def pause(self) -> None:
        self.signal_trainer(signal.SIGSTOP)
        time.sleep(PAUSE_SHARE * self.limit_s)
        self.signal_trainer(signal.SIGCONT)

    def slow_down(self) -> None:
        self.burning = [multiprocessing.Process(target=burn, daemon=True) for _ in range(os.cpu_count() or 1)]
        for one in self.burning:
            one.start()

    def speed_up(self) -> None:
        for one in self.burning:
            one.kill()


CASES: dict[str, dict[float, Callable[[Disturbance], None]]] = {
    "undisturbed": {},
    "killed twice": {0.4: Disturbance.kill, 0.8: Disturbance.kill},
    "paused": {0.5: Disturbance.pause},
    "slower from 40 %": {0.4: Disturbance.slow_down},
    "faster from 50 %": {0.0: Disturbance.slow_down, 0.5: Disturbance.speed_up},
}
"""Disturbances by case and share of the time limit."""


def row(case: str, folder: Path, minutes: float) -> tuple[str, ...]:
    """Train once and return the row of the table."""
    run, limit_s = folder / case.replace(" %", "").replace(" ", "-"), 60 * minutes
    words = ["fit", "--config", str(CONFIG), "--data.root", str(folder / "data"), f"--trainer.default_root_dir={run}"]
    words += [f"--max_hours={minutes / 60}", "--supervision.enabled=true", "--data.loader.num_workers=0"]
    began_s, disturbance = time.time(), Disturbance(run, limit_s)
    process = subprocess.Popen([sys.executable, "-m", "yolo_lightning", *words])
    disturbance.wait_for_first_step()
    start_s = time.time() - began_s
    for share, disturb in CASES[case].items():
        time.sleep(max(0.0, began_s + share * limit_s - time.time()))
        disturb(disturbance)
    code = process.wait()
    disturbance.speed_up()
    finished = json.loads((run / "finished.json").read_text())
    taken_s = datetime.fromisoformat(finished["time"]).timestamp() - began_s
    with (run / "metrics.csv").open() as file:
        rates = [float(one["lr/weight"]) for one in csv.DictReader(file) if one.get("lr/weight")]
    times = f"{limit_s:.0f}", f"{taken_s:.0f}", f"{taken_s / limit_s:.1%}", f"{limit_s - taken_s:.0f}", f"{start_s:.0f}"
    return case, *times, str(finished["steps"]), f"{rates[-1] / 0.01:.4f}", "0.01", str(code)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="for the drawn dataset and the runs")
    parser.add_argument("--minutes", type=float, default=20.0, help="time limit of a run")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    options = parser.parse_args()
    from yolo_lightning.data.synthetic import draw_dataset

    draw_dataset(options.folder / "data")
    rows = [row(case, options.folder, options.minutes) for case in options.cases]
    print(markdown_table(COLUMNS, rows))


if __name__ == "__main__":
    main()
