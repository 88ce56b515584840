"""Reading of archives of torch.save of unknown origin: no code runs, and no more memory is used than the file has."""

import zipfile
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Literal

import torch

from yolo_lightning.utils.old_layout import current_checkpoint
from yolo_lightning.utils.plain_text import FIRST_BYTES, first_look, one_line
from yolo_lightning.utils.regular_files import open_regular


class OtherFileError(ValueError):
    """A file that `torch.save` has not written, or that contains no network."""


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
        names = unsafe_globals(path) if isinstance(error, UnpicklingError) else []
        hint = "; the name of an Ultralytics file must end in .pt" if "ultralytics" in str(names) else ""
        other = one_line(
            f"it contains objects of {', '.join(names[:3])} instead of tensors and plain Python{hint}", 300
        )
        raise ValueError(f"checkpoint {path} cannot be loaded: {other if names else reason(error)}") from error
    if not isinstance(content, dict):
        raise ValueError(f"checkpoint {path} must contain a dictionary, got {type(content).__name__}")
    return current_checkpoint(content)


def check_archive(path: Path) -> None:
    """Raise a ValueError unless a file is a zip archive of uncompressed members, as torch.save writes it."""
    try:
        with open_regular(path) as file:
            head = file.read(FIRST_BYTES)
            with zipfile.ZipFile(file) as archive:
                members = archive.infolist()
    except (ValueError, NotImplementedError, OSError, EOFError) as error:
        raise OtherFileError(f"it is not an archive of torch.save ({reason(error)})") from error
    except zipfile.BadZipFile as error:
        raise OtherFileError(f"it is not an archive of torch.save: it {first_look(head)}") from error
    kinds = {member.filename.partition("/")[2] for member in members}
    if "constants.pkl" in kinds or "data.pkl" not in kinds:
        kind = (
            "an export as TorchScript, which has no weights to load" if "constants.pkl" in kinds else "another zip file"
        )
        raise OtherFileError(f"it is not an archive of torch.save: it is {kind}")
    compressed = next((member.filename for member in members if member.compress_type != zipfile.ZIP_STORED), None)
    if compressed is not None:
        raise ValueError(f"its member {compressed!r} is compressed, which torch.save never does")
    if sum(member.file_size for member in members) > path.stat().st_size:
        raise ValueError("its members overlap or are incomplete")


def unsafe_globals(path: Path) -> list[str]:
    """Return the names of classes and functions in a pickle; empty if they cannot be listed."""
    try:
        return list(torch.serialization.get_unsafe_globals_in_checkpoint(path))
    except Exception:  # not an archive of torch.save, or a damaged one
        return []


def reason(error: BaseException) -> str:
    """Return the message of an error as one line of at most 300 characters, or the name of its type."""
    if isinstance(error, KeyError):
        return f"it has no key {error}"
    return one_line(str(error), 300) or type(error).__name__
