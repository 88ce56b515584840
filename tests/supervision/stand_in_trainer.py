"""A trainer without training: python stand_in_trainer.py RUN FAULT UNTIL [options...]

Does eight steps of a few milliseconds, writes a checkpoint after every second one, continues from the newest, and has
FAULT at step 5 as long as fewer than UNTIL attempts were made before. Every attempt adds a line to starts.jsonl.
"""

import atexit
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

from yolo_lightning.supervision import heartbeat
from yolo_lightning.supervision.heartbeat import Phase
from yolo_lightning.supervision.job import JOB_VARIABLE
from yolo_lightning.utils import activity
from yolo_lightning.utils.activity import Activity

STEPS, FAULT_AT = 8, 5
IDLE = "import time\nwhile True: time.sleep(1000)"
DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{IDLE}"


def sleep_for_ever() -> None:
    while True:
        time.sleep(1000)


def sleep_in_c() -> None:
    while True:
        ctypes.CDLL(None).sleep(1000)


def hold_the_lock() -> None:
    while True:
        ctypes.PyDLL(None).sleep(1000)


def compute_for_ever() -> None:
    while True:
        pass


def stop_alone() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def leave_children() -> None:
    """One in this session, one in its own whose parent dies; both ignore SIGTERM and hold the output open."""
    subprocess.Popen([sys.executable, "-c", DEAF])
    start = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {DEAF!r}], start_new_session=True)"
    subprocess.run([sys.executable, "-c", start], check=True)


def leave_children_and_hang() -> None:
    from multiprocessing import get_context

    lock = get_context("spawn").Lock()  # a semaphore in /dev/shm, and the resource tracker
    tracker = resource_tracker._resource_tracker._pid  # type: ignore[attr-defined]
    note("left", {"semaphore": lock._semlock.name, "tracker": tracker})  # type: ignore[attr-defined]
    leave_children()
    sleep_for_ever()


def leave_children_and_die() -> None:
    leave_children()
    os._exit(9)


def raise_value_error() -> None:
    raise ValueError("this is wrong and stays wrong")


def wait_for_worker() -> None:
    """As torch's loader does; the worker's function is named as the dataset's."""
    worker = (
        "import time\n"
        "def __getitem__(key, index):\n    while True: time.sleep(1000)\n"
        "def fetch(): __getitem__((0, 7), 7)\n"
        "def _worker_loop(): fetch()\n"
        "_worker_loop()"
    )
    subprocess.Popen([sys.executable, "-c", worker])
    heartbeat.enter(Phase.FETCH)
    _try_get_data()


def _try_get_data() -> None:
    sleep_for_ever()


def write_for_ever() -> None:
    heartbeat.enter(Phase.SAVE)
    fsync()


def save_slowly() -> None:
    """As on a disk whose fsync takes longer than the timeout, in every attempt."""
    heartbeat.enter(Phase.SAVE)
    time.sleep(6.0)


def wait_for_gpu() -> None:
    activity.enter(Activity.DEVICE_WAIT)
    sleep_for_ever()


def fsync() -> None:
    sleep_for_ever()


def be_slow() -> None:
    """Each phase may take its time; longer than `step` may."""
    for phase in (Phase.VALIDATE, Phase.METRICS, Phase.SAVE):
        heartbeat.enter(phase)
        time.sleep(0.9)


def ignore_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    note("ready", True)
    sleep_in_c()


def wait_for_sigterm() -> None:
    """As Lightning: saves, and ends with exit code 0."""

    def end(*arguments: Any) -> None:
        note("saved", True)
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    note("ready", True)
    for _ in range(2000):
        heartbeat.enter(Phase.STEP)
        time.sleep(0.02)


def save_slowly_on_sigterm() -> None:
    def end(*arguments: Any) -> None:
        time.sleep(1.0)
        note("saved", True)
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)
    note("ready", True)
    sleep_for_ever()


def hang_at_exit() -> None:
    atexit.register(sleep_for_ever)


def lose_record_and_hang() -> None:
    """The supervisor is blind; it still finds the stacks."""
    time.sleep(0.3)  # the supervisor sees the step
    Path(os.environ[heartbeat.HEARTBEAT_VARIABLE]).unlink()
    sleep_for_ever()


def truncate_record() -> None:
    """Replaces the record by a file that says nothing, and goes on beating into the old one."""
    path = Path(os.environ[heartbeat.HEARTBEAT_VARIABLE])
    path.unlink()
    path.write_bytes(b"nothing")
    for _ in range(75):
        heartbeat.enter(Phase.STEP)
        time.sleep(0.02)


def train_on() -> None:
    """Go on for a long time, with a checkpoint each second."""
    note("ready", True)
    for _ in range(100):
        for _ in range(50):
            heartbeat.enter(Phase.STEP)
            time.sleep(0.02)
        heartbeat.enter(Phase.SAVE)
        save(FAULT_AT + 1)


def print_much() -> None:
    """More than a pipe that nobody reads takes."""
    print("x" * 1_000_000, flush=True)


FAULTS: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "segfault": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit_0": lambda: sys.exit(0),
    "exit_2": lambda: sys.exit(2),
    "exit_74": lambda: sys.exit(74),
}
"""Faults besides the functions of this module."""


def note(name: str, content: Any) -> None:
    temporary = RUN / f"{name}.part"
    temporary.write_text(json.dumps(content))
    temporary.replace(RUN / f"{name}.json")


def first_step() -> int:
    return max((int(path.name[5:14]) for path in (RUN / "checkpoints").glob("step-*.ckpt")), default=0)


def save(steps: int) -> None:
    path = RUN / "checkpoints" / f"step-{steps:09d}.ckpt"
    path.parent.mkdir(exist_ok=True)
    path.write_text("weights")
    path.with_name(f"{path.name}.json").write_text(json.dumps({"steps": steps}))


def main() -> None:
    writer = heartbeat.open_from_environment()
    assert writer is not None
    starts = RUN / "starts.jsonl"
    attempt = len(starts.read_text().splitlines()) if starts.is_file() else 0
    begin = {"process": os.getpid(), "options": OPTIONS, "threads": os.environ.get("OMP_NUM_THREADS")}
    begin["knows the job"] = JOB_VARIABLE in os.environ
    with starts.open("a") as file:
        file.write(json.dumps(begin | {"first_step": first_step(), "temporary": os.environ["TMPDIR"]}) + "\n")
    print(f"attempt {attempt}", flush=True)
    faulty = attempt < UNTIL
    if FAULT == "hang_in_set_up" and faulty:
        heartbeat.enter(Phase.SETUP)
        sleep_for_ever()
    for step in range(first_step(), STEPS):
        writer.beat(Phase.FETCH, 0, step, step)
        writer.samples([f"frame-{step}"])
        writer.beat(Phase.STEP, 0, step, step)
        time.sleep(0.01)
        if step >= FAULT_AT and faulty and FAULT != "hang_in_set_up":
            faulty = False
            (FAULTS.get(FAULT) or globals()[FAULT])()
        if (step + 1) % 2 == 0:
            save(step + 1)
    note("finished", {})
    heartbeat.enter(Phase.EXIT)


if __name__ == "__main__":
    RUN, FAULT, UNTIL, OPTIONS = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4:]
    main()
