"""Reading files that may be damaged: what is wrong is collected, and the rest is read."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

Read = TypeVar("Read")


class Problems:
    """Collects what is damaged, while the rest is read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sentences: list[str] = []

    def attempt(self, path: Path, read: Callable[[Path], Read]) -> Read | None:
        """What `read` finds in a file; None, and a sentence about it, where it is damaged; None without a file."""
        try:
            return read(path)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error).removeprefix(f"{path} ")
            self.add(path, f"cannot be read: {type(error).__name__}: {reason}")
            return None

    def add(self, path: Path, sentence: str) -> None:
        """A sentence about a file."""
        self.sentences.append(f"{path.relative_to(self.folder)} {sentence}")


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it holds something else.
    """
    content = json.loads(path.read_text())
    if not isinstance(content, dict):
        raise ValueError(f"holds a {type(content).__name__}, not an object")
    return content


def is_number(value: Any) -> TypeGuard[float]:
    """Whether JSON gave a number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)
