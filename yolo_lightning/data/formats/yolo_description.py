"""Reader of `data.yaml`, with the rules of Ultralytics 8.4 (`check_det_dataset`) except for downloads."""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from glob import has_magic
from pathlib import Path
from typing import Any, Literal, get_args

from yolo_lightning.data.formats.annotations import distinct_names
from yolo_lightning.data.input_settings import Channels
from yolo_lightning.errors import UserError
from yolo_lightning.utils.paths import existing_form, has_drive, plain_path, real_path, user_path
from yolo_lightning.utils.plain_text import one_line
from yolo_lightning.utils.suggestions import did_you_mean, missing, similar
from yolo_lightning.utils.yaml_file import read_yaml

Key = Literal["train", "val", "test"]
FILE_NAME = "data.yaml"
KEYS = ("path", *get_args(Key), "names", "nc", "channels", "kpt_shape")
OTHER_KEYS = {"classes": "names", "class_names": "names", "labels": "names", "validation": "val", "valid": "val"}
TEXT_KEYS = ("path", *get_args(Key), "names")  # Keys of folders, lists and class names, which may look like numbers
MOST_CLASSES = 32_767  # class indexes are stored with 16 bits
MOST_KEYPOINTS = 10_000
NAMES_FORM = "as names: [person, car]"
SHOWN_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class DataDescription:
    """Content of a `data.yaml`."""

    file: Path
    root: Path  # Folder that image names are relative to
    entries: Mapping[Key, tuple[str, ...]]  # Folders and image lists of each split, as in the file
    names: Mapping[int, str]  # Class names by number, 0 first, as in the file
    channels: Channels | None = None  # None if the file does not define it
    keypoint_columns: int = 0  # Number of keypoint columns after each box

    @property
    def class_names(self) -> tuple[str, ...]:
        """Different names of the classes, index 0 first."""
        return tuple(distinct_names(self.names).values())

    def places(self, key: Key) -> list[Path]:
        """Return the existing folders and image lists of a split, as absolute paths that may be links.

        A superfluous leading `../` is ignored.
        """
        places = []
        for entry in self.entries[key]:
            entry = existing_form(self.root, _with_slashes(entry))
            tried = [self.root / user_path(entry)]
            if entry.startswith("../"):
                tried.append(self.root / entry.removeprefix("../"))
            place = next((path for path in tried if os.path.exists(path)), None)
            if place is None:
                places_tried = " and ".join(_shown(str(path)) for path in tried)
                _, _, suggestion = missing(tried[0]).partition(". ")
                if has_magic(entry):
                    suggestion = "Patterns are not read: name the folder of the images, or a .txt list of images."
                raise UserError(
                    f"{self.file}: '{key}' is {_shown(entry)}, which does not exist (tried {places_tried}). "
                    f"{suggestion}{' ' * bool(suggestion)}{remedy(entry)}"
                )
            places.append(Path(plain_path(place)))
        return places


def description_file(path: Path) -> Path:
    """Return the data.yaml in a folder, and any other path unchanged."""
    if os.path.isdir(path):
        return path / FILE_NAME
    return path


def read_description(file: Path, root: Path | None = None) -> DataDescription:
    """Read and check a `data.yaml`, given its path or folder; `root` replaces the `path` in the file."""
    file = description_file(file)
    try:
        content = read_yaml(file, text_keys=TEXT_KEYS)
    except FileNotFoundError as error:
        raise UserError(f"data.format {file} {missing(file)}") from error
    except (OSError, UserError) as error:
        raise UserError(f"data.format {file} cannot be read as YAML: {one_line(str(error))}") from error
    if not isinstance(content, dict):
        raise UserError(f"data.format {file} is not a data.yaml: it must have keys such as 'train', 'val' and 'names'")
    for key in content.keys() - KEYS:
        meant = [OTHER_KEYS.get(name, name) for name in similar(str(key).lower(), [*KEYS, *OTHER_KEYS])]
        meant = [name for name in meant if name not in content]
        if meant:
            raise UserError(f"{file}: the key {_shown(str(key))} is unknown{did_you_mean(meant)}")
    if root is None:
        root = _find_root(file, content.get("path"), [content[key] for key in get_args(Key) if key in content])
    entries = _entries(file, content)
    if "train" not in entries and "val" not in entries:
        raise UserError(f"{file} must have the key 'train' or 'val'")
    channels = content.get("channels")
    if channels not in (None, *get_args(Channels)):
        raise _refused(file, "channels", "one of 1, 3", channels)
    return DataDescription(
        file=real_path(file),
        root=real_path(root),
        entries=entries,
        names=class_names(file, content.get("names"), content.get("nc")),
        channels=channels,
        keypoint_columns=_keypoint_columns(file, content.get("kpt_shape")),
    )


