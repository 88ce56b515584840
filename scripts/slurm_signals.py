"""Requeue a job of two SLURM tasks again and again, with signals that reach the tasks at different times.

    python scripts/slurm_signals.py --work /tmp/slurm-signals

Two tasks run on the CPU of this machine with the variables of srun and a stand-in for `scontrol`. In each start of the
job, SIGUSR1 reaches one task after a few steps, and the other task 0 to 2 s later. Then the job starts again, as after
`scontrol requeue`. The last start trains to the end. The script prints a line for each start and a summary.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from hosts.record import are_equal, is_each_image_once, read_weights  # noqa: E402
from hosts.slurm import job_variables, task_variables, write_scontrol  # noqa: E402
from synthetic import draw_dataset  # noqa: E402

from yolo_lightning.supervision.heartbeat import Heartbeat, read_heartbeat  # noqa: E402

FRAMES = 240
EPOCHS = 5
STEPS_BEFORE_SIGNAL = 3
LONGEST_DELAY_S = 2.0
LONGEST_START_S = 300.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for data and run")
    parser.add_argument("--times", type=int, default=20, help="number of requeues")
    options = parser.parse_args()
    work: Path = options.work.resolve()
    data = draw_dataset(work / "data", train_frames=FRAMES, valid_frames=8, test_frames=4, width=96, height=64)
    folder = work / "job"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    write_scontrol(folder)
    for number in range(options.times):
        delay_s = LONGEST_DELAY_S * number / max(1, options.times - 1)
        tasks = start(folder, data, number)
        await_steps(folder, tasks)
        first = number % 2
        tasks[first].send_signal(signal.SIGUSR1)
        time.sleep(delay_s)
        tasks[1 - first].send_signal(signal.SIGUSR1)
        codes = [task.wait(LONGEST_START_S) for task in tasks]
        print(f"start {number + 1}: task {first} first, {delay_s:.1f} s apart: exit codes {codes}", flush=True)
    codes = [task.wait(LONGEST_START_S) for task in start(folder, data, options.times)]
    print(f"last start: exit codes {codes}")
    print(summary(folder))


def start(folder: Path, data: Path, restarts: int) -> list[subprocess.Popen[bytes]]:
    """Start both tasks of the job."""
    words = [
        *(sys.executable, "-m", "yolo_lightning", "fit", "--trainer.strategy", "ddp"),
        *("--trainer.accelerator", "cpu", "--trainer.devices", "2", "--trainer.default_root_dir", "run"),
        *("--trainer.max_epochs", str(EPOCHS), "--trainer.num_sanity_val_steps", "0"),
        *("--data.root", str(data), "--data.storage.index_root", str(folder.parent / "index")),
        *("--data.loader.num_workers", "0", "--data.batch_size", "2", "--data.image_size", "64"),
        "--trainer.callbacks+=hosts.record.Recorder",
    ]
    settings = job_variables(folder) | {
        "SLURM_RESTART_COUNT": str(restarts),
        "RECORD": str(folder),
        "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'scripts'}",
        "OMP_NUM_THREADS": "1",
    }
    with (folder / "log").open("ab") as log:
        return [
            subprocess.Popen(
                words,
                cwd=folder,
                env=os.environ | settings | task_variables(task),
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            for task in range(2)
        ]


def await_steps(folder: Path, tasks: list[subprocess.Popen[bytes]]) -> None:
    """Wait until the first task has trained some steps."""
    first_step: int | None = None
    until_s = time.monotonic() + LONGEST_START_S
    while time.monotonic() < until_s and all(task.poll() is None for task in tasks):
        heartbeat = read_heartbeat(folder / "run/heartbeat", tasks[0].pid)
        if isinstance(heartbeat, Heartbeat) and heartbeat.step:
            first_step = heartbeat.step if first_step is None else first_step
            if heartbeat.step >= first_step + STEPS_BEFORE_SIGNAL:
                return
        time.sleep(0.01)
    raise SystemExit(f"the job has not trained: see {folder / 'log'}")


def summary(folder: Path) -> str:
    """Return the number of requeues, the run folders, and whether weights and images are right."""
    requeues = len((folder / "requeued").read_text().splitlines())
    first, second = read_weights(folder)
    is_equal = are_equal(first, second)
    is_complete = is_each_image_once(folder, EPOCHS, FRAMES)
    return (
        f"{requeues} requeues, run folders {sorted(path.name for path in folder.glob('run*'))}, weights of the tasks "
        f"{'equal' if is_equal else 'different'}, each image {'once' if is_complete else 'not once'} per epoch"
    )


if __name__ == "__main__":
    main()
