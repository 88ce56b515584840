"""Files that are whole or not there."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TEMPORARY_PREFIX = ".writing-"


def remove_leftovers(folder: Path) -> None:
    """Delete temporary files of writers that were killed. Call only while nobody else writes there."""
    for path in folder.glob(f"{TEMPORARY_PREFIX}*"):
        path.unlink(missing_ok=True)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give the path of a temporary file beside `path`, to be written in the block.

    If the block succeeds, the file is flushed to the disk and renamed to `path`; else it is deleted.
    """
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{os.getpid()}-{path.name}.part")
    try:
        yield temporary
        flush(temporary)
        os.replace(temporary, path)
        flush(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
