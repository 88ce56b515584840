"""Paths that a user has written, without errors for what no file system can resolve. Standard library only."""

import os
import re
from glob import escape
from pathlib import Path
from unicodedata import normalize

from yolo_lightning.errors import UserError


def literal_folders(pattern: str | os.PathLike[str]) -> str:
    """Return a glob pattern in which the leading folders that exist are taken literally, such as `shots [1]/*.jpg`."""
    path = Path(pattern)
    folder = next((parent for parent in path.parents if os.path.isdir(parent)), None)
    if folder is None:
        return str(path)
    return os.path.join(escape(str(folder)), path.relative_to(folder))


def user_path(text: str | os.PathLike[str]) -> Path:
    """Return a path with the home folder in place of `~`.

    Unlike `Path.expanduser`, a user without a home folder (`~nobody`) is no error: the file does not exist.
    """
    return Path(os.path.expanduser(text))


def has_drive(path: str) -> bool:
    """Whether a path begins with the letter of a drive of Windows, such as `C:/data`."""
    return re.match(r"[A-Za-z]:[\\/]", path) is not None


def unicode_forms(text: str) -> list[str]:
    """Return a text as it is, composed (NFC) and decomposed (NFD), without repetitions.

    macOS and archives that are written there decompose a letter with its accents; most other programs compose them.
    """
    if text.isascii():
        return [text]
    return list(dict.fromkeys((text, normalize("NFC", text), normalize("NFD", text))))


def existing_form(folder: str | os.PathLike[str], name: str) -> str:
    """Return the first of the `unicode_forms` of a name that exists in a folder; the name itself if none does."""
    if name.isascii():
        return name
    return next((form for form in unicode_forms(name) if os.path.lexists(os.path.join(folder, form))), name)


def shortened(name: str, most_bytes: int) -> str:
    """Return the longest beginning of a file name that has at most `most_bytes` bytes and consists of characters."""
    end = len(name)
    while len(os.fsencode(name[:end])) > most_bytes:
        end -= 1
    return name[:end]


def real_path(path: Path) -> Path:
    """Return the absolute path without symbolic links; a loop of links, an error in `Path.resolve`, stays as it is."""
    return Path(_resolved(os.fspath(path)))


def _resolved(path: str) -> str:
    try:
        return os.path.realpath(path)
    except ValueError:  # a null character, which the name of a file cannot contain
        return os.path.abspath(path)


def plain_path(path: str | os.PathLike[str]) -> str:
    """Return the absolute path without `.` and `..`; behind a link to a folder, `..` is the parent of its target.

    Other links are kept, so that a file has a path for each of its links.
    """
    absolute = os.path.join(os.getcwd(), os.fspath(path))
    folder, name = os.path.split(absolute)
    plain = os.path.normpath(absolute)
    if os.pardir not in folder.split(os.sep) or _resolved(os.path.dirname(plain)) == _resolved(folder):
        return plain
    return os.path.join(_resolved(folder), name)


def require_working_folder() -> None:
    """Raise a UserError if the working folder has been deleted: then no library of torch can be loaded."""
    try:
        os.getcwd()
    except FileNotFoundError as error:
        raise UserError("the working folder has been deleted: change into a folder that exists") from error
