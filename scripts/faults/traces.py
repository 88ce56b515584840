"""What a run may leave behind: processes, files in /dev/shm, temporary files. Looked for without the product's help."""

import os
import signal
import time
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
SMALL_SHARED_MEMORY = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=2m none /dev/shm && exec "$@"', "sh")
"""Runs a command with a /dev/shm of its own."""

SETTLE_S = 2.0
TEMPORARY_PATTERNS = (".writing-*", ".probe-*", "checkpoints/.writing-*", "*.part", "checkpoints/*.part")


def marked(variable: str, value: str) -> list[int]:
    """Living processes with the variable in their environment."""
    words = f"{variable}={value}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
            if state not in "ZX" and words in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def end_marked(variable: str, value: str) -> bool:
    """End them all; whether there were any."""
    found = marked(variable, value)
    for pid in found:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return bool(found)


def shared_memory() -> set[str]:
    """Names in /dev/shm."""
    return set(os.listdir(SHARED_MEMORY))


def orphaned_shared_memory(before: set[str]) -> list[str]:
    """Names that came since `before` and that nobody uses; other programs come and go there meanwhile."""
    suspects = unused_names() - before
    if not suspects:
        return []
    time.sleep(SETTLE_S)
    return sorted(suspects & unused_names())


def unused_names() -> set[str]:
    """Names in /dev/shm whose files no process has mapped."""
    with os.scandir(SHARED_MEMORY) as entries:
        inodes = {entry.inode(): entry.name for entry in entries if entry.is_file()}
    for path in Path("/proc").glob("[0-9]*/maps"):
        try:
            lines = path.read_text(errors="replace").splitlines()
        except OSError:
            continue
        for line in lines:
            parts = line.split(maxsplit=5)
            if len(parts) == 6 and parts[5].startswith(str(SHARED_MEMORY)):
                inodes.pop(int(parts[4]), None)
    return set(inodes.values())


def temporary_files(run_folder: Path, temporary: Path) -> list[str]:
    """Of the run folder and of the case's own temporary folder."""
    found = [path for pattern in TEMPORARY_PATTERNS for path in run_folder.glob(pattern)]
    return sorted(str(path) for path in {*found, *temporary.iterdir()})
