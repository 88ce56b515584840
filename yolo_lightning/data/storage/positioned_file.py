"""File that several threads and processes read at given positions."""

import os
from io import FileIO
from pathlib import Path
from typing import Any


class ReplacedFileError(RuntimeError):
    """A file was replaced while a command reads it; another start of the command reads the new file."""


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
        try:
            while length:
                part = os.pread(file.fileno(), length, offset)
                if not part:
                    break
                parts.append(part)
                offset += len(part)
                length -= len(part)
        except OSError:
            self._opened = None  # a stale handle of a network file system stays stale: the next read opens the file
            raise
        return b"".join(parts)

    def _open(self) -> FileIO:
        opened = self._opened  # a local reference keeps the file open while another thread replaces it
        if opened is not None and opened[0] == os.getpid():
            return opened[1]
        file = FileIO(self.path)
        status = os.fstat(file.fileno())
        if status.st_size != self.size_bytes or self.modified_ns not in (None, status.st_mtime_ns):
            raise ReplacedFileError(f"{self.path} has changed since this process was started; start the command again")
        if hasattr(os, "posix_fadvise"):  # read-ahead would read neighbours of a frame that are not needed
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        self._opened = (os.getpid(), file)
        return file
