"""Process table of Linux, read from /proc.

Reads of `stat`, `status` and `wchan` do not block. Reads of `cmdline`, `environ` and `maps` need a lock of the process,
which a process that hangs in the kernel can hold forever: these reads run in a child process (`bounded`).
"""

import os
from collections.abc import Iterable

from yolo_lightning.supervision.helper_process import bounded
from yolo_lightning.utils.process_identity import GONE, PROC, Process, read_process
from yolo_lightning.utils.sensors import fields_of, text

LOOK_TIMEOUT_S = 2.0
STOPPED_BY_SIGNAL = "T"
STOPPED = frozenset((STOPPED_BY_SIGNAL, "t"))
RESOURCE_TRACKER = "multiprocessing.resource_tracker"
WORKER_NAME = "pt_data_worker"
"""Process name of torch's DataLoader workers."""


def all_processes() -> list[Process]:
    return _existing(int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit())


def _existing(ids: Iterable[int]) -> list[Process]:
    """Return the processes or threads that exist."""
    return [process for process in map(read_process, ids) if process is not None]


def tree(leader: int, processes: Iterable[Process] | None = None) -> list[Process]:
    """Return the living processes among `leader`, its descendants and its session.

    A child of a dead parent is no descendant and is found by the session.
    """
    table = all_processes() if processes is None else list(processes)
    members = {process.pid for process in table if process.pid == leader or process.session == leader}
    size = 0
    while len(members) > size:
        size = len(members)
        members |= {process.pid for process in table if process.parent in members}
    return [process for process in table if process.pid in members and not process.is_gone]


def loader_workers(trainer: int) -> list[Process]:
    """Return the DataLoader workers among the child processes of a trainer, zombies included.

    Workers are recognized by process name, which can be read without blocking.
    """
    return [process for process in all_processes() if process.parent == trainer and process.name == WORKER_NAME]


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
    return [process for process in _existing(pids) if not process.is_gone]


def tracer(pid: int) -> int:
    """Return the id of the debugger that traces a process; 0 for none."""
    return int(_status(pid).get("TracerPid", 0))


def catches(pid: int, number: int) -> bool:
    """Return whether a process has a handler for signal `number`; without one, most signals end a process."""
    return bool(int(_status(pid).get("SigCgt", "0"), 16) << 1 >> number & 1)


def written_bytes(pid: int) -> int:
    """Return the number of bytes that a process has passed to the kernel for writing; 0 if it cannot be read."""
    return int(fields_of(text(PROC / str(pid) / "io")).get("wchar", 0))


def _status(pid: int) -> dict[str, str]:
    return fields_of(text(PROC / str(pid) / "status"))


def wait_channel(pid: int) -> str:
    """Return the kernel function in which a process or a thread waits; empty if unknown."""
    return text(PROC / str(pid) / "wchan").removeprefix("0")


def remaining_thread(process: Process) -> Process | None:
    """Return a thread that has not ended after the main thread, preferably one that waits in the kernel (D)."""
    threads = _existing(int(folder.name) for folder in (PROC / str(process.pid) / "task").glob("*"))
    alive = [thread for thread in threads if thread.state not in GONE]
    return min(alive, key=lambda thread: thread.state != "D", default=None)
