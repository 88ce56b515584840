"""Suggestion of the name that was probably meant. Standard library only."""

import os
from collections.abc import Collection
from difflib import get_close_matches
from pathlib import Path


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
    other = "is a folder, not a file" if os.path.isdir(path) else "is a pipe, a device or a broken link"
    problem = "is not a folder" if os.path.isfile(path) else other if os.path.lexists(path) else "does not exist"
    return f"{problem}{did_you_mean([known[one] for one in similar(path.name, known, cutoff=0.72)])}"
