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


def files_left_out(contents: Sequence[FolderContent], accepted: Set[str]) -> list[str]:
    """Return a line about each kind of file and folder below folders of files with `accepted` suffixes."""
    files = [file for content in contents for file in content.files() if suffix(file) not in accepted]
    return [*other_files(files), *unusable_files(contents, accepted)]


def unusable_files(contents: Sequence[FolderContent], accepted: Set[str]) -> list[str]:
    """Return a line about each kind of file and folder that is left out whatever its suffix is."""
    hidden_files: list[str] = []
    hidden_folders: list[str] = []
    special_files: list[str] = []
    closed_folders: list[str] = []
    unfollowed_links: list[str] = []
    for content in contents:
        hidden_files += [file for file in content.hidden_files if suffix(file) in accepted]
        hidden_folders += content.hidden_folders
        special_files += [file for file in content.special if suffix(file) in accepted]
        closed_folders += content.closed
        unfollowed_links += content.unfollowed
    groups = {
        "hidden files (names that begin with a dot)": hidden_files,
        "hidden folders (names that begin with a dot)": hidden_folders,
        "pipes, devices or sockets": special_files,
        "folders without permission to list them": closed_folders,
        "links to folders that contain the link, or that are linked several times": unfollowed_links,
    }
    return [counted(len(set(paths)), what, paths[0]) for what, paths in groups.items() if paths]
