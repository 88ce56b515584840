"""Suggestion of the name that was probably meant. Standard library only."""

from collections.abc import Collection
from difflib import get_close_matches


def similar(text: str, choices: Collection[str], most: int = 1, cutoff: float = 0.6) -> list[str]:
    """Return at most `most` choices whose similarity to a text is at least `cutoff`, the most similar first."""
    return get_close_matches(text, choices, most, cutoff)


def did_you_mean(names: Collection[str]) -> str:
    """Return the end of an error message: a question that suggests the names, or a full stop without names."""
    return f". Did you mean {' or '.join(names)}?" if names else "."
