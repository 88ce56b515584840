"""Misbehaving programs under `supervise`: number of starts, end of the run, remaining processes."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path

import pytest

from tests.supervision.supervised import Supervised
from yolo_lightning.supervision.phase_timeouts import PhaseTimeouts
from yolo_lightning.supervision.processes import all_processes, environment_now
from yolo_lightning.supervision.run_lock import read_holder
from yolo_lightning.utils.process_identity import read_process

pytestmark = pytest.mark.whole_run

LIMIT_S = 40.0
STEP_S = 1.5
"""Phase timeout of a step."""

IMPORT_S = 8.0
"""Timeout of the start, and of a program without a heartbeat file."""

START = """
import os, sys
open("starts", "a").write("x")
START = len(open("starts").read())
import signal, subprocess, threading, time, traceback
from pathlib import Path
from yolo_lightning.supervision.heartbeat import heartbeat
HEARTBEAT = Path(os.environ["YOLO_LIGHTNING_HEARTBEAT_FILE"])
PYTHON = sys.executable
IDLE = "import time; time.sleep(1000)"

def work(first=0, steps=10):
    for step in range(first, first + steps):
        heartbeat("step", step)
        time.sleep(0.02)

def note(pid):
    open("pids", "a").write(f"{pid}\\n")

work()
if START > 1:
    work(10)
    sys.exit()
"""
"""Each program works for ten steps. From the second start on, it works on and ends with exit code 0."""

HANDLED = """
try:
    raise ValueError("a handled error")
except ValueError:
    traceback.print_exc()
"""
DAEMON = """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        note(os.getpid())
        os.execve(PYTHON, [PYTHON, "-c", IDLE], {})
    os._exit(0)
os.wait()
while not Path("pids").exists():
    time.sleep(0.01)
"""
CHAIN = """
if os.fork() == 0:
    chain = (
        "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); os.setsid()\\n"
        "end_s = time.monotonic() + 60\\n"
        "while time.monotonic() < end_s:\\n"
        "    if os.fork(): os._exit(0)\\n"
        "    open('chain', 'w').write(str(os.getpid()))\\n"
    )
    os.execve(PYTHON, [PYTHON, "-c", chain], {})
while not Path("chain").exists():
    heartbeat("step")
    time.sleep(0.01)
