"""Reading and listing of regular files only: a FIFO blocks its reader forever, a device never ends.

Standard library only.
"""

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

LARGEST_BYTES = 256 << 20


def open_regular(path: Path | str) -> BinaryIO:
    """Open a regular file for reading; raise an OSError for any other file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # without O_NONBLOCK, opening a FIFO blocks
    file = os.fdopen(descriptor, "rb", closefd=True)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file")
    return file


def read_regular(path: Path | str, most_bytes: int = LARGEST_BYTES) -> bytes:
    """Return the content of a regular file; raise an OSError for any other file, and for more than `most_bytes`."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most_bytes:
            raise OSError(errno.EFBIG, f"{size:,} bytes, more than {most_bytes:,}")
        return file.read(size)  # not most_bytes, for which Python would allocate the memory


def regular_files(folder: Path | str) -> Iterator[str]:
    """Yield the path of each regular file below a folder once, without hidden files and folders.

    Symbolic links are followed, but a folder or file that was found before is not visited again, so that a link to a
    parent folder ends. A file is found by its own name before the links to it in the same or in deeper folders.
    """
    waiting = [os.fspath(folder)]
    visited: set[str] = set()
    links: list[str] = []
    found: set[str] = set()  # real paths of the targets of links
    real_folders: set[tuple[str, str]] = set()
    for place in waiting:
        real = os.path.realpath(place)
        if real in visited:
            continue
        visited.add(real)
        try:
            with os.scandir(place) as entries:
                listed = sorted(entries, key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in listed:
            if entry.name.startswith("."):
                continue
            try:
                if entry.is_dir():
                    waiting.append(entry.path)
                elif entry.is_symlink():
                    links.append(entry.path)
                elif entry.is_file():
                    real_folders.add((real, entry.name))
                    yield entry.path
            except OSError:
                continue
    for link in links:
        target = os.path.realpath(link)
        if target in found or os.path.split(target) in real_folders or not os.path.isfile(target):
            continue
        found.add(target)
        yield link
