"""Ends a trainer with everything below it, in the order that leaves nothing behind."""

import os
import re
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from yolo_lightning.supervision.bounded import bounded
from yolo_lightning.supervision.process_marks import remove_files_of_dead_processes
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

SHARED_MEMORY = Path("/dev/shm")
OURS_IN_SHARED_MEMORY = re.compile(r"(sem\.mp-|sem\.yolo-|torch_|psm_|wnsm_|sem\.loky-).+")
"""Names that multiprocessing and torch give; nothing else is ever deleted there."""

POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Killed:
    """What a kill did.

    Attributes:
        processes: Ids of the processes that were ended.
        survivors: Those that outlived SIGKILL, each with its state and where in the kernel it is.
        removed: Files that were left over and are deleted.
        left: The survivors, as the process table described them.
    """

    processes: tuple[int, ...] = ()
    survivors: dict[int, str] = field(default_factory=dict)
    removed: tuple[Path, ...] = ()
    left: tuple[Process, ...] = ()

    @property
    def needs_reboot(self) -> bool:
        """Whether something is left that nothing but a reboot ends."""
        return bool(self.survivors)


def kill_tree(leader: int | None, marker: str, wait_s: float = 5.0) -> Killed:
    """End `leader`, its descendants, its session and whatever carries `marker`.

    The snapshot comes first, as a child of a dead parent is no descendant any more. The resource tracker is spared at
    first: when all others are gone it unlinks their semaphores and ends by itself; killed with them it leaves them.

    Args:
        leader: The trainer, leader of its own session; it may have ended already. None where only the marker is known.
        marker: `NAME=value` in the environment of all of them, for those that left the session.
        wait_s: Seconds to wait, for the processes, then for the tracker, then for what was found last.
    """
    members = snapshot(leader, marker)
    files = shared_memory_of(members)
    trackers = {process.pid for process in members if is_resource_tracker(process.pid)}
    others = [process for process in members if process.pid not in trackers]
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
    """All of them, without this process and those above it."""
    found = {process.pid: process for process in marked(marker)}
    for pid in [*found, *([] if leader is None else [leader])]:
        found |= {process.pid: process for process in tree(pid)}
    found.pop(os.getpid(), None)
    return list(found.values())


def end(processes: Iterable[Process]) -> None:
    """SIGKILL, then SIGCONT, to those that still are who they were.

    In this order a stopped trainer does not wake up to take another step or begin a checkpoint.
    """
    alive = [process for process in processes if is_same(process)]
    for number in (signal.SIGKILL, signal.SIGCONT):
        for process in alive:
            try:
                os.kill(process.pid, number)
            except (ProcessLookupError, PermissionError):
                continue


def wait_until_gone(processes: Iterable[Process], wait_s: float) -> list[Process]:
    """Wait at most `wait_s` seconds; returns those that are left."""
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
    """Files in /dev/shm that the processes have mapped; their names do not say whose they are."""
    pids = [process.pid for process in processes]
    return bounded(lambda: mapped_now(pids), LOOK_TIMEOUT_S) or []


def mapped_now(pids: Iterable[int]) -> list[Path]:
    """As `shared_memory_of`, but may wait for ever.

    Compared by inode: the C library makes a semaphore under another name, and links it.
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
    """Delete what dead processes left in /dev/shm: what they had mapped, and what bears their id or mark."""
    left = [*mapped, *(path for pid in dead for path in SHARED_MEMORY.glob(f"torch_{pid}_*"))]
    removed = []
    for path in left:
        try:
            path.unlink()
        except OSError:  # gone already, or not ours to delete
            continue
        removed.append(path)
    return (*removed, *remove_files_of_dead_processes())
