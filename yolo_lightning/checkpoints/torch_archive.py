"""Reading of archives of torch.save of unknown origin: no code runs, and no more memory is used than the file has."""

import os
import pickle
import struct
import zipfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import IO, Any, Literal

from yolo_lightning.errors import UserError
from yolo_lightning.utils.choices import check_types
from yolo_lightning.utils.plain_text import first_look, one_line
from yolo_lightning.utils.regular_files import open_regular

DICTIONARIES = ("state_dict", "hyper_parameters", "loops", "callbacks", "config", "input")
END_OF_ARCHIVE = b"PK\5\6" + bytes(18)
"""Last record of a zip archive without a comment."""

PARTS = {
    **dict.fromkeys(("epoch", "global_step", "steps"), int),
    **dict.fromkeys((*DICTIONARIES, "accumulation", "nonfinite", "splitting", "recipe"), dict),
    "optimizer_states": list[dict[str, Any]],
}
"""Types of the parts of a checkpoint of `YOLOModule`."""
HYPERPARAMETERS = {"class_names": list[str], "variant": str, "class_width": int | None, "detections": dict}


def load_checkpoint(path: Path, map_location: Literal["cpu", "meta"] = "cpu") -> dict[str, Any]:
    """Return the content of a checkpoint of `YOLOModule`; "meta" reads no tensors.

    Raises:
        UserError: If the file is damaged, contains other objects, is no dictionary, or has parts of other types.
    """
    try:
        check_archive(path)
    except UserError as error:
        raise UserError(f"checkpoint {path} cannot be loaded: {error}") from error
    import torch  # `outline` is read before torch is imported

    try:
        content = torch.load(path, map_location=map_location, weights_only=True)
    except Exception as error:  # torch.load raises errors of many types on a damaged file, also MemoryError
        problem = reason(error)
        names = ", ".join(unsafe_globals(path)[:3])
        if names:
            problem = (
                f"it contains {names}; only tensors and plain Python are read, and Ultralytics' .pt files as weights"
            )
        raise UserError(f"checkpoint {path} cannot be loaded: {problem}") from error
    if not isinstance(content, dict):
        raise UserError(f"checkpoint {path} must contain a dictionary, got {type(content).__name__}")
    check_parts(content, f"checkpoint {path}")
    return content


def check_parts(content: Mapping[str, Any], origin: str) -> None:
    """Raise a UserError if a part of a checkpoint of `YOLOModule` has another type; missing parts are not checked."""
    try:
        check_types("checkpoint", PARTS, content)
        check_types("checkpoint.hyper_parameters", HYPERPARAMETERS, content.get("hyper_parameters", {}))
        if content.get("state_dict") == {}:
            raise UserError("checkpoint.state_dict must contain tensors, got none")
        for state in content.get("optimizer_states", ()):
            if not {"state", "param_groups"} <= set(state):
                raise UserError(
                    f"checkpoint.optimizer_states must have the keys state and param_groups, got {list(state)}"
                )
    except UserError as error:
        raise UserError(f"{origin} is damaged: {error}; use another checkpoint") from None


def check_module(content: Mapping[str, Any], origin: str) -> None:
    """Raise a UserError if a checkpoint was saved with another module than `YOLOModule`."""
    names = content.get("state_dict")
    if names and not any(name.startswith("graph.") for name in names):
        raise UserError(f"{origin} contains no network of YOLOModule: another module was saved")


def check_tensors(
    tensors: Mapping[str, Any],
    origin: str,
    expected: Mapping[str, Any] | None = None,
    network: str = "model.variant",
) -> None:
    """Raise a UserError if tensors of a file are not finite, or have other names or shapes than those `expected`.

    `network` names the network with the expected tensors.
    """
    import torch

    if expected is not None:
        for name in sorted(tensors.keys() | expected.keys(), key=str):
            is_in_both = name in tensors and name in expected
            if not is_in_both or getattr(tensors[name], "shape", None) != expected[name].shape:
                raise UserError(f"{origin} does not fit {network}: tensor {name} is missing or has another shape")
    for name, tensor in tensors.items():
        if isinstance(tensor, torch.Tensor) and not tensor.isfinite().all():
            raise UserError(f"{origin} cannot be used: its tensor {name} contains NaN or infinity; use an older file")


