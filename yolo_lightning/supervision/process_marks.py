"""Names of semaphores and temporary files that contain their process, and deletion of the files of ended processes.

After SIGKILL to a whole process group, which includes multiprocessing's resource tracker, no process unlinks the
semaphores in /dev/shm and the folder of sockets in the temporary folder. Their usual names (`sem.mp-<random>`,
`pymp-<random>`) do not contain their owner. The mark of a process consists of its id, its start time, and a checksum of
boot and PID namespace, because /dev/shm and temporary folders may be shared with containers and machines in which the
same id belongs to another process.
"""

import multiprocessing.process
import multiprocessing.util
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from yolo_lightning.supervision.processes import PROC, read_process
from yolo_lightning.supervision.trainer import SOCKET_PATH_BYTES, is_supervised

SHARED_MEMORY = Path("/dev/shm")
SOCKET = "/listener-12345678"
MARKED = re.compile(r"(?:sem\.)?yolo-(?P<space>[0-9a-f]{8})-(?P<pid>[0-9a-f]+)-(?P<ticks>[0-9a-f]+)(?:-\w{8})?")
"""Names of semaphores and folders with a mark."""


def mark_process() -> None:
    """Make multiprocessing use the mark of this process in the names of semaphores and of the folder of its sockets.

    Workers inherit these settings. CPython keeps the prefix of semaphores there
    so that programs can change it (https://github.com/python/cpython/issues/63677). The folder replaces the one that
    `multiprocessing.util.get_temp_dir` makes in each worker. A supervised trainer needs no such folder, because its
    supervisor removes all its temporary files. Without /proc nothing is changed.
    """
    mark = mark_of(os.getpid())
    if mark is None:
        return
    config = multiprocessing.process.current_process()._config  # type: ignore[attr-defined]
    config["semprefix"] = f"/{mark}"
    if is_supervised() or config.get("tempdir") is not None:
        return
    folder = Path(tempfile.gettempdir()) / mark
    if len(os.fsencode(f"{folder}{SOCKET}")) > SOCKET_PATH_BYTES:
        folder = Path("/tmp") / mark
    folder.mkdir(mode=0o700, exist_ok=True)
    # As for multiprocessing's own folder: last of all finalizers of this process, not of a worker.
    multiprocessing.util.Finalize(None, shutil.rmtree, (folder,), {"ignore_errors": True}, exitpriority=-100)
    config["tempdir"] = str(folder)


def mark_of(pid: int) -> str | None:
    """Return the mark of a living process, at most 40 characters; None without /proc."""
    process, space = read_process(pid), name_space()
    return None if process is None or space is None else f"yolo-{space}-{pid:x}-{process.started_ticks:x}"


def name_space() -> str | None:
    """Return a checksum of the boot and the PID namespace in which process ids of this process are valid."""
    try:
        boot, space = (PROC / "sys/kernel/random/boot_id").read_text(), os.readlink(PROC / "self/ns/pid")
        return f"{zlib.crc32((boot + space).encode()):08x}"
    except OSError:
        return None


def remove_files_of_dead_processes() -> tuple[Path, ...]:
    """Delete this user's semaphores and folders whose mark names a process that has ended; return what was deleted."""
    removed = []
    for path in marked_files():
        try:
            if path.lstat().st_uid != os.geteuid():
                continue
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        except OSError:  # deleted by another process meanwhile
            continue
        removed.append(path)
    return tuple(removed)


def marked_files() -> Iterator[Path]:
    """Yield the files and folders whose mark names a process of this boot and PID namespace that has ended."""
    space = name_space()
    for folder in {SHARED_MEMORY, Path(tempfile.gettempdir()), Path("/tmp")}:
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        for name in names:
            found = MARKED.fullmatch(name)
            if found is None or found["space"] != space:
                continue
            process = read_process(int(found["pid"], 16))
            if process is None or process.is_gone or process.started_ticks != int(found["ticks"], 16):
                yield folder / name