"""


@dataclass(frozen=True)
class Program:
    """A program, and what a supervisor must make of it."""

    code: str
    starts: int = 1
    exit_code: int = 0
    reports: tuple[str, ...] = ()  # words of the log
    silent: tuple[str, ...] = ()  # words that the log must not contain
    check: Callable[[Path], bool] = field(default=lambda folder: True)


def memory_stayed_small(folder: Path) -> bool:
    """Whether the supervisor has used less than 200 MB."""
    return int((folder / "peak").read_text()) < 200_000


def chain_has_ended(folder: Path) -> bool:
    before = (folder / "chain").read_text()
    time.sleep(0.3)
    return (folder / "chain").read_text() == before


STALLED, FAILED = ("no progress for",), ("a restart cannot correct this error",)

PROGRAMS = {
    # Ends.
    "handled error, work and output, then exit code 1": Program(
        f"{HANDLED}\nwork(10)\nprint('works on')\nsys.exit(1)", 2, silent=FAILED
    ),
    "handled error, silent work, then exit code 1": Program(f"{HANDLED}\nwork(10, 90)\nsys.exit(1)", 2, silent=FAILED),
    "error with notes and a chain": Program(
        "try:\n    {}['a']\nexcept KeyError as error:\n    raise TypeError('no\\n  such\\n  call') from error",
        2,
        reports=("error: in phase step, epoch 1, batch 0, step 9", "TypeError: no"),
    ),
    # Hangs.
    "daemon thread that prints while the program hangs": Program(
        "def talk():\n    while True: print('alive', flush=True); time.sleep(0.05)\n"
        "threading.Thread(target=talk, daemon=True).start(); time.sleep(1000)",
        2,
        reports=STALLED,
    ),
    "forked child that beats while the program hangs": Program(
        "if os.fork() == 0: work(10, 3000); os._exit(0)\ntime.sleep(1000)", 2, reports=STALLED
    ),
    # Processes.
    "double fork without the environment": Program(f"{DAEMON}\nos._exit(9)", 2),
    "chain of forks": Program(f"{CHAIN}\nos._exit(9)", 2, check=chain_has_ended),
    "exec": Program(
        "os.execv(PYTHON, [PYTHON, '-c', 'from yolo_lightning.supervision.heartbeat import heartbeat; heartbeat()'])"
    ),
    # Output and files.
    "closed output": Program("os.close(1); os.close(2); work(10); time.sleep(1000)", 2, reports=STALLED),
    "flood of output": Program(
        "line = b'x' * 99_999 + b'\\n'\nfor _ in range(2500): os.write(1, line); heartbeat()",
        check=lambda folder: memory_stayed_small(folder) and log_bytes(folder) < 110e6,
    ),
    "one line without end, not UTF-8": Program(
        "for _ in range(200): os.write(1, b'\\xff\\0\\x1b[2J' * 20_000); heartbeat()", check=memory_stayed_small
    ),
    "working folder deleted": Program(
        "os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone'); work(10); os._exit(9)", 2
    ),
    "heartbeat replaced by a FIFO": Program(
        "HEARTBEAT.unlink(); os.mkfifo(HEARTBEAT); time.sleep(1000)", 2, reports=("the heartbeat file cannot be read",)
    ),
    "heartbeat replaced by a link to /dev/zero": Program(
        "HEARTBEAT.unlink(); HEARTBEAT.symlink_to('/dev/zero'); time.sleep(1000)", 2, check=memory_stayed_small
    ),
    "heartbeat replaced by a folder of files": Program(
        "HEARTBEAT.unlink(); HEARTBEAT.mkdir(); (HEARTBEAT / 'file').write_text(''); time.sleep(1000)", 2
    ),
}


def log_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in (folder / "run").glob("run.log*"))


def start(folder: Path, code: str) -> subprocess.Popen[bytes]:
    """Start a supervisor of a program in `folder`."""
    (folder / "program.py").write_text(START + code)
    limits = PhaseTimeouts(**{field.name: STEP_S for field in fields(PhaseTimeouts)} | {"import_s": IMPORT_S})
    program = (sys.executable, "program.py")
    return Supervised(folder / "run", "", program=program, allowed=limits, factor=1.0, kill_wait_s=2.0).process


def end_of(process: subprocess.Popen[bytes], folder: Path) -> int:
    """Return the exit code of a supervisor; store its largest memory in kB."""
    peak, end_s = 0, time.monotonic() + LIMIT_S
    try:
        while process.poll() is None:
            assert time.monotonic() < end_s, (folder / "run" / "run.log").read_text()[-2000:]
            snapshot = read_process(process.pid)
            peak = max(peak, snapshot.memory_bytes >> 10 if snapshot else 0)
            time.sleep(0.02)
    finally:
        (folder / "peak").write_text(str(peak))
        if process.poll() is None:
            process.kill()
            process.wait()
    return process.returncode


def left(folder: Path) -> list[int]:
    """Return the living processes of a program: those that it has noted, and those that work in its folder."""
    noted = map(int, (folder / "pids").read_text().split()) if (folder / "pids").exists() else ()
    inside = [
        process.pid
        for process in all_processes()
        if not process.is_gone and f"PWD={folder}" in environment_now(process.pid)
    ]
    processes = {pid: read_process(pid) for pid in (*noted, *inside)}
    return [pid for pid, process in processes.items() if process is not None and not process.is_gone]


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str, tmp_path: Path) -> None:
    program = PROGRAMS[name]
    code = end_of(start(tmp_path, program.code), tmp_path)
    log = (tmp_path / "run" / "run.log").read_text(errors="replace")[-20_000:]
    try:
        assert code == program.exit_code, log
        assert len((tmp_path / "starts").read_text()) == program.starts, log
        assert [words for words in program.reports if words not in log] == [], log
        assert [words for words in program.silent if words in log] == [], log
        assert left(tmp_path) == []
        assert program.check(tmp_path)
    finally:
        for pid in left(tmp_path):
            os.kill(pid, signal.SIGKILL)


def test_supervisor_can_be_stopped_while_the_heartbeat_is_a_fifo(tmp_path: Path) -> None:
    code = "HEARTBEAT.unlink(); os.mkfifo(HEARTBEAT); open('ready', 'w'); time.sleep(1000)"
    process = start(tmp_path, code)
    while not (tmp_path / "ready").exists():
        assert process.poll() is None
        time.sleep(0.02)
    time.sleep(0.3)
    process.terminate()
    assert end_of(process, tmp_path) == 128 + signal.SIGTERM


@pytest.mark.parametrize("name", ["run.log", "supervisor.json", "supervision.json", "phase_timeouts.json"])
def test_fifo_in_the_run_folder_blocks_nothing(name: str, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    os.mkfifo(tmp_path / "run" / name)
    assert end_of(start(tmp_path, "time.sleep(1000)"), tmp_path) == 0
    assert len((tmp_path / "starts").read_text()) == 2


def test_run_folder_whose_name_is_not_utf_8(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    assert end_of(start(folder, "time.sleep(1000)"), folder) == 0
    assert "no progress for" in (folder / "run" / "run.log").read_text()


def test_next_supervisor_removes_what_a_killed_one_has_left(tmp_path: Path) -> None:
    process = start(tmp_path, "open('ready', 'w'); work(10, 2000)")
    while not (tmp_path / "ready").exists():
        assert process.poll() is None
        time.sleep(0.02)
    holder = read_holder(tmp_path / "run" / "run.lock")
    assert holder is not None
    process.kill()
    process.wait()
    paths = [path for place in ("/dev/shm", tempfile.gettempdir()) for path in Path(place).glob(f"{holder.marker}*")]
    assert len(paths) == 2, "heartbeat and temporary folder"
    (tmp_path / "other").mkdir()
    assert end_of(start(tmp_path / "other", ""), tmp_path / "other") == 0
    assert [path for path in paths if path.exists()] == []
