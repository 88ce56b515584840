"""Reading and listing of regular files only: a FIFO blocks its reader forever, a device never ends.

Standard library only.
"""

import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from glob import escape, glob
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from yolo_lightning.utils.paths import literal_folders

LARGEST_BYTES = 256 << 20
RECURSIVE = "**"  # Part of a glob pattern: any folders


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


def file_stamp(path: Path | str) -> tuple[int, int, int, int]:
    """Return what changes with the content of a file: bytes, times of change of content and inode in ns, inode.

    Tools such as `rsync -t`, `unzip` and `git-restore-mtime` set the time of the content, but not that of the inode.

    Raises:
        OSError: If there is no such file.
    """
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


@dataclass(frozen=True, slots=True)
class FolderContent:
    """Paths of everything below a folder, by what it is."""

    names: dict[str, list[str]] = field(default_factory=dict)  # Names of the files in each folder, see `files`
    linked: set[str] = field(default_factory=set)  # Those of `files` that are links, or are below a linked folder
    hidden_files: list[str] = field(default_factory=list)  # Files whose name begins with a dot
    hidden_folders: list[str] = field(default_factory=list)
    special: list[str] = field(default_factory=list)  # Pipes, devices and sockets
    closed: list[str] = field(default_factory=list)  # Folders that this user must not list
    unfollowed: list[str] = field(default_factory=list)  # Links to folders that would never end

    def files(self) -> Iterator[str]:
        """Yield the path of each regular file, of each link to one, and of each link without a target."""
        for folder, names in self.names.items():
            for name in names:
                yield os.path.join(folder, name)


def list_folder(folder: Path | str, most_folders: int | None = None, *, skips_errors: bool = False) -> FolderContent:
    """Return everything below a folder; hidden folders, and further folders than `most_folders`, are not entered.

    Links are followed, so that files are listed once under each of their names. A link to a folder that contains it is
    not followed, and neither is a second link to the same folder below a linked folder: links among folders would
    otherwise give an exponential number of paths.

    Raises:
        OSError: If a folder cannot be listed for another reason than its permissions, such as a lost connection, unless
            `skips_errors`, with which it counts as one without permission.
    """
    content = FolderContent()
    start = os.fspath(folder)
    reached = {os.path.realpath(start)}
    # Path of a folder, its real path, and the real paths of the folders with the links on the way to it.
    waiting: list[tuple[str, str, tuple[str, ...]]] = [(start, os.path.realpath(start), ())]
    for path, real, jumps in islice(waiting, most_folders):
        entries = _entries(path, content, skips_errors=skips_errors)
        if entries is None:
            continue
        names = content.names.setdefault(path, [])
        for entry in entries:
            is_link = entry.is_symlink()
            if _is_file(entry):
                if entry.name.startswith("."):
                    content.hidden_files.append(entry.path)
                    continue
                names.append(entry.name)
                if is_link or jumps:
                    content.linked.add(entry.path)
                continue
            if not entry.is_dir():
                content.special.append(entry.path)
                continue
            if entry.name.startswith("."):
                content.hidden_folders.append(entry.path)
                continue
            target = os.path.join(real, entry.name)
            next_jumps = jumps
            if is_link:
                target = os.path.realpath(entry.path)
                next_jumps = (*jumps, real)
                is_circle = any(f"{place}{os.sep}".startswith(f"{target}{os.sep}") for place in next_jumps)
                if is_circle or (jumps and target in reached):
                    content.unfollowed.append(entry.path)
                    continue
            reached.add(target)
            waiting.append((entry.path, target, next_jumps))
    return content


def _entries(folder: str, content: FolderContent, *, skips_errors: bool) -> list[os.DirEntry[str]] | None:
    """Return the entries of a folder by name, None if it cannot be listed; `content` names it then."""
    try:
        with os.scandir(folder) as scanned:
            return sorted(scanned, key=lambda entry: entry.name)
    except FileNotFoundError:  # deleted since its parent was listed
        return None
    except OSError as error:
        if not skips_errors and not isinstance(error, PermissionError):
            raise
        content.closed.append(folder)
        return None


def matching_paths(pattern: str | os.PathLike[str], content: FolderContent | None = None) -> list[str]:
    """Return the paths that match a glob pattern, sorted; leading folders that exist are taken literally.

    `**` enters the folders that `list_folder` enters: `glob` never ends below two links to folders that contain them.
    Folders and links that are not entered are added to `closed` and `unfollowed` of `content`.
    """
    return sorted(_matches(literal_folders(pattern), FolderContent() if content is None else content))


def _matches(pattern: str, content: FolderContent) -> set[str]:
    parts = Path(pattern).parts
    if RECURSIVE not in parts:
        return set(glob(pattern))
    place = parts.index(RECURSIVE)
    rest = parts[place + 1 :] or ("*",)
    matches: set[str] = set()
    for start in glob(os.path.join(*parts[:place])) if place else [os.curdir]:
        if os.path.isdir(start):
            listed = list_folder(start, skips_errors=True)  # as in `glob`
            content.closed.extend(listed.closed)
            content.unfollowed.extend(listed.unfollowed)
            for folder in listed.names:
                matches |= _matches(os.path.join(escape(folder), *rest), content)
    return matches


def _is_file(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a regular file, a link to one, or a link without a target."""
    try:
        return entry.is_file() or not (entry.is_dir() or os.path.exists(entry.path))
    except OSError:  # links in a circle
        return True
