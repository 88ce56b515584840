"""Kill a trainer with all its descendants, and delete the files that ended processes leave behind.

SIGKILL to a process group also kills the resource tracker of multiprocessing. No process is left that unlinks the
semaphores in /dev/shm and the folder of sockets in the temporary folder. The usual names of these files
(`sem.mp-<random>`, `pymp-<random>`) do not show which process created them. `mark_process` chooses names that contain
the process id.
"""

import ctypes
import multiprocessing.process
import multiprocessing.util
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Container, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from yolo_lightning.supervision.processes import (
    all_processes,
    is_resource_tracker,
    marked,
    remaining_thread,
    tree,
    wait_channel,
)
from yolo_lightning.supervision.trainer import is_supervised, temporary_folder
from yolo_lightning.utils.files import remove
from yolo_lightning.utils.process_identity import MARK, PROC, Process, is_same, own_mark, owner_lives

SHARED_MEMORY = Path("/dev/shm")
SHARED_TENSOR = re.compile(r"torch_(\d+)_")  # with the id of the process that has shared it
MARKED = re.compile(rf"(?:sem\.)?{MARK}(?:-\w{{8}})?(?:-record)?")
"""Names of semaphores and folders with a mark."""

POLL_S = 0.02
PR_SET_CHILD_SUBREAPER = 36
_adopts = False


@dataclass(frozen=True, slots=True)
class Killed:
    """Result of `kill_tree`."""

    processes: tuple[int, ...] = ()  # ids of the ended processes
    survivors: dict[Process, str] = field(default_factory=dict)  # state and place in the kernel of each survivor

    def __str__(self) -> str:
        return "; ".join(f"process {process.pid}: {where}" for process, where in self.survivors.items())


def adopt_orphans() -> None:
    """Make this process the parent of all descendants whose parent ends (Linux only): `kill_tree` then ends them too.

    Otherwise a process that was forked twice and has another session and environment cannot be found. From now on, all
    children in another session than this process must have been started by the leader of `kill_tree`, or be the leader.
    """
    global _adopts
    if sys.platform.startswith("linux"):
        _adopts = ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def reap_orphans(leader: int | None, number: int = 0) -> list[int]:
    """Return the adopted processes after sending them a signal and reading the exit codes of those that have ended."""
    if not _adopts:
        return []
    children = map(int, (PROC / f"self/task/{os.getpid()}/children").read_text().split())
    orphans = [pid for pid in children if pid != leader and os.getsid(pid) != os.getsid(0)]
    for pid in orphans:
        with suppress(PermissionError):
            os.kill(pid, number)
        os.waitpid(pid, os.WNOHANG)
    return orphans


def kill_tree(leader: int | None, marker: str, wait_s: float = 5.0) -> Killed:
    """End `leader`, its descendants, its session and all processes with `marker`.

    The processes are listed before the first kill, because a child of a dead parent is no descendant. The resource
    tracker is killed last: after the end of all other processes it unlinks their semaphores and ends. `leader` can have
    ended already; `marker` (`NAME=value` in the environment) finds processes that left the session. `wait_s` is the
    time limit in seconds for the processes, for the resource tracker, and for processes that were found last, each.
    A chain of processes that fork and exit ends because each one is killed as soon as it is adopted.
    """
    members = _snapshot(leader, marker)
    before_tracker = [process for process in members if not is_resource_tracker(process.pid)]
    end(before_tracker)
    _wait_until_gone(before_tracker, wait_s)
    _wait_until_gone(members, wait_s)
    end(members)
    late = [process for process in _snapshot(leader, marker) if process not in members]
    end(late)
    end_s = time.monotonic() + wait_s
    orphans = reap_orphans(leader, signal.SIGKILL)
    while orphans and time.monotonic() < end_s:
        earlier = orphans
        orphans = reap_orphans(leader, signal.SIGKILL)
        if orphans == earlier:
            time.sleep(POLL_S)
    survivors = _wait_until_gone([*members, *late], wait_s)
    dead = tuple(process.pid for process in [*members, *late] if process not in survivors)
    _remove(_shared_tensors(dead))
    remove_files_of_dead_processes()
    return Killed(dead, {process: _where_it_is(process) for process in survivors})


