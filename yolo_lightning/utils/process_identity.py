"""Identity of processes: entries of Linux' process table, and marks for file names that tell whether the owner lives.

The mark of a process consists of its id, its start time, and a checksum of boot, PID namespace and time namespace,
because /dev/shm, temporary folders and disks may be shared with containers and machines in which the same id belongs to
another process, or in which the same process has another start time.
Standard library only.
"""

import os
import re
import time
import zlib
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PROC = Path("/proc")
GONE = frozenset("ZXx")
"""States of a process that has ended and whose exit code has not been read."""

MARK = r"yolo-(?P<space>[0-9a-f]{8})-(?P<pid>[0-9a-f]+)-(?P<ticks>[0-9a-f]+)"
"""Pattern of a mark, at most 40 characters."""


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


def since_boot_s() -> float:
    """Return the seconds since boot, the time in suspension included; no one can set this clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """Return the identity of this boot of the machine; empty if unknown."""
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text()
    except OSError:
        return ""


def started_ticks(pid: int) -> int:
    """Return the start time of a process in clock ticks since boot; 0 if unknown."""
    process = read_process(pid)
    return 0 if process is None else process.started_ticks


def started_s(pid: int) -> float:
    """Return the start time of a process, seconds since 1970; now if unknown."""
    ticks = started_ticks(pid)
    if not ticks:
        return time.time()
    return time.time() - max(0.0, since_boot_s() - ticks / os.sysconf("SC_CLK_TCK"))


def is_same(process: Process) -> bool:
    """Return whether this process still lives; another process with the same id does not count."""
    now = read_process(process.pid)
    return now is not None and not now.is_gone and now.started_ticks == process.started_ticks


def own_mark() -> str | None:
    """Return the mark of this process; None without /proc."""
    return _mark_of(os.getpid())


@cache
def _mark_of(pid: int) -> str | None:
    process = read_process(pid)
    space = _name_space()
    if process is None or space is None:
        return None
    return f"yolo-{space}-{pid:x}-{process.started_ticks:x}"


@cache
def _name_space() -> str | None:
    """Return a checksum of the boot and the namespaces in which the ids and start times of processes are valid."""
    boot = boot_id()
    if not boot:
        return None
    try:
        space = os.readlink(PROC / "self/ns/pid")
    except OSError:
        return None
    with suppress(OSError):  # a kernel without time namespaces
        space += os.readlink(PROC / "self/ns/time")
    return f"{zlib.crc32((boot + space).encode()):08x}"


def owner_lives(mark: re.Match[str]) -> bool | None:
    """Return whether the process of a match of `MARK` lives; None if it belongs to another boot or namespace."""
    if mark["space"] != _name_space():
        return None
    process = read_process(int(mark["pid"], 16))
    return process is not None and not process.is_gone and process.started_ticks == int(mark["ticks"], 16)
