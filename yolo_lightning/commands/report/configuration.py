"""The configuration of a run as text that may be shown to others."""

from pathlib import Path
from typing import Any

import yaml

SECRET = "notify"
"""Section whose addresses are as good as passwords."""

HIDDEN = "(not shown)"


def readable_configuration(path: Path) -> str:
    """The file's text; addresses for messages are left out, names of environment variables stay.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it is no YAML.
    """
    return yaml.safe_dump(without_secrets(load(path)), sort_keys=False, allow_unicode=True, width=100)


def batch_size(path: Path) -> int | None:
    """Frames of a step; None where the file does not say.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it is no YAML.
    """
    content = load(path)
    data = content.get("data") if isinstance(content, dict) else None
    size = data.get("batch_size") if isinstance(data, dict) else None
    return size if isinstance(size, int) else None


def load(path: Path) -> Any:
    """The file's content.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it is no YAML.
    """
    try:
        return yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise ValueError(f"no YAML ({str(error).splitlines()[0]})") from error


def without_secrets(content: Any, *, is_secret: bool = False) -> Any:
    """The same with the addresses of `notify` hidden, also within lists."""
    if isinstance(content, dict):
        return {name: without_secrets(value, is_secret=is_secret or name == SECRET) for name, value in content.items()}
    if isinstance(content, list):
        return [without_secrets(value, is_secret=is_secret) for value in content]
    return HIDDEN if is_secret and isinstance(content, str) and not content.startswith("$") else content
