"""Process table of Linux, read from /proc.

Reads of `stat`, `status` and `wchan` do not block. Reads of `cmdline`, `environ` and `maps` need a lock of the process,
which a process that hangs in the kernel can hold forever: these reads run in a child process (`bounded`).
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from yolo_lightning.supervision.helper_process import bounded

PROC = Path("/proc")
LOOK_TIMEOUT_S = 2.0
GONE = frozenset("ZXx")
"""States of a process that has ended and whose exit code has not been read."""

STOPPED = frozenset("Tt")
RESOURCE_TRACKER = "multiprocessing.resource_tracker"
WORKER_NAME = "pt_data_worker"
"""Process name of torch's DataLoader workers."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process or a thread in the process table."""

    pid: int
    name: str
    state: str  # R running, S sleeping, D waiting in the kernel, T stopped, t traced, Z zombie
    parent: int = 0
    session: int = 0
    started_ticks: int = 0  # start time in clock ticks since boot; identifies a process together with `pid`
    threads: int = 1  # that have not ended, the main thread included
    memory_bytes: int = 0  # resident; shared memory counts in every process that uses it

    @property
    def is_gone(self) -> bool:
        """Whether the process has ended, even if its parent has not read the exit code.

        After SIGKILL the main thread can be a zombie while another thread still waits in the kernel, for example for a
        disk. The process then keeps its memory, files and GPU.
        """
        return self.state in GONE and self.threads <= 1


def read_process(pid: int) -> Process | None:
    """Return a process, or None if it does not exist."""
    try:
        head, _, rest = (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")
        fields = rest.split()  # fields[0] is field 3 of proc(5), the state
        return Process(
            pid=pid,
            name=head.partition("(")[2],
            state=fields[0],
            parent=int(fields[1]),
            session=int(fields[3]),
            started_ticks=int(fields[19]),
            threads=int(fields[17]),
            memory_bytes=int(fields[21]) * os.sysconf("SC_PAGESIZE"),
        )
    except (OSError, ValueError, IndexError):
        return None


def started_ticks(pid: int) -> int:
    """Return the start time of a process in clock ticks since boot; 0 if unknown."""
    process = read_process(pid)
    return 0 if process is None else process.started_ticks


def all_processes() -> list[Process]:
    found = (read_process(int(entry.name)) for entry in PROC.iterdir() if entry.name.isdigit())
    return [process for process in found if process is not None]


def tree(leader: int, processes: Iterable[Process] | None = None) -> list[Process]:
    """Return the living processes among `leader`, its descendants and its session.

    A child of a dead parent is no descendant and is found by the session.
    """
    table = list(all_processes() if processes is None else processes)
    members = {process.pid for process in table if process.pid == leader or process.session == leader}
    while below := {process.pid for process in table if process.parent in members} - members:
        members |= below
    return [process for process in table if process.pid in members and not process.is_gone]


def loader_workers(trainer: int) -> list[Process]:
    """Return the DataLoader workers among the child processes of a trainer, zombies included.

    Workers are recognised by process name, which can be read without blocking.
    """
    return [process for process in all_processes() if process.parent == trainer and process.name == WORKER_NAME]


def is_same(process: Process) -> bool:
    """Return whether this process still lives; another process with the same id does not count."""
    now = read_process(process.pid)
    return now is not None and not now.is_gone and now.started_ticks == process.started_ticks


def is_resource_tracker(pid: int) -> bool:
    """Return whether a process is multiprocessing's resource tracker, which unlinks semaphores of ended processes."""
    return RESOURCE_TRACKER in (bounded(lambda: command_line_now(pid), LOOK_TIMEOUT_S) or "")


def command_line_now(pid: int) -> str:
    """Return the command line of a process; can block forever."""
    return (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()


def environment_now(pid: int) -> list[str]:
    """Return the environment of a process at its start as `NAME=value`; can block forever."""
    try:
        return (PROC / str(pid) / "environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def marked(marker: str) -> list[Process]:
    """Return the living processes with `marker` (`NAME=value`) in their environment, except this process."""
    ids = [process.pid for process in all_processes() if process.pid != os.getpid()]
    pids = bounded(lambda: [pid for pid in ids if marker in environment_now(pid)], LOOK_TIMEOUT_S)
    if pids is None:  # a read has blocked: read each process in its own child
        pids = [pid for pid in ids if bounded(lambda pid=pid: marker in environment_now(pid), 0.2)]  # type: ignore[misc]
    found = (read_process(pid) for pid in pids)
    return [process for process in found if process is not None and not process.is_gone]


def tracer(pid: int) -> int:
    """Return the id of the debugger that traces a process; 0 for none."""
    return int(status_field(pid, "TracerPid") or 0)


def catches(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal. Without a handler, most signals end a process."""
    return bool(int(status_field(pid, "SigCgt") or "0", 16) >> (number - 1) & 1)


def status_field(pid: int, name: str) -> str:
    """Return the first word of a field of `/proc/<pid>/status`; empty if it cannot be read."""
    try:
        lines = (PROC / str(pid) / "status").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.split()[1] for line in lines if line.startswith(f"{name}:")), "")


def wait_channel(pid: int) -> str:
    """Return the kernel function in which a process or a thread waits; empty if unknown."""
    try:
        return (PROC / str(pid) / "wchan").read_text().strip().removeprefix("0")
    except OSError:
        return ""


def remaining_thread(process: Process) -> Process | None:
    """Return a thread that has not ended after the main thread, preferably one that waits in the kernel (D)."""
    threads = (read_process(int(folder.name)) for folder in (PROC / str(process.pid) / "task").glob("*"))
    alive = [thread for thread in threads if thread is not None and thread.state not in GONE]
    return min(alive, key=lambda thread: thread.state != "D", default=None)
