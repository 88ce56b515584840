"""Atomic file writing, and locks."""

import errno
import fcntl
import json
import os
import re
import shutil
import stat
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from yolo_lightning.errors import UserError
from yolo_lightning.utils.activity import Activity, during
from yolo_lightning.utils.paths import user_path
from yolo_lightning.utils.process_identity import MARK, own_mark, owner_lives

TEMPORARY_PREFIX = ".writing-"
LONGEST_WRITE_S = 86_400.0
"""A temporary file of a process of another boot or machine is left over if it has not changed for this time."""

_cleaned: set[Path] = set()
DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""No space or quota left, or the file exceeds the size limit of the process or file system."""

NOT_FLUSHABLE = frozenset({errno.EBADF, errno.EINVAL, errno.ENOTSUP})
"""Errors of file systems that cannot flush folders; PostgreSQL ignores EBADF and EINVAL, too."""


def with_place(error: OSError) -> str:
    """Return the message of an error, with the place in the code if the error does not name a file."""
    if error.filename is not None:
        return str(error)
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{error}, in {place.name} ({Path(place.filename).name}:{place.lineno})"


TEMPORARY_VARIABLE = "YOLO_LIGHTNING_TEMPORARY"
"""Environment variable of a supervised trainer: the temporary folder of its supervisor. That of the trainer is deleted
after each attempt."""

CONVOLUTION_VERDICTS = "convolution_probe.json"
"""File in the cache folder with the results of `model.convolution.backend: auto` by device."""


def cache_folder() -> Path:
    """Return the folder `yolo_lightning` in the user's cache folder, or a temporary folder if it cannot be written."""
    folder = user_path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "yolo_lightning"
    existing = next(path for path in (folder, *folder.absolute().parents) if os.path.exists(path))
    has_home = not str(folder).startswith("~")
    if has_home and existing.is_dir() and os.access(existing, os.W_OK | os.X_OK):
        return folder
    return _temporary_cache(folder)


@cache
def _temporary_cache(folder: Path) -> Path:
    """Return a cache folder of this user among the temporary files, which replaces `folder`.

    Raises:
        UserError: If another user has created the folder, and could change what it contains.
    """
    temporary = Path(os.environ.get(TEMPORARY_VARIABLE) or tempfile.gettempdir()) / f"yolo_lightning-{os.getuid()}"
    with suppress(FileExistsError):
        temporary.mkdir(mode=0o700)
    status = temporary.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise UserError(
            f"{folder} cannot be written, and {temporary} is not a folder that only this user can write; set the "
            "environment variable XDG_CACHE_HOME to a folder that can be written"
        )
    message = f"{folder} cannot be written: {temporary} is used as cache; XDG_CACHE_HOME sets another folder"
    warnings.warn(message, stacklevel=3)
    return temporary


def first_free(base: Path, ending: str = "", is_taken: Callable[[Path], bool] = Path.exists) -> Path:
    """Return the first of `base`, `base-2`, `base-3`, ..., each followed by `ending`, that is not taken."""
    path = base.with_name(base.name + ending)
    number = 1
    while is_taken(path):
        number += 1
        path = base.with_name(f"{base.name}-{number}{ending}")
    return path


def remove_leftovers(folder: Path) -> None:
    """Delete the temporary files and folders of killed processes, whose names contain the mark of the process."""
    for path in folder.glob(f"{TEMPORARY_PREFIX}*"):
        with suppress(OSError):
            mark = re.search(MARK, path.name)
            lives = None if mark is None else owner_lives(mark)
            if lives is None:
                lives = time.time() < path.lstat().st_mtime + LONGEST_WRITE_S
            if not lives:
                remove(path)


def remove(path: Path) -> None:
    """Delete a file or a folder with its content."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def temporary_prefix() -> str:
    """Return the beginning of the names of this process's temporary files, for `remove_leftovers`."""
    return f"{TEMPORARY_PREFIX}{own_mark() or os.getpid()}-"


@contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """Yield the path of a temporary file or folder beside `path`, to be written in the block.

    If the block succeeds, the file is flushed to the disk and renamed to `path`; else it is deleted. The block flushes
    the files of a folder. Without `durable` nothing is flushed: a power cut can lose the file, and a busy disk does not
    delay the caller. The first file that a process writes into a folder removes what killed processes have left there.
    """
    temporary = path.with_name(f"{temporary_prefix()}{path.name}.part")
    with during(Activity.WRITE):
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
            if temporary.is_dir():
                shutil.rmtree(temporary, ignore_errors=True)  # the error of the block is the one to report
            else:
                temporary.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Write a file atomically (see `replacing`), and create its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, durable=durable) as temporary:
        temporary.write_bytes(content)


def write_json(
    path: Path, content: Any, *, indent: int | None = 2, allow_nan: bool = True, durable: bool = True
) -> None:
    """Write a JSON file atomically (see `replacing`); without `allow_nan`, non-finite numbers raise a ValueError."""
    with replacing(path, durable=durable) as temporary:
        temporary.write_text(json.dumps(content, indent=indent, allow_nan=allow_nan) + "\n")


def flush(path: Path) -> None:
    """Write the content of a file or the names in a folder to the disk.

    A file system that cannot flush folders, such as some network mounts, is not an error.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in NOT_FLUSHABLE or not path.is_dir():
            raise
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
            raise UserError(
                f"process {file.read().strip() or '(unknown)'} is writing into {lock.parent}; wait until it has ended"
            ) from error
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield
