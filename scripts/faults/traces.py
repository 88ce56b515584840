"""Processes, files in /dev/shm and temporary files that a run has left behind, found without code of the package."""

import os
import signal
import time
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
SMALL_SHARED_MEMORY = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=2m none /dev/shm && exec "$@"', "sh")
"""Prefix of a command that runs with its own small /dev/shm."""
SETTLE_S = 2.0
TEMPORARY_PATTERNS = (".writing-*", ".probe-*", "checkpoints/.writing-*", "*.part", "checkpoints/*.part")


def marked(variable: str, value: str) -> list[int]:
    """Return the ids of living processes with this value of an environment variable."""
    entry = f"{variable}={value}".encode()
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
            if state not in "ZX" and entry in (folder / "environ").read_bytes().split(b"\0"):
                pids.append(int(folder.name))
        except OSError:
            continue
    return pids


def end_marked(variable: str, value: str) -> bool:
    """Kill all processes with this value of an environment variable, and return whether there were any."""
    pids = marked(variable, value)
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return bool(pids)


def shared_memory() -> set[str]:
    """Return the names in /dev/shm."""
    return set(os.listdir(SHARED_MEMORY))


def orphaned_shared_memory(before: set[str]) -> list[str]:
    """Return names that are new since `before` and stay unused; other programs also create and delete files there."""
    suspects = _unused_names() - before
    if suspects:
        time.sleep(SETTLE_S)
        suspects &= _unused_names()
    return sorted(suspects)


def _unused_names() -> set[str]:
    """Return the names in /dev/shm whose files no process has mapped."""
    with os.scandir(SHARED_MEMORY) as entries:
        names = {entry.inode(): entry.name for entry in entries if entry.is_file()}
    for path in Path("/proc").glob("[0-9]*/maps"):
        try:
            lines = path.read_text(errors="replace").splitlines()
        except OSError:
            continue
        for line in lines:
            parts = line.split(maxsplit=5)
            if len(parts) == 6 and parts[5].startswith(str(SHARED_MEMORY)):
                names.pop(int(parts[4]), None)
    return set(names.values())


def temporary_files(run_folder: Path, temporary: Path) -> list[str]:
    """Return the temporary files of the run folder and the content of the temporary folder of the case."""
    paths = [path for pattern in TEMPORARY_PATTERNS for path in run_folder.glob(pattern)]
    return sorted(str(path) for path in {*paths, *temporary.iterdir()})
