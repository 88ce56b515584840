"""Suggestion of the name that was probably meant. Standard library only."""

import os
from collections.abc import Collection
from contextlib import suppress
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
    paths = {name: name for name in names}
    with suppress(OSError, ValueError):
        paths |= {name: str(path.with_name(name)) for name in os.listdir(path.parent) if name != path.name}
    problem = "does not exist"
    if os.path.isfile(path):
        problem = "is not a folder"
    elif os.path.isdir(path):
        problem = "is a folder, not a file"
    elif os.path.lexists(path):
        problem = "is a pipe, a device or a broken link"
    return problem + did_you_mean([paths[name] for name in similar(path.name, paths, cutoff=0.72)])