def _snapshot(leader: int | None, marker: str) -> list[Process]:
    """Return the living processes to end, without this process."""
    members = {process.pid: process for process in marked(marker)}
    roots = [*members, *reap_orphans(leader)]
    if leader is not None:
        roots.append(leader)
    table = all_processes()
    for pid in roots:
        members |= {process.pid: process for process in tree(pid, table)}
    members.pop(os.getpid(), None)
    return list(members.values())


def end(processes: Iterable[Process]) -> None:
    """Send SIGKILL and then SIGCONT to the processes that still exist.

    The order prevents that a stopped trainer continues and takes another step or begins a checkpoint.
    """
    alive = [process for process in processes if is_same(process)]
    for number in (signal.SIGKILL, signal.SIGCONT):
        for process in alive:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, number)


def _wait_until_gone(processes: Iterable[Process], wait_s: float) -> list[Process]:
    """Wait at most `wait_s` seconds; return the processes that have not ended."""
    alive = [process for process in processes if is_same(process)]
    end_s = time.monotonic() + wait_s
    while alive and time.monotonic() < end_s:
        time.sleep(POLL_S)
        alive = [process for process in alive if is_same(process)]
    return alive


def _where_it_is(process: Process) -> str:
    """Return the state and the place in the kernel as text, of the thread that has not ended if there are several."""
    thread = remaining_thread(process) or process
    return f"{process.name}, state {thread.state}, waits in {wait_channel(thread.pid) or 'an unknown place'}"


def _remove(paths: Iterable[Path]) -> None:
    """Delete this user's files and folders."""
    for path in paths:
        with suppress(OSError):  # deleted by another process meanwhile
            if path.lstat().st_uid == os.geteuid():
                remove(path)


def mark_process() -> None:
    """Make multiprocessing use the mark of this process in the names of semaphores and of the folder of its sockets.

    Workers inherit these settings. CPython keeps the prefix of semaphores there so that programs can change it
    (https://github.com/python/cpython/issues/63677). The folder replaces the one that multiprocessing makes in each
    worker. A supervised trainer needs no such folder, because its supervisor removes all its temporary files. Without
    /proc nothing is changed.
    """
    mark = own_mark()
    if mark is None:
        return
    config = multiprocessing.process.current_process()._config  # type: ignore[attr-defined]
    config["semprefix"] = f"/{mark}"
    if is_supervised() or config.get("tempdir") is not None:
        return
    folder = temporary_folder(mark)
    folder.mkdir(mode=0o700, exist_ok=True)
    # As for multiprocessing's own folder: last of all finalizers of this process, not of a worker.
    multiprocessing.util.Finalize(None, shutil.rmtree, (folder,), {"ignore_errors": True}, exitpriority=-100)
    config["tempdir"] = str(folder)


def _shared_tensors(processes: Container[int]) -> Iterator[Path]:
    """Yield the files of tensors that these processes have shared."""
    with suppress(OSError):
        for name in os.listdir(SHARED_MEMORY):
            owner = SHARED_TENSOR.match(name)
            if owner is not None and int(owner[1]) in processes:
                yield SHARED_MEMORY / name


def remove_files_of_dead_processes() -> None:
    """Delete this user's semaphores and folders whose mark names a process that has ended."""
    _remove(_marked_files())


def _marked_files() -> Iterator[Path]:
    """Yield the files and folders whose mark names a process of this boot, PID and time namespace that has ended."""
    for folder in {SHARED_MEMORY, Path(tempfile.gettempdir()), Path("/tmp")}:
        with suppress(OSError):
            for name in os.listdir(folder):
                mark = MARKED.fullmatch(name)
                if mark is not None and owner_lives(mark) is False:
                    yield folder / name
