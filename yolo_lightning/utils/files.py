"""Atomic file writing, locks, and files that several threads and processes read."""

import errno
import fcntl
import itertools
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any

from yolo_lightning.utils.process_identity import MARK, own_mark, owner_lives

TEMPORARY_PREFIX = ".writing-"
LONGEST_WRITE_S = 86_400.0
"""A temporary file of a process of another boot or machine is left over if it has not changed for this time."""

_cleaned: set[Path] = set()
DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""No space or quota left, or the file exceeds the size limit of the process or file system."""


CONVOLUTION_VERDICTS = "convolution_probe.json"
"""File in the cache folder with the results of `model.convolution.backend: auto` by device."""


def cache_folder() -> Path:
    """Return the folder `yolo_lightning` in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "yolo_lightning"


def first_free(base: Path, ending: str = "", is_taken: Callable[[Path], bool] = Path.exists) -> Path:
    """Return the first of `base`, `base-2`, `base-3`, ..., each followed by `ending`, that is not taken."""
    names = itertools.chain([base.name], (f"{base.name}-{number}" for number in itertools.count(2)))
    return next(path for name in names if not is_taken(path := base.with_name(name + ending)))


def remove_leftovers(folder: Path) -> None:
    """Delete the temporary files and folders of killed processes, whose names contain the mark of the process."""
    for path in folder.glob(f"{TEMPORARY_PREFIX}*"):
        with suppress(OSError):
            found = re.search(MARK, path.name)
            lives = owner_lives(found) if found else None
            if lives is None:
                lives = time.time() < path.lstat().st_mtime + LONGEST_WRITE_S
            if not lives:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def temporary_prefix() -> str:
    """Return the beginning of the names of this process's temporary files, for `remove_leftovers`."""
    return f"{TEMPORARY_PREFIX}{own_mark() or os.getpid()}-"


@contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """Yield the path of a temporary file beside `path`, to be written in the block.

    If the block succeeds, the file is flushed to the disk and renamed to `path`; else it is deleted. Without `durable`
    the file is not flushed: a power cut can lose it, and a busy disk does not delay the caller. The first file that a
    process writes into a folder removes what killed processes have left there.
    """
    temporary = path.with_name(f"{temporary_prefix()}{path.name}.part")
    if path.parent not in _cleaned:
        _cleaned.add(path.parent)
        remove_leftovers(path.parent)
    try:
        yield temporary
        if durable:
            flush(temporary)
        os.replace(temporary, path)
        if durable:
            flush(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, content: Any, *, indent: int | None = 2, allow_nan: bool = True) -> None:
    """Write a JSON file atomically; without `allow_nan`, non-finite numbers raise a ValueError."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(content, indent=indent, allow_nan=allow_nan) + "\n")


def flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def sole_writer(lock: Path) -> Iterator[None]:
    """Lock the file `lock` in the block; the kernel releases the lock when the process ends."""
    with lock.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise ValueError(
                f"process {file.read().strip() or '(unknown)'} is writing into {lock.parent}; wait until it has ended"
            ) from error
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


class PositionedFile:
    """File that any number of threads and processes read at given positions, without a shared file position.

    Each process opens the file at its first read, also after a fork or unpickling, and checks that the file has the
    expected size and time of the last change (None accepts any).
    """

    def __init__(self, path: Path, size_bytes: int, modified_ns: int | None = None) -> None:
        self.path = path
        self.size_bytes = size_bytes
        self.modified_ns = modified_ns
        self._opened: tuple[int, FileIO] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def read(self, offset: int, length: int) -> bytes:
        """Return `length` bytes from `offset`, or fewer at the end of the file."""
        file = self._open()
        parts: list[bytes] = []
        while length and (part := os.pread(file.fileno(), length, offset)):
            parts.append(part)
            offset, length = offset + len(part), length - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill `buffer`, one dimension of bytes, from `offset`."""
        file = self._open()
        while len(buffer):
            count = os.preadv(file.fileno(), [buffer], offset)
            if count == 0:
                raise OSError(errno.EIO, f"{self.path.name} ends at byte {offset}")
            buffer, offset = buffer[count:], offset + count

    def _open(self) -> FileIO:
        opened = self._opened  # a local reference keeps the file open while another thread replaces it
        if opened is not None and opened[0] == os.getpid():
            return opened[1]
        file = FileIO(self.path)
        status = os.fstat(file.fileno())
        if status.st_size != self.size_bytes or self.modified_ns not in (None, status.st_mtime_ns):
            raise ValueError(f"{self.path} has changed since this process was started; start the command again")
        if hasattr(os, "posix_fadvise"):  # read-ahead would read neighbours of a frame that are not needed
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        self._opened = (os.getpid(), file)
        return file
