"""Reading of archives of torch.save of unknown origin: no code runs, and no more memory is used than the file has."""

import zipfile
from pathlib import Path
from typing import Any, Literal

import torch

from yolo_lightning.utils.old_layout import current_checkpoint
from yolo_lightning.utils.plain_text import first_look, one_line
from yolo_lightning.utils.regular_files import open_regular


def load_checkpoint(path: Path, map_location: Literal["cpu", "meta"] = "cpu") -> dict[str, Any]:
    """Return the content of a checkpoint of tensors and plain Python objects; "meta" reads no tensors.

    The layout of earlier versions is converted to that of today.

    Raises:
        ValueError: If the file is damaged, contains other objects or is no dictionary.
    """
    try:
        check_archive(path)
        content = torch.load(path, map_location=map_location, weights_only=True)
    except Exception as error:  # torch.load raises errors of many types on a damaged file, also MemoryError
        names = ", ".join(unsafe_globals(path)[:3])
        why = f"it contains {names}; only tensors and plain Python are read, and Ultralytics' files are named .pt"
        raise ValueError(f"checkpoint {path} cannot be loaded: {why if names else reason(error)}") from error
    if not isinstance(content, dict):
        raise ValueError(f"checkpoint {path} must contain a dictionary, got {type(content).__name__}")
    return current_checkpoint(content)


def check_archive(path: Path) -> None:
    """Raise a ValueError unless a file is a zip archive of uncompressed members, as torch.save writes it."""
    try:
        with open_regular(path) as file:
            head = file.read(64)
            members = zipfile.ZipFile(file).infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError, EOFError) as error:
        known = f"it {first_look(head)}" if isinstance(error, zipfile.BadZipFile) else reason(error)
        raise ValueError(f"it is not an archive of torch.save: {known}") from error
    if not any(member.filename.endswith("/data.pkl") for member in members):
        raise ValueError("it is not an archive of torch.save, which contains data.pkl, but another zip archive")
    compressed = next((member.filename for member in members if member.compress_type != zipfile.ZIP_STORED), None)
    if compressed is not None:
        raise ValueError(f"its member {compressed!r} is compressed, as in TorchScript; torch.save never does this")
    if sum(member.file_size for member in members) > path.stat().st_size:
        raise ValueError("its members overlap or are incomplete")


def unsafe_globals(path: Path) -> list[str]:
    """Return the classes and functions in a file of torch.save; empty if they cannot be listed."""
    try:
        return list(torch.serialization.get_unsafe_globals_in_checkpoint(path))
    except Exception:  # not an archive of torch.save, or a damaged one
        return []


def reason(error: BaseException) -> str:
    """Return the message of an error as one line of at most 300 characters, or the name of its type."""
    missing = "it has no key " if isinstance(error, KeyError) else ""
    return one_line(f"{missing}{error}", 300) or type(error).__name__
