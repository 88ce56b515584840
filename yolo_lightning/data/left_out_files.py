"""Selection of the images below a folder, and one sentence about every kind of file that is left out."""

from collections import Counter
from collections.abc import Iterable, Sequence, Set

from yolo_lightning.utils.plain_text import one_line
from yolo_lightning.utils.regular_files import FolderContent

LONGEST_SUFFIX = 12  # Characters of a suffix in a message
NAMED_SUFFIXES = 8
LONGEST_EXAMPLE = 300


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


def unusable_files(contents: Sequence[FolderContent], accepted: Set[str]) -> list[str]:
    """Return a line about each kind of file and folder that is left out whatever its suffix is."""
    groups: dict[str, list[str]] = {
        "hidden files (names that begin with a dot)": [],
        "hidden folders (names that begin with a dot)": [],
        "pipes, devices or sockets": [],
        "folders without permission to list them": [],
        "links to folders that contain the link, or that are linked several times": [],
    }
    for content in contents:
        hidden_files = [file for file in content.hidden_files if suffix(file) in accepted]
        special_files = [file for file in content.special if suffix(file) in accepted]
        parts = (hidden_files, content.hidden_folders, special_files, content.closed, content.unfollowed)
        for paths, part in zip(groups.values(), parts, strict=True):
            paths += part
    return [counted(len(set(paths)), what, paths[0]) for what, paths in groups.items() if paths]