def check_archive(path: Path) -> None:
    """Raise a UserError unless a file is a zip archive of uncompressed members, as torch.save writes it."""
    try:
        with open_regular(path) as file:
            head = file.read(64)
            members = zipfile.ZipFile(file).infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError, EOFError) as error:
        problem = f"it {first_look(head)}" if isinstance(error, zipfile.BadZipFile) else reason(error)
        raise UserError(f"it is not an archive of torch.save: {problem}") from error
    if not any(member.filename.endswith("/data.pkl") for member in members):
        raise UserError("it is not an archive of torch.save, which contains data.pkl, but another zip archive")
    for member in members:
        if member.compress_type != zipfile.ZIP_STORED:
            raise UserError(
                f"its member {member.filename!r} is compressed, as in TorchScript; torch.save never does this"
            )
    if sum(member.file_size for member in members) > path.stat().st_size:
        raise UserError("its members overlap or are incomplete")


def archive_damage(path: Path, *, must_have_checksums: bool) -> str | None:
    """Return why the bytes of an archive of torch.save are wrong, by the checksums within the archive; else None.

    torch writes 0 in place of the checksums where they are switched off (`torch.serialization.set_crc32_options`).
    """
    try:
        check_archive(path)
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                if member.CRC:
                    archive.read(member)  # raises a BadZipFile if the checksum does not match
                elif must_have_checksums:
                    return f"its member {member.filename!r} has no checksum"
                if _padding(file, member).strip(b"Z"):
                    return f"the padding of its member {member.filename!r} is damaged"
            file.seek(-len(END_OF_ARCHIVE), os.SEEK_END)
            if not file.read().startswith(END_OF_ARCHIVE[:4]):
                return "it has further bytes after its end"
    except UserError as error:
        return str(error)
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError, ValueError) as error:
        return reason(error)
    return None


def _padding(file: IO[bytes], member: zipfile.ZipInfo) -> bytes:
    """Return the bytes, all Z, by which torch aligns the content of a member; empty in archives of other programs."""
    file.seek(member.header_offset + 26)
    name_length, extra_length = struct.unpack("<HH", file.read(4))
    file.seek(name_length, os.SEEK_CUR)
    extra = file.read(extra_length)
    if not extra.startswith(b"FB"):
        return b""
    return extra[4:]


class _Placeholder:
    """Stands for every object of a pickle that is not plain Python."""

    def __new__(cls, *arguments: Any, **options: Any) -> "_Placeholder":
        return super().__new__(cls)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def extend(self, items: Any) -> None:
        pass

    append = add = extend


class _OutlineUnpickler(pickle._Unpickler):
    """Reads plain Python and imports nothing. The implementation in C would allocate memory for any memo index."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        return _Placeholder

    def persistent_load(self, pid: Any) -> Any:
        return None


def outline(path: Path) -> dict[str, Any]:
    """Return the plain Python values of a checkpoint, with placeholders for all other objects; no code is imported.

    Raises:
        UserError: If the file is no archive of torch.save, or contains no dictionary.
    """
    check_archive(path)
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            name = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
            content = _OutlineUnpickler(BytesIO(archive.read(name))).load()
    except Exception as error:  # a damaged pickle raises errors of many types
        raise UserError(f"checkpoint {path} cannot be read: {reason(error)}") from error
    if not isinstance(content, dict):
        raise UserError(f"checkpoint {path} must contain a dictionary, got {type(content).__name__}")
    return content


def unsafe_globals(path: Path) -> list[str]:
    """Return the classes and functions in a file of torch.save; empty if they cannot be listed."""
    import torch

    try:
        return list(torch.serialization.get_unsafe_globals_in_checkpoint(path))
    except Exception:  # not an archive of torch.save, or a damaged one
        return []


def reason(error: BaseException) -> str:
    """Return the message of an error as one line of at most 300 characters, or the name of its type."""
    missing = "it has no key " if isinstance(error, KeyError) else ""
    return one_line(f"{missing}{error}", 300) or type(error).__name__