def _form_of(names: object) -> str:
    """Return how class names that are written as one text are written as a list."""
    texts = []
    if isinstance(names, str):
        texts = [name.strip() for name in re.split(r"[,;]", names) if name.strip()]
    if not texts:
        return NAMES_FORM
    return _shown(f"as names: [{', '.join(texts)}]")


def _entries(file: Path, content: Mapping[str, Any]) -> dict[Key, tuple[str, ...]]:
    """Return the folders and image lists of each split."""
    entries: dict[Key, tuple[str, ...]] = {}
    for key in get_args(Key):
        value = content.get(key)
        if value is None:
            continue
        parts: list[Any] = value if isinstance(value, list) else [value]
        if not parts or not all(isinstance(part, str) and part for part in parts):
            raise _refused(file, key, "a folder, a .txt list of images, or a list of them", value)
        entries[key] = tuple(parts)
    return entries


def _keypoint_columns(file: Path, shape: Any) -> int:
    """Return the number of keypoint columns: keypoints times numbers per keypoint; 0 without keypoints."""
    if shape is None:
        return 0
    if not isinstance(shape, list) or [type(number) for number in shape] != [int, int]:
        is_valid = False
    else:
        is_valid = 0 <= min(shape) <= max(shape) <= MOST_KEYPOINTS
    if not is_valid:
        raise _refused(file, "kpt_shape", f"a list of two integers from 0 to {MOST_KEYPOINTS}", shape)
    return int(shape[0] * shape[1])


def _refused(file: Path, key: str, accepted: str, value: object) -> UserError:
    return UserError(f"{file}: '{key}' must be {accepted}, got {_shown(repr(value))}")


def _shown(text: str) -> str:
    return one_line(text, SHOWN_CHARACTERS)


def _find_root(file: Path, path: object, entries: Iterable[object]) -> Path:
    """Return the dataset folder: `path` relative to the folder of the file, else to the working folder.

    `entries` are the places of the splits, for the message about a `path` that does not exist.
    """
    if path is None or path == "":
        return file.parent
    if not isinstance(path, str):
        raise _refused(file, "path", "a folder", path)
    folders = (file.parent, Path.cwd())
    tried = [folder / user_path(existing_form(folder, _with_slashes(path))) for folder in folders]
    for folder in tried:
        if os.path.isdir(folder):
            return folder
    places_tried = " and ".join(_shown(str(folder)) for folder in dict.fromkeys(tried))
    advice = remedy(path)
    if not has_drive(path) and any(os.path.exists(file.parent / str(entry)) for entry in entries):
        advice = "The images are beside this file: remove 'path'"
    raise UserError(f"{file}: 'path' is {_shown(path)}, which is not a folder (tried {places_tried}). {advice}")


def remedy(path: str) -> str:
    """Return what to do about a path in a dataset that does not exist."""
    if has_drive(path):
        return (
            "A path with the letter of a drive is one of Windows: replace its beginning by the folder on this machine"
        )
    return (
        "Nothing is downloaded, and Ultralytics' setting datasets_dir is not used: correct 'path' (relative to this "
        "file, or absolute), or set data.root"
    )


def _with_slashes(path: str) -> str:
    """Return a path with `/` between folders, also if it was written on Windows."""
    return path.replace("\\", "/")


def class_names(file: Path, names: object, count: Any) -> dict[int, str]:
    """Return the class names by number, 0 first; `class_0`, `class_1`, ... if only their number is given."""
    if count is not None and not (type(count) is int and 1 <= count <= MOST_CLASSES):
        raise _refused(file, "nc", f"an integer from 1 to {MOST_CLASSES}", count)
    if names is None:
        if count is None:
            raise UserError(f"{file} must have the key 'names' or 'nc', {NAMES_FORM}")
        return {index: f"class_{index}" for index in range(count)}
    if not isinstance(names, list | dict) or not 0 < len(names) <= MOST_CLASSES:
        raise _refused(file, "names", f"a list, or names by class number, {_form_of(names)}", names)
    by_key = dict(enumerate(names)) if isinstance(names, list) else names
    if not all(isinstance(name, str) and name.strip() for name in by_key.values()):
        accepted = f"texts, {NAMES_FORM}"
        if None in by_key.values():
            accepted = "texts, with quotes around null"
        raise _refused(file, "names", accepted, names)
    try:
        by_number = {int(key): name for key, name in by_key.items()}
    except (TypeError, ValueError, OverflowError):
        by_number = {}
    if sorted(by_number) != list(range(len(names))):
        got = f"{_shown(repr(list(names)))}; write {NAMES_FORM}"
        raise UserError(f"{file}: the keys of 'names' must be 0 to {len(names) - 1}, got {got}")
    if count not in (None, len(names)):
        raise UserError(f"{file}: 'nc' must be {len(names)}, the number of 'names', got {count}")
    return dict(sorted(by_number.items()))
