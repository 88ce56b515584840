"""The `data.yaml` of a YOLO dataset, read as Ultralytics 8.4 reads it (`check_det_dataset`), without its downloads."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from yolo_lightning.data.formats.annotations import distinct_names
from yolo_lightning.data.storage.frames import Channels

Key = Literal["train", "val", "test"]
KEYS: tuple[Key, ...] = ("train", "val", "test")
FILE_NAME = "data.yaml"


@dataclass(frozen=True, slots=True)
class DataDescription:
    """What a `data.yaml` says.

    Attributes:
        file: The file itself.
        root: Folder that image names are relative to.
        entries: Folders and image lists of each split that the file names, as written there.
        class_names: Index 0 first.
        channels: Number of channels, where the file says so.
        keypoint_columns: Columns of keypoints behind each box, 0 where there are none.
        download: What the file would have downloaded; nothing here does.
    """

    file: Path
    root: Path
    entries: Mapping[Key, tuple[str, ...]]
    class_names: tuple[str, ...]
    channels: Channels | None
    keypoint_columns: int
    download: str | None

    def places(self, key: Key) -> list[Path]:
        """The folders and image lists of a split.

        Raises:
            ValueError: If one does not exist; the message says where it was looked for.
        """
        return [resolve(self.file, self.root, key, entry) for entry in self.entries[key]]


def read_description(file: Path, root: Path | None = None) -> DataDescription:
    """Read and check a `data.yaml`.

    Args:
        file: The file, or a folder that holds one called `data.yaml`.
        root: Takes the place of the file's `path`; None takes what the file says.

    Raises:
        ValueError: If it cannot be read, lacks a key or contradicts itself; the message names the file.
    """
    file = file / FILE_NAME if file.is_dir() else file
    content = read_mapping(file)
    root = find_root(file, content.get("path")) if root is None else root
    entries: dict[Key, tuple[str, ...]] = {}
    for key in KEYS:
        value = content.get(key)
        if key == "val" and value is None:
            value = content.get("validation")
        if value is not None:
            entries[key] = tuple(parts_of(file, key, value))
    if "train" not in entries and "val" not in entries:
        raise ValueError(f"{file} names no images: neither 'train' nor 'val' is given")
    channels = content.get("channels")
    if channels not in (None, *get_args(Channels)):
        raise ValueError(f"{file}: channels is {channels!r}, allowed are 1 and 3")
    download = content.get("download")
    return DataDescription(
        file=file.resolve(),
        root=root.resolve(),
        entries=entries,
        class_names=class_names(file, content.get("names"), content.get("nc")),
        channels=channels,
        keypoint_columns=keypoint_columns(file, content.get("kpt_shape")),
        download=None if download is None else str(download),
    )


def read_mapping(file: Path) -> dict[str, Any]:
    """The file's keys.

    Raises:
        ValueError: If it is no YAML mapping.
    """
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8-sig"))
    except FileNotFoundError as error:
        raise ValueError(f"data.format {file} does not exist") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"data.format {file} cannot be read as YAML: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"data.format {file} is no data.yaml: expected are keys such as 'train', 'val' and 'names'")
    return content


def find_root(file: Path, path: object) -> Path:
    """The dataset's folder: `path`, relative to the file's folder, else to the working folder; else the file's folder.

    Raises:
        ValueError: If `path` is no text or no folder; the message says where it was looked for.
    """
    if path is None or path == "":
        return file.parent
    if not isinstance(path, str):
        raise ValueError(f"{file}: 'path' is {path!r}, expected is a folder")
    tried = [file.parent / Path(path).expanduser(), Path.cwd() / Path(path).expanduser()]
    for folder in tried:
        if folder.is_dir():
            return folder
    raise ValueError(
        f"{file}: 'path' {path} does not exist: looked for {' and '.join(map(str, dict.fromkeys(tried)))}; "
        "Ultralytics' setting datasets_dir is not read: write an absolute path, or give the folder with data.root"
    )


def parts_of(file: Path, key: str, value: object) -> list[str]:
    """The places that a split is made of.

    Raises:
        ValueError: If they are not text.
    """
    parts: list[Any] = value if isinstance(value, list) else [value]
    if not parts or not all(isinstance(part, str) and part for part in parts):
        raise ValueError(
            f"{file}: '{key}' is {value!r}, expected is a folder, a .txt list of images, or a list of them"
        )
    return parts


def resolve(file: Path, root: Path, key: str, part: str) -> Path:
    """An entry of a split as a path that exists; a superfluous `../` at its beginning is passed over.

    Raises:
        ValueError: If there is no such folder or file; the message says where it was looked for.
    """
    tried = [root / Path(part).expanduser()]
    if part.startswith("../"):
        tried.append(root / part.removeprefix("../"))
    for path in tried:
        if path.exists():
            return path.resolve()
    raise ValueError(
        f"{file}: '{key}' names {part}, which does not exist: looked for {' and '.join(map(str, tried))}; "
        "nothing is downloaded, and Ultralytics' setting datasets_dir is not read: correct 'path', or give data.root"
    )


def class_names(file: Path, names: object, count: object) -> tuple[str, ...]:
    """Names of the classes, index 0 first; `class_0`, `class_1`, ... where only their number is given.

    Raises:
        ValueError: If there are none, or names, their numbers and `nc` contradict one another.
    """
    number = None if count is None else whole_number(file, count)
    if names is None:
        if number is None:
            raise ValueError(f"{file} has neither 'names' nor 'nc'")
        return tuple(f"class_{index}" for index in range(number))
    if not isinstance(names, list | dict) or not names:
        raise ValueError(f"{file}: 'names' is {names!r}, expected is a list, or names by class number")
    pairs = list(enumerate(names)) if isinstance(names, list) else list(names.items())
    try:
        by_number = {int(index): str(name) for index, name in pairs}
    except (TypeError, ValueError) as error:
        raise ValueError(f"{file}: 'names' has the keys {list(names)}, expected are class numbers") from error
    if sorted(by_number) != list(range(len(names))):
        raise ValueError(
            f"{file}: 'names' has the class numbers {sorted(by_number)}, expected are 0 to {len(names) - 1}"
        )
    if number is not None and number != len(names):
        raise ValueError(f"{file}: 'nc' is {number}, but 'names' has {len(names)} entries")
    return tuple(distinct_names(dict(sorted(by_number.items()))).values())


def whole_number(file: Path, count: Any) -> int:
    """The number of classes.

    Raises:
        ValueError: If it is none.
    """
    try:
        number = float(count)
    except (TypeError, ValueError):
        number = 0.0
    if number < 1 or not number.is_integer():
        raise ValueError(f"{file}: 'nc' is {count!r}, allowed are whole numbers from 1")
    return int(number)


def keypoint_columns(file: Path, shape: object) -> int:
    """Columns that `kpt_shape` `[points, values per point]` stands for.

    Raises:
        ValueError: If it is not such a pair.
    """
    if shape is None:
        return 0
    if not (isinstance(shape, list) and len(shape) == 2 and all(type(size) is int and size > 0 for size in shape)):
        raise ValueError(f"{file}: 'kpt_shape' is {shape!r}, expected are two whole numbers")
    return int(shape[0]) * int(shape[1])
