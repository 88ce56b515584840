"""A run folder on a disk that does not respond: an ext4 file system on a loop device, frozen by fsfreeze."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.supervision.endpoint import Endpoint
from tests.supervision.supervised import Supervised, floors
from yolo_lightning.supervision.processes import all_processes
from yolo_lightning.utils.exit_codes import ExitCode
from yolo_lightning.utils.process_identity import read_process

pytestmark = [pytest.mark.whole_run, pytest.mark.timeout(120)]
THAWED_AT_THE_LATEST_S = 60
TOOLS = ("mkfs.ext4", "fsfreeze", "mount", "umount")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    if os.getuid() != 0 or not all(map(shutil.which, TOOLS)):
        pytest.skip(f"needs root, {', '.join(TOOLS)}")
    image, folder = tmp_path / "disk.img", tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["truncate", "-s", "64M", image], check=True)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    if subprocess.run(["mount", "-o", "loop", image, folder], check=False, capture_output=True).returncode:
        pytest.skip("needs loop devices")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture
def start(disk: Path) -> Iterator[Callable[..., Supervised]]:
    """Starts a supervisor that trains for long, and waits until a checkpoint was saved."""
    started: list[Supervised] = []

    def start(**options: Any) -> Supervised:
        supervised = Supervised(disk / "run", "train_on", kill_wait_s=0.5, **options)
        started.append(supervised)
        supervised.wait_for("checkpoints/step-000000006.ckpt.json")
        return supervised

    yield start
    for supervisor in started:
        supervisor.end()


@contextmanager
def frozen(folder: Path) -> Iterator[None]:
    """Thawed at the end of the block, or by a process of its own if this one is killed."""
    code = f"sleep {THAWED_AT_THE_LATEST_S}; fsfreeze -u {folder}"
    guard = subprocess.Popen(["sh", "-c", code], stderr=subprocess.DEVNULL, start_new_session=True)
    subprocess.run(["fsfreeze", "-f", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["fsfreeze", "-u", folder], check=False)
        os.killpg(guard.pid, 9)
        guard.wait()


def state(pid: int) -> str:
    process = read_process(pid)
    return process.state if process else "gone"


def children(pid: int) -> list[str]:
    return [f"{process.pid} {process.state}" for process in all_processes() if process.parent == pid]


def test_stall_is_told_while_the_disk_hangs_and_the_run_goes_on_after_it(
    disk: Path, start: Callable[..., Supervised]
) -> None:
    with Endpoint() as endpoint:
        short = floors(step_s=1.0, save_s=1.0)
        supervised = start(allowed=short, part_timeout_s=1.0, attempts=1, notify={"webhook": endpoint.address})
        trainer = supervised.starts()[0]["process"]
        most_children, blocked, longest_blocked = 0, 0, 0
        with frozen(disk):
            end_s = time.monotonic() + 20.0
            while time.monotonic() < end_s:
                blocked = blocked + 1 if state(supervised.process.pid) == "D" else 0
                longest_blocked = max(longest_blocked, blocked)
                most_children = max(most_children, len(children(supervised.process.pid)))
                time.sleep(0.05)
            told = list(endpoint.posts)
            child_processes = children(supervised.process.pid)
            assert state(trainer) == "D", "the fault did not happen"
            assert longest_blocked < 10, (child_processes, told)  # less than half a second
            assert most_children <= 5, child_processes  # the trainer, three helpers, and a look at a process
            assert [post["title"].rpartition(": ")[2] for post in told] == ["started", "stalled"]
            assert "storage stall" in told[1]["text"]
            assert f"process {trainer}" in told[1]["text"]
        assert supervised.wait() == ExitCode.FINISHED, supervised.log()
        assert endpoint.events()[2:] == ["recovered", "finished"]
    (incident,) = supervised.incidents()
    assert incident["class"] == "storage stall"
    assert f"process {trainer}" in incident["sentence"]
    assert [start["first_step"] for start in supervised.starts()] == [0, 6]
    assert supervised.state()["attempts"] == 0
    assert supervised.left() == []


def test_supervisor_ends_on_a_signal_while_the_disk_hangs(disk: Path, start: Callable[..., Supervised]) -> None:
    with Endpoint() as endpoint:
        supervised = start(notify={"webhook": endpoint.address})
        with frozen(disk):
            time.sleep(2.0)
            supervised.process.terminate()
            assert supervised.process.wait(40) == 128 + signal.SIGTERM
            assert endpoint.events() == ["started", "interrupted"]
    end_s = time.monotonic() + 20
    while supervised.left() and time.monotonic() < end_s:
        time.sleep(0.05)
    assert supervised.left() == []
