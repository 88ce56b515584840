"""Collection of evidence about a stalled trainer, for the classification and for a person.

Every part runs in its own child process with a time limit, so that a read that blocks loses only this part.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from yolo_lightning.supervision import processes
from yolo_lightning.supervision.classify import (
    Diagnosis,
    Evidence,
    Frame,
    ProcessEvidence,
    StallClass,
    describe,
    parse_faulthandler,
    parse_py_spy,
)
from yolo_lightning.supervision.heartbeat import Heartbeat
from yolo_lightning.supervision.helper_process import Helper, bounded
from yolo_lightning.supervision.next_action import cause_of_stall
from yolo_lightning.utils.addresses import redacted
from yolo_lightning.utils.process_identity import PROC, read_process
from yolo_lightning.utils.regular_files import read_regular
from yolo_lightning.utils.run_files import STACKS_FILE, stacks_path
from yolo_lightning.utils.sensors import evicted_ms

KERNEL_LINES = re.compile(
    "amdgpu|kfd|nvrm|xid|workqueue|hung_task|blocked for more than|out of memory|oom|segfault", re.I
)
SYSTEM_FILES = ("meminfo", "pressure/memory", "pressure/io", "pressure/cpu", "loadavg", "vmstat")
PROCESSES_LOOKED_AT = 24
LINES_KEPT = 50
MOST_STACKS_BYTES = 16 << 20

STACKS_S = 1.0  # from the signal until the trainer has written its stacks


@dataclass(frozen=True, slots=True)
class Request:
    """Trainer to examine."""

    folder: Path  # of the incident
    disk: Helper  # stores the files, because the disk of the run folder can hang
    trainer: int  # process id
    heartbeat_path: Path
    heartbeat: Heartbeat  # the last one; `NOT_STARTED` before the first one
    log_lines: tuple[str, ...]  # last lines of the trainer's output
    part_timeout_s: float  # time limit of each part

    @property
    def cause(self) -> StallClass:
        """Cause of the stall, by the phase and the activity of the last heartbeat."""
        return cause_of_stall(self.heartbeat)

    def keep(self, name: str, text: str) -> None:
        """Store a file of the incident. Command lines, local variables and the log can contain addresses."""
        self.disk.post(keep, self.folder / name, redacted(text))


def keep(path: Path, text: str) -> None:
    """Write a file of the incident; a failure is ignored, so that the other evidence is still collected."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, errors="backslashreplace")


def collect(request: Request) -> Evidence:
    """Collect and store all evidence within a few seconds, or at most a few time limits."""
    limit_s = request.part_timeout_s
    trainer_id = request.trainer
    evicted_before = bounded(lambda: evicted_ms(trainer_id), limit_s)
    request.keep("log.txt", "\n".join(request.log_lines) + "\n")
    request.keep("system.txt", bounded(_system_state, limit_s) or "")
    by_faulthandler = stacks_by_signal(request)
    table = processes.all_processes()
    descendants = [process.pid for process in processes.tree(trainer_id, table) if process.pid != trainer_id]
    zombies = [process.pid for process in table if process.parent == trainer_id and process.is_gone]
    trainer, *children = (_look_at(pid, request) for pid in [trainer_id, *descendants, *zombies][:PROCESSES_LOOKED_AT])
    evicted_after = bounded(lambda: evicted_ms(trainer_id), limit_s)
    lines = bounded(kernel_lines, limit_s) or ()
    request.keep("kernel.txt", "\n".join(lines) + "\n")
    return Evidence(
        trainer=replace(trainer, stack=trainer.stack or by_faulthandler),
        children=tuple(children),
        evicted_ms=(evicted_after or 0) - (evicted_before or 0),
        kernel_lines=lines,
        log_lines=request.log_lines,
    )


def examine(request: Request) -> Diagnosis:
    """Collect and store all evidence about a stall; return what it says."""
    return describe(collect(request), request.cause)


