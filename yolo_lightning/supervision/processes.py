"""Which processes there are and what state they are in, from /proc.

`stat`, `status` and `wchan` never wait; `cmdline`, `environ` and `maps` need a lock of the process they describe, which
one that hangs in the kernel may hold for ever: those are read in `bounded` work only.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from yolo_lightning.supervision.bounded import bounded

PROC = Path("/proc")
LOOK_TIMEOUT_S = 2.0
GONE = frozenset("ZXx")
STOPPED = frozenset("Tt")
RESOURCE_TRACKER = "multiprocessing.resource_tracker"


@dataclass(frozen=True, slots=True)
class Process:
    """One line of the process table.

    Attributes:
        pid: Its id.
        name: As the kernel knows it.
        state: R running, S sleeping, D in the kernel, T stopped, t traced, Z zombie.
        parent: Id of its parent.
        session: Id of its session.
        started_ticks: Clock ticks since boot; with the id this names a process for good.
        threads: Number of threads that have not ended, the main thread included.
    """

    pid: int
    name: str
    state: str
    parent: int
    session: int
    started_ticks: int
    threads: int = 1

    @property
    def is_gone(self) -> bool:
        """Whether the process has ended, even if its parent has not read the exit code.

        After SIGKILL the main thread is a zombie while another thread still waits in the kernel, for a disk for
        instance. The process then keeps its memory, its files and its GPU.
        """
        return self.state in GONE and self.threads <= 1


def read_process(pid: int) -> Process | None:
    """The process, or None if there is none."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
        head, _, rest = text.rpartition(")")
        parts = rest.split()
        return Process(
            pid=pid,
            name=head.partition("(")[2],
            state=parts[0],
            parent=int(parts[1]),
            session=int(parts[3]),
            started_ticks=int(parts[19]),
            threads=int(parts[17]),
        )
    except (OSError, ValueError, IndexError):
        return None


def all_processes() -> list[Process]:
    """Every process that can be seen."""
    found = (read_process(int(entry.name)) for entry in PROC.iterdir() if entry.name.isdigit())
    return [process for process in found if process is not None]


def tree(leader: int, processes: Iterable[Process] | None = None) -> list[Process]:
    """`leader`, all below it and all of its session that live; the child of a dead parent is found by the session."""
    table = list(all_processes() if processes is None else processes)
    members = {process.pid for process in table if process.pid == leader or process.session == leader}
    grown = True
    while grown:
        below = {process.pid for process in table if process.parent in members} - members
        members |= below
        grown = bool(below)
    return [process for process in table if process.pid in members and not process.is_gone]


def is_same(process: Process) -> bool:
    """Whether this very process still lives."""
    now = read_process(process.pid)
    return now is not None and not now.is_gone and now.started_ticks == process.started_ticks


def command_line(pid: int) -> str:
    """Its words, joined by spaces; empty where that cannot be told."""
    return bounded(lambda: command_line_now(pid), LOOK_TIMEOUT_S) or ""


def command_line_now(pid: int) -> str:
    """As `command_line`, but may wait for ever."""
    return (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()


def is_resource_tracker(pid: int) -> bool:
    """Whether it is multiprocessing's cleaner, which unlinks shared memory and semaphores when all others are gone."""
    return RESOURCE_TRACKER in command_line(pid)


def marked(marker: str) -> list[Process]:
    """Every living process of this user with `marker` (`NAME=value`) in its environment, except this one and above."""
    pids = bounded(lambda: marked_now(marker), LOOK_TIMEOUT_S)
    if pids is None:  # one of them cannot be looked at; ask one by one
        ids = [process.pid for process in all_processes() if process.pid != os.getpid()]
        pids = [pid for pid in ids if bounded(lambda pid=pid: carries(pid, marker), 0.2)]  # type: ignore[misc]
    found = (read_process(pid) for pid in pids)
    return [process for process in found if process is not None and not process.is_gone]


def marked_now(marker: str) -> list[int]:
    """As `marked`, but may wait for ever; called in a child, which and whose parent do not count."""
    own = {os.getpid(), os.getppid()}
    return [process.pid for process in all_processes() if process.pid not in own and carries(process.pid, marker)]


def carries(pid: int, marker: str) -> bool:
    """Whether the process was started with `marker` in its environment."""
    try:
        return marker.encode() in (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


def tracer(pid: int) -> int:
    """Id of the debugger that traces it; 0 for none."""
    for line in status_lines(pid):
        if line.startswith("TracerPid:"):
            return int(line.split()[1])
    return 0


def catches(pid: int, number: int) -> bool:
    """Whether it has a handler for the signal; one that has none would be ended by most of them."""
    for line in status_lines(pid):
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def status_lines(pid: int) -> list[str]:
    """Of /proc/<pid>/status."""
    try:
        return (PROC / str(pid) / "status").read_text(errors="replace").splitlines()
    except OSError:
        return []


def wait_channel(pid: int) -> str:
    """Return the kernel function in which a process or a thread waits; empty if unknown."""
    try:
        return (PROC / str(pid) / "wchan").read_text().strip().removeprefix("0") or ""
    except OSError:
        return ""


def remaining_thread(process: Process) -> Process | None:
    """Return a thread that has not ended after the main thread, one in the kernel (D) if there is one."""
    threads = (read_process(int(folder.name)) for folder in (PROC / str(process.pid) / "task").glob("*"))
    alive = [thread for thread in threads if thread is not None and thread.state not in GONE]
    return min(alive, key=lambda thread: thread.state != "D", default=None)
