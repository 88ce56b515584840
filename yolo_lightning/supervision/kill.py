"""End of a trainer with all its descendants, without leftovers in shared memory."""

import os
import re
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from yolo_lightning.supervision.helper_process import bounded
from yolo_lightning.supervision.process_marks import SHARED_MEMORY, remove_files_of_dead_processes
from yolo_lightning.supervision.processes import (
    GONE,
    LOOK_TIMEOUT_S,
    PROC,
    Process,
    is_resource_tracker,
    is_same,
    marked,
    read_process,
    remaining_thread,
    tree,
    wait_channel,
)

OURS_IN_SHARED_MEMORY = re.compile(r"(sem\.mp-|sem\.yolo-|torch_|psm_|wnsm_|sem\.loky-).+")
"""Names chosen by multiprocessing, torch and `mark_process`. Other files in /dev/shm are never deleted."""

POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Killed:
    """Result of `kill_tree`."""

    processes: tuple[int, ...] = ()  # ids of the ended processes
    survivors: dict[int, str] = field(default_factory=dict)  # state and place in the kernel of each survivor
    removed: tuple[Path, ...] = ()  # deleted leftover files
    left: tuple[Process, ...] = ()  # the survivors as entries of the process table

    @property
    def needs_reboot(self) -> bool:
        """Whether a process can only be ended by a reboot."""
        return bool(self.survivors)


def kill_tree(leader: int | None, marker: str, wait_s: float = 5.0) -> Killed:
    """End `leader`, its descendants, its session and all processes with `marker`.

    The processes are listed before the first kill, because a child of a dead parent is no descendant. The resource
    tracker is killed last: after the end of all other processes it unlinks their semaphores and ends.

    Args:
        leader: Session leader; can have ended already. None if only the marker is known.
        marker: `NAME=value` in the environment, which finds processes that left the session.
        wait_s: Seconds to wait for the processes, for the resource tracker, and for processes that were found last.
    """
    members = snapshot(leader, marker)
    files = shared_memory_of(members)
    others = [process for process in members if not is_resource_tracker(process.pid)]
    end(others)
    wait_until_gone(others, wait_s)
    wait_until_gone(members, wait_s)
    end(members)
    late = [process for process in snapshot(leader, marker) if process not in members]
    end(late)
    left = wait_until_gone([*members, *late], wait_s)
    dead = tuple(process.pid for process in [*members, *late] if process not in left)
    survivors = {process.pid: where_it_is(process) for process in left}
    return Killed(dead, survivors, remove_shared_memory(dead, files), tuple(left))


def snapshot(leader: int | None, marker: str) -> list[Process]:
    """Return the living processes to end, without this process."""
    found = {process.pid: process for process in marked(marker)}
    for pid in [*found, *([] if leader is None else [leader])]:
        found |= {process.pid: process for process in tree(pid)}
    found.pop(os.getpid(), None)
    return list(found.values())


def end(processes: Iterable[Process]) -> None:
    """Send SIGKILL and then SIGCONT to the processes that still exist.

    The order prevents that a stopped trainer continues and takes another step or begins a checkpoint.
    """
    alive = [process for process in processes if is_same(process)]
    for number in (signal.SIGKILL, signal.SIGCONT):
        for process in alive:
            try:
                os.kill(process.pid, number)
            except (ProcessLookupError, PermissionError):
                continue


def wait_until_gone(processes: Iterable[Process], wait_s: float) -> list[Process]:
    """Wait at most `wait_s` seconds; return the processes that have not ended."""
    left = [process for process in processes if is_same(process)]
    deadline_s = time.monotonic() + wait_s
    while left and time.monotonic() < deadline_s:
        time.sleep(POLL_S)
        left = [process for process in left if is_same(process)]
    return left


def where_it_is(process: Process) -> str:
    """Return the state and the place in the kernel as text, of a remaining thread if the main thread has ended."""
    now = read_process(process.pid) or process
    if now.state in GONE and (thread := remaining_thread(now)) is not None:
        where = wait_channel(thread.pid) or "an unknown place"
        return f"{process.name}, a thread in state {thread.state}, waits in {where}"
    return f"{process.name}, state {now.state}, waits in {wait_channel(process.pid) or 'an unknown place'}"


def shared_memory_of(processes: Iterable[Process]) -> list[Path]:
    """Return the files in /dev/shm that processes have mapped. The names of the files do not contain their owner."""
    pids = [process.pid for process in processes]
    return bounded(lambda: mapped_now(pids), LOOK_TIMEOUT_S) or []


def mapped_now(pids: Iterable[int]) -> list[Path]:
    """Return the files in /dev/shm that processes have mapped; can block forever.

    Files are compared by inode, because the C library creates a semaphore under another name and links it.
    """
    device = SHARED_MEMORY.stat().st_dev
    where = f"{os.major(device):02x}:{os.minor(device):02x}"
    inodes: set[int] = set()
    for pid in pids:
        try:
            maps = (PROC / str(pid) / "maps").read_text(errors="replace")
        except OSError:
            continue
        inodes |= {int(inode) for inode in re.findall(rf"^\S+ \S+ \S+ {where} (\d+)", maps, re.MULTILINE)}
    with os.scandir(SHARED_MEMORY) as entries:
        found = [entry.name for entry in entries if entry.inode() in inodes]
    return [SHARED_MEMORY / name for name in sorted(found) if OURS_IN_SHARED_MEMORY.fullmatch(name)]


def remove_shared_memory(dead: Iterable[int], mapped: Iterable[Path]) -> tuple[Path, ...]:
    """Delete the files of ended processes in /dev/shm: mapped files, and files with the process id or mark as name."""
    left = [*mapped, *(path for pid in dead for path in SHARED_MEMORY.glob(f"torch_{pid}_*"))]
    removed = []
    for path in left:
        try:
            path.unlink()
        except OSError:  # deleted already, or owned by another user
            continue
        removed.append(path)
    return (*removed, *remove_files_of_dead_processes())
