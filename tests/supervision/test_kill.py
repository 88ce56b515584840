import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from yolo_lightning.supervision import kill
from yolo_lightning.supervision.kill import _wait_until_gone, _where_it_is, kill_tree
from yolo_lightning.supervision.processes import marked, remaining_thread, tree
from yolo_lightning.utils.process_identity import Process, is_same, read_process

MARKER = f"YOLO_LIGHTNING_TEST_MARKER=kill-{os.getpid()}"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(1000)"
TREE = f"""
import os, signal, subprocess, sys, time
from multiprocessing import get_context
deaf = {DEAF!r}
locks = [get_context("spawn").Lock() for _ in range(3)]
child = subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE)
start = "import subprocess as s, sys; print(s.Popen([sys.executable, '-c', sys.argv[1]], start_new_session=True).pid)"
subprocess.run([sys.executable, "-c", start, deaf], stdout=open(sys.argv[1], "w"))
child.stdout.readline()
while len(open(sys.argv[1]).read().split()) < 2:  # the number of the process, and "up"
    time.sleep(0.01)
print(child.pid, ",".join(lock._semlock.name for lock in locks), flush=True)
if sys.argv[2] == "stopped":
    os.kill(os.getpid(), signal.SIGSTOP)
if sys.argv[2] == "dead":
    os._exit(1)
time.sleep(1000)
"""


def start(*words: str) -> subprocess.Popen[str]:
    name, _, value = MARKER.partition("=")
    command = [sys.executable, "-c", *words]
    environment = os.environ | {name: value}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True)


@pytest.fixture(autouse=True)
def clear_up() -> Iterator[None]:
    yield
    for process in marked(MARKER):  # this test's own
        os.kill(process.pid, 9)


@pytest.mark.parametrize("state", ["alive", "stopped", "dead"])
def test_whole_tree_ends_and_leaves_no_semaphore(state: str, tmp_path: Path) -> None:
    trainer = start(TREE, str(tmp_path / "orphan"), state)
    assert trainer.stdout is not None
    child, names = trainer.stdout.readline().split()
    semaphores = [Path("/dev/shm", f"sem.{name.lstrip('/')}") for name in names.split(",")]
    assert len(semaphores) == 3
    orphan = next(int(word) for word in (tmp_path / "orphan").read_text().split() if word.isdigit())
    if state == "dead":
        trainer.wait()  # its resource tracker unlinks the semaphores by itself
    else:
        assert all(path.exists() for path in semaphores)
    killed = kill_tree(trainer.pid, MARKER, wait_s=10)
    assert {int(child), orphan} <= set(killed.processes)
    assert not killed.survivors
    assert [pid for pid in (int(child), orphan) if (process := read_process(pid)) and not process.is_gone] == []
    assert [path for path in semaphores if path.exists()] == []
    assert marked(MARKER) == tree(trainer.pid) == []
    trainer.wait()


def test_neighbours_live_on() -> None:
    neighbour = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    trainer = start("import time; print('up', flush=True); time.sleep(1000)")
    assert trainer.stdout is not None
    trainer.stdout.readline()
    try:
        assert kill_tree(trainer.pid, MARKER, wait_s=10).processes == (trainer.pid,)
        assert neighbour.poll() is None
    finally:
        neighbour.kill()
        neighbour.wait()
        trainer.wait()


def test_fault_24_process_that_outlives_sigkill_needs_a_reboot(monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = Process(4_000_000, "python", "D", 1, 4_000_000, 7)
    monkeypatch.setattr(kill, "_snapshot", lambda leader, marker: [stuck])
    monkeypatch.setattr(kill, "is_same", lambda process: True)
    monkeypatch.setattr(kill, "wait_channel", lambda pid: "amdgpu_fence_wait")
    began_s = time.monotonic()
    killed = kill_tree(4_000_000, MARKER, wait_s=0.2)
    assert killed.survivors == {stuck: "python, state D, waits in amdgpu_fence_wait"}
    assert time.monotonic() - began_s < 10


def test_process_that_took_over_an_id_is_not_killed() -> None:
    neighbour = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    process = read_process(neighbour.pid)
    assert process is not None
    try:
        kill.end([Process(process.pid, process.name, "S", 1, process.session, process.started_ticks - 1)])
        time.sleep(0.1)
        assert neighbour.poll() is None
        kill.end([process])
        assert neighbour.wait(20) == -9
    finally:
        neighbour.kill()
        neighbour.wait()


LEADER_HAS_EXITED = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(100,)).start()
print("ready", flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""


def test_process_whose_main_thread_has_exited_is_not_gone() -> None:
    """After SIGKILL while a thread waits for a disk, the process keeps memory and files until the disk answers."""
    process = subprocess.Popen([sys.executable, "-c", LEADER_HAS_EXITED], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    end_s = time.monotonic() + 20
    while time.monotonic() < end_s:  # on a busy machine the remaining thread is in state R before it sleeps
        leader = read_process(process.pid)
        thread = remaining_thread(leader) if leader is not None and leader.state == "Z" else None
        if thread is not None and thread.state == "S":
            break
        time.sleep(0.01)
    assert leader is not None
    assert (leader.state, leader.is_gone, is_same(leader)) == ("Z", False, True)
    assert re.fullmatch(r"python\S*, state S, waits in \S.*", _where_it_is(leader))
    kill.end([leader])
    assert _wait_until_gone([leader], 10.0) == []
    process.communicate()