def _system_state() -> str:
    """Return memory, pressure and shared memory as text."""
    parts = [f"== /proc/{name}\n{_content(PROC / name)}\n" for name in SYSTEM_FILES]
    usage = shutil.disk_usage("/dev/shm")
    parts.append(f"== /dev/shm: {usage.free:,} of {usage.total:,} bytes free\n")
    parts.append("== /dev/shm\n" + "\n".join(sorted(os.listdir("/dev/shm"))) + "\n")
    return "".join(parts)


def _content(path: Path) -> str:
    """Return the content of a file of /proc, or why the file cannot be read."""
    try:
        return path.read_text(errors="replace").rstrip()
    except OSError as error:
        return str(error.strerror)


def kernel_lines() -> tuple[str, ...]:
    """Return the last relevant lines of the kernel log; an empty tuple if the log is not readable."""
    for command in (("dmesg", "--ctime"), ("journalctl", "--dmesg", "--no-pager", "--lines=2000", "--quiet")):
        if shutil.which(command[0]) is None:
            continue
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode == 0 and done.stdout:
            return tuple(line for line in done.stdout.splitlines() if KERNEL_LINES.search(line))[-LINES_KEPT:]
    return ()


def stacks_by_signal(request: Request) -> tuple[Frame, ...]:
    """Return the trainer's stack written on a signal; empty if the trainer has no handler for the signal."""
    number = request.heartbeat.stacks_signal
    # Lightning removes the handler after a fit.
    if request.heartbeat.process != request.trainer or not processes.catches(request.trainer, number):
        return ()

    def ask() -> str:
        path = stacks_path(request.heartbeat_path)
        before = path.stat().st_size
        os.kill(request.trainer, number)
        time.sleep(STACKS_S)
        return read_regular(path, MOST_STACKS_BYTES)[before:].decode(errors="replace")

    stacks = bounded(ask, request.part_timeout_s) or ""
    if stacks:
        request.keep(STACKS_FILE, stacks)
    return parse_faulthandler(stacks)


def _look_at(pid: int, request: Request) -> ProcessEvidence:
    """Return the state and the stack of one process."""
    limit_s = request.part_timeout_s
    request.keep(f"process-{pid}.txt", bounded(lambda: _kernel_view(pid), limit_s) or "")
    # Without workers, the trainer loads the samples: a variable on its stack names the sample at which it hangs.
    options = ["--locals"]
    if pid == request.trainer and request.cause is not StallClass.LOADER_STALL:
        options = []
    stack = bounded(lambda: _py_spy(pid, options), limit_s) or ""
    request.keep(f"py-spy-{pid}.txt", stack)
    process = read_process(pid)
    return ProcessEvidence(
        pid=pid,
        command=bounded(lambda: processes.command_line_now(pid), limit_s) or "",
        state=process.state if process else "X",
        wait_channel=processes.wait_channel(pid),
        stack=parse_py_spy(stack),
    )


def _kernel_view(pid: int) -> str:
    """Return open files and the content of /proc for each thread. The kernel stack is readable only for root."""
    folder = PROC / str(pid)
    parts = []
    try:
        threads = sorted(os.listdir(folder / "task"), key=int)
    except OSError as error:
        return f"process {pid}: {error.strerror}\n"
    for thread in threads:
        for name in ("stat", "status", "wchan", "syscall", "stack"):
            parts.append(f"== thread {thread} {name}\n{_content(folder / 'task' / thread / name)}\n")
    with suppress(OSError):  # no permission, or closed meanwhile
        for file in (folder / "fd").iterdir():
            parts.append(f"== open file {file.name}: {os.readlink(file)}\n")
    return "".join(parts)


def _py_spy(pid: int, options: Sequence[str]) -> str:
    """Return the Python stacks of a process; empty if py-spy is not installed or not permitted.

    Without `--nonblocking`, py-spy waits forever for a process that hangs in the kernel.
    """
    folders = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    program = shutil.which("py-spy", path=folders)
    if program is None:
        return ""
    command = [program, "dump", "--nonblocking", *options, "--pid", str(pid)]
    return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False).stdout
