"""Selection of the images below a folder, and one sentence about every kind of file that is left out."""

from collections import Counter
from collections.abc import Iterable, Sequence, Set

from yolo_lightning.utils.plain_text import one_line
from yolo_lightning.utils.regular_files import FolderContent

LONGEST_SUFFIX = 12  # Characters of a suffix in a message
NAMED_SUFFIXES = 8
LONGEST_EXAMPLE = 300

UNUSABLE = {
    "hidden_files": "hidden files (names that begin with a dot)",
    "hidden_folders": "hidden folders (names that begin with a dot)",
    "special": "pipes, devices or sockets",
    "closed": "folders without permission to list them",
    "unfollowed": "links to folders that contain the link, or that are linked several times",
}
"""Descriptions of the files and folders that are left out, by their attribute of `FolderContent`."""


def suffix(file: str) -> str:
    """Return the suffix of a file name in lower case, with its dot; empty without a suffix."""
    name = file[file.rfind("/") + 1 :]
    start = name.rfind(".")
    return name[start:].lower() if start > 0 else ""


def counted(count: int, what: str, example: str) -> str:
    """Return a number, what was counted and an example in one line."""
    return f"{count:,} {what}, such as {one_line(example, LONGEST_EXAMPLE)}"


def by_suffix(files: Iterable[str]) -> list[str]:
    """Return the number of files with each suffix, the most frequent first."""
    suffixes = Counter(map(suffix, files))
    frequent = suffixes.most_common(NAMED_SUFFIXES)
    counts = [f"{count:,} {one_line(name, LONGEST_SUFFIX) or 'without suffix'}" for name, count in frequent]
    if len(suffixes) > NAMED_SUFFIXES:
        counts.append("others")
    return counts


def other_files(files: Sequence[str]) -> list[str]:
    """Return the line about files that are left out because of their suffix; no line without files."""
    if not files:
        return []
    return [counted(len(files), f"files with other suffixes ({', '.join(by_suffix(files))})", files[0])]


def files_left_out(contents: Sequence[FolderContent], accepted: Set[str]) -> list[str]:
    """Return a line about each kind of file and folder below folders of files with `accepted` suffixes."""
    files = [file for content in contents for file in content.files() if suffix(file) not in accepted]
    return [*other_files(files), *unusable_files(contents, accepted)]


def unusable_files(contents: Sequence[FolderContent], accepted: Set[str]) -> list[str]:
    """Return a line about each kind of file and folder that is left out whatever its suffix is."""
    lines = []
    for kind, description in UNUSABLE.items():
        paths = [path for content in contents for path in getattr(content, kind)]
        if kind in ("hidden_files", "special"):
            paths = [path for path in paths if suffix(path) in accepted]
        if paths:
            lines.append(counted(len(set(paths)), description, paths[0]))
    return lines
