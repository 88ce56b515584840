"""JSON files that another process or another person may have written: limited in size, checked against a dataclass.

Standard library only, because the supervisor uses it.
"""

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from yolo_lightning.errors import UserError
from yolo_lightning.utils.plain_text import one_line
from yolo_lightning.utils.regular_files import read_regular

Record = TypeVar("Record")
LARGEST_BYTES = 64 << 20
LARGEST_INTEGER = 1 << 63


def read_json(path: Path, most_bytes: int = LARGEST_BYTES) -> Any:
    """Return the content of a JSON file; raise an OSError if it cannot be read, else a ValueError."""
    try:
        return json.loads(read_regular(path, most_bytes))
    except RecursionError as error:
        raise UserError("the JSON is nested too deeply") from error


def read_record(path: Path, kind: type[Record]) -> Record | None:
    """Return the content of a JSON file as a dataclass, or None if it is missing, damaged or of other types."""
    try:
        return cast(Record, converted(read_json(path), kind))
    except (OSError, ValueError, RecursionError):
        return None


def converted(value: Any, kind: Any) -> Any:
    """Return a JSON value as the annotated type `kind`; raise a ValueError if it does not have this type.

    `kind` is a dataclass, an enumeration, a union, `dict[str, ...]`, `tuple[..., ...]`, or a type of JSON. Numbers must
    be finite. Texts become one line without control characters, because they are shown in a terminal. Unknown keys of a
    dataclass are ignored; missing ones must have a default.
    """
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        return _of_union(value, get_args(kind))
    if kind in (NoneType, bool) and type(value) is kind:
        return value
    if is_dataclass(kind) and isinstance(kind, type) and isinstance(value, Mapping):
        return _of_dataclass(value, kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    if origin is tuple and isinstance(value, list):
        return tuple(converted(element, get_args(kind)[0]) for element in value)
    if origin is dict and isinstance(value, dict):
        return {one_line(name): converted(element, get_args(kind)[1]) for name, element in value.items()}
    if kind is str and isinstance(value, str):
        return one_line(value)
    if kind in (int, float) and type(value) in (int, kind) and abs(value) < LARGEST_INTEGER:  # not NaN
        return kind(value)
    raise UserError(f"must be {getattr(kind, '__name__', kind)}, got {type(value).__name__}")


def _of_union(value: Any, kinds: tuple[Any, ...]) -> Any:
    for kind in kinds:
        try:
            return converted(value, kind)
        except ValueError:
            continue
    raise UserError(f"must be one of {kinds}, got {type(value).__name__}")


def _of_dataclass(content: Mapping[str, Any], kind: type[Any]) -> Any:
    hints = get_type_hints(kind)
    values = {}
    for field in fields(kind):
        if field.name in content:
            values[field.name] = converted(content[field.name], hints[field.name])
        elif field.default is MISSING and field.default_factory is MISSING:
            raise UserError(f"{field.name} is missing")
    return kind(**values)
