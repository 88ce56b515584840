"""Suggestion of the name that was probably meant. Standard library only."""

import os
from collections.abc import Callable, Collection
from difflib import get_close_matches
from pathlib import Path

FOUND: tuple[tuple[Callable[[Path], bool], str], ...] = (
    (os.path.isfile, "is not a folder"),
    (os.path.isdir, "is a folder, not a file"),
    (os.path.exists, "is not a regular file"),
    (os.path.islink, "is a link to a file that does not exist"),
)
"""What a path is that exists but cannot be used; the first one applies."""


def similar(text: str, choices: Collection[str], most: int = 1, cutoff: float = 0.6) -> list[str]:
    """Return at most `most` choices whose similarity to a text is at least `cutoff`, the most similar first."""
    return get_close_matches(text, choices, most, cutoff)


def did_you_mean(names: Collection[str]) -> str:
    """Return the end of an error message: a question that suggests the names, or a full stop without names."""
    return f". Did you mean {' or '.join(names)}?" if names else "."


def missing(path: Path, names: Collection[str] = ()) -> str:
    """Return the end of the error for a missing file or folder: a similar name of `names` or of its folder, if any."""
    try:
        beside = {one: str(path.with_name(one)) for one in os.listdir(path.parent) if one != path.name}
    except (OSError, ValueError):
        beside = {}
    known = {name: name for name in names} | beside
    problem = next((what for is_kind, what in FOUND if is_kind(path)), "does not exist")
    return f"{problem}{did_you_mean([known[one] for one in similar(path.name, known, cutoff=0.72)])}"
