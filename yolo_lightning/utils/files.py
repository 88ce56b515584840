"""Files that are whole or not there, written by one process at a time, read by many."""

import errno
import fcntl
import itertools
import json
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any

TEMPORARY_PREFIX = ".writing-"
CHECKSUM_BLOCK_BYTES = 1 << 20
DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""No space, no quota left, or a file larger than the process or the file system allows."""


def cache_folder() -> Path:
    """`yolo_lightning` in the user's cache folder: what can be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "yolo_lightning"


def first_free(base: Path, ending: str = "", is_taken: Callable[[Path], bool] = Path.exists) -> Path:
    """`base`, or the first of `base-2`, `base-3`, ... that is not taken; all with `ending` behind."""
    names = itertools.chain([base.name], (f"{base.name}-{number}" for number in itertools.count(2)))
    return next(path for name in names if not is_taken(path := base.with_name(name + ending)))


def remove_leftovers(folder: Path) -> None:
    """Delete temporary files of writers that were killed. Call only while nobody else writes there."""
    for path in folder.glob(f"{TEMPORARY_PREFIX}*"):
        path.unlink(missing_ok=True)


@contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """Yield the path of a temporary file beside `path`, to be written in the block.

    If the block succeeds, the file is flushed to the disk and renamed to `path`; else it is deleted. Without `durable`
    the file is not flushed: a power cut can lose it, and a busy disk does not delay the caller.
    """
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{os.getpid()}-{path.name}.part")
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
    """Write `content` as one JSON value, whole or not at all.

    Raises:
        OSError: If the file cannot be written.
        ValueError: Without `allow_nan`, if a number is not finite.
    """
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(content, indent=indent, allow_nan=allow_nan) + "\n")


def flush(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def checksum(path: Path) -> int:
    """CRC-32 of a file's content, as `zlib.crc32` counts it."""
    value = 0
    with path.open("rb") as file:
        while block := file.read(CHECKSUM_BLOCK_BYTES):
            value = zlib.crc32(block, value)
    return value


@contextmanager
def sole_writer(lock: Path) -> Iterator[None]:
    """Hold `lock` for the block; refuses at once where another process holds it.

    The kernel releases the lock when the process dies, however it dies; the file itself stays.

    Raises:
        ValueError: If another process holds it; the message names its id.
        OSError: If the file cannot be written.
    """
    with lock.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise ValueError(
                f"process {file.read().strip() or '(unknown)'} is writing into {lock.parent} already: "
                "wait until it has ended"
            ) from error
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


class PositionedFile:
    """A file read at given positions by any number of threads and processes.

    Each process opens the file itself, when it reads first; pickles as its path; a forked child does not use the
    parent's descriptor. `os.pread` has no position that readers could share by mistake.

    Args:
        path: The file.
        size_bytes: Size that it must still have when it is opened.
        modified_ns: Time of its last change, if that must be unchanged too.
    """

    def __init__(self, path: Path, size_bytes: int, modified_ns: int | None = None) -> None:
        self.path = path
        self.size_bytes = size_bytes
        self.modified_ns = modified_ns
        self._opened: tuple[int, FileIO] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def read(self, offset: int, length: int) -> bytes:
        """`length` bytes from `offset` on; fewer where the file ends before.

        Raises:
            OSError: If the file cannot be read.
            ValueError: If it is not the file it was.
        """
        file = self._open()
        parts: list[bytes] = []
        while length and (part := os.pread(file.fileno(), length, offset)):
            parts.append(part)
            offset, length = offset + len(part), length - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill `buffer`, one dimension of bytes, from `offset` on.

        Raises:
            OSError: If the file cannot be read or ends before.
            ValueError: If it is not the file it was.
        """
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
            raise ValueError(f"{self.path} has changed since this process was started: start again")
        if hasattr(os, "posix_fadvise"):  # read-ahead would read the neighbours of a frame that nobody wants
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        self._opened = (os.getpid(), file)
        return file
