"""YOLO datasets: images in folders or lists, a label file per image, and a `data.yaml` with the splits."""

import os
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from yolo_lightning.data.formats.annotations import Annotations, still_images
from yolo_lightning.data.formats.dataset_format import DatasetFormat, DatasetSettings, Files
from yolo_lightning.data.formats.frame_checks import named
from yolo_lightning.data.formats.yolo_description import DataDescription, Key, read_description
from yolo_lightning.data.formats.yolo_labels import NO_LABELS, Labels, read_labels
from yolo_lightning.data.index.split_index import SplitIndex, open_packed
from yolo_lightning.data.index.splits import Split
from yolo_lightning.data.storage.folder_frames import ImageFiles
from yolo_lightning.data.storage.frames import IMAGE_SUFFIXES, Channels, FrameError, decode_frame
from yolo_lightning.data.storage.image_header import FrameLimits, open_image
from yolo_lightning.data.storage.storage import Storage, StorageKind
from yolo_lightning.errors import UserError
from yolo_lightning.utils.paths import user_path
from yolo_lightning.utils.plain_text import one_line
from yolo_lightning.utils.regular_files import open_regular, read_regular, regular_files

IMAGES, LABELS = f"{os.sep}images{os.sep}", f"{os.sep}labels{os.sep}"

UNKNOWN_SHAPE = (1, 1)  # Height and width of a damaged image, which is counted as a bad frame when its pixels are read
LARGEST_LIST = 1 << 30  # Bytes of a list of images
SPLIT_FILES = ("train", "valid", "test", "predict")  # Names of `Files` that a data.yaml replaces
READERS = 8  # Number of threads that read label files and headers: they mostly wait for the disk

ORIENTATION = 0x0112  # EXIF tag of the camera's orientation
TURNED = frozenset({5, 6, 7, 8})  # Orientations that exchange rows and columns


class YoloFormat(DatasetFormat):
    """Images and label files of a `data.yaml`; `data.split.valid_share` of `train` replaces `val`."""

    accepted = "the path of a data.yaml"

    def __init__(self, settings: DatasetSettings) -> None:
        super().__init__(settings)
        usual = Files()
        for name in SPLIT_FILES:
            if (value := getattr(settings.files, name)) not in (None, getattr(usual, name)):
                raise UserError(
                    f"data.files.{name} must not be set with data.format {settings.format}, which names the splits, "
                    f"got {value}"
                )
        self.description = read_description(user_path(settings.format), settings.root)
        self.root = self.description.root
        self.class_names = self.description.class_names
        self.category_ids = tuple(range(len(self.class_names)))
        self.channels = self.description.channels

    @classmethod
    def accepts(cls, value: str) -> bool:
        path = user_path(value)
        return path.suffix in (".yaml", ".yml") or path.is_dir()

    def name(self, split: Split) -> str:
        return f"{self.description.file.name} {self._key(split)}"

    def origin(self, split: Split) -> str:
        return f"data.format {self.description.file} '{self._key(split)}'"

    def open_index(self, split: Split) -> SplitIndex:
        key = self._key(split)
        images = YoloSplit(self.description, key, self.settings.frame_limits)
        folder = self.settings.storage.index_folder
        index = open_packed(f"{self.description.file.stem}-{key}", images.state, images.read, folder)
        part: Split = "valid" if split in ("test", "predict") and key == "train" else split
        return self.settings.split.part(part, index)

    def open_storage(self, split: Split, channels: Channels, kind: StorageKind | None = None) -> Storage:
        # `YoloSplit` has checked the names; a folder in the data.yaml may be outside of the dataset folder.
        return ImageFiles(self.root, channels, replace(self.settings.frame_limits, outside_root=True))

    def _key(self, split: Split) -> Key:
        """Return the key of the `data.yaml` that a split is read from; raise `ValueError` if it does not exist."""
        entries = self.description.entries
        valid: Key = "val" if self.settings.split.valid_share is None else "train"
        keys: dict[Split, Key] = {"train": "train", "valid": valid}
        key = keys.get(split, "test" if "test" in entries else valid)
        if key not in entries:
            hint = " (or set data.split.valid_share to hold out a share of 'train')" if key == "val" else ""
            raise UserError(f"{self.description.file} must have the key '{key}'{hint}")
        return key


class YoloSplit:
    """Images and labels of one split of a `data.yaml`; `files` are absolute, sorted and unique."""

    def __init__(
        self,
        description: DataDescription,
        key: Key,
        limits: FrameLimits = FrameLimits(),  # noqa: B008 - frozen
    ) -> None:
        self.description = description
        self.limits = limits
        self.key = key
        places = description.places(key)
        files = (file for place in places for file in _files_at(place, description.root))
        images = [file for file in files if suffix(file) in IMAGE_SUFFIXES]
        if not images:
            raise UserError(
                f"{description.file}: no images for '{key}' in {', '.join(map(str, places))} (formats: "
                f"{', '.join(sorted(IMAGE_SUFFIXES))})"
            )
        self.files = sorted(set(images))
        if not limits.outside_root:
            _refuse_outside(description, places, self.files)
        for file in self.files:
            if file.encode(errors="replace") != file.encode(errors="surrogateescape"):
                raise UserError(f"{description.file}: the name of the image {file!r} is not UTF-8")
        self.repeated = len(images) - len(self.files)

    def state(self) -> dict[str, Any]:
        """Return the description, and a hash of name, size and modification time of all files.

        An index is current as long as they are unchanged.
        """
        content = sha256()
        for image in self.files:
            for file in (image, label_file(image)):
                content.update(f"{file}\0{_size_and_time(file)}\n".encode(errors="surrogateescape"))
        return {
            "path": f"{self.description.file}:{self.key}",
            "root": str(self.description.root),
            "class_names": list(self.description.class_names),
            "keypoint_columns": self.description.keypoint_columns,
            "files": content.hexdigest(),
            **({"bits": 16} if self.limits.bits == 16 else {}),
        }

    def read(self) -> Annotations:
        """Read all label files and the headers of all images.

        Raises:
            UserError: If labels cannot be used; the message names files and lines.
        """
        with ThreadPoolExecutor(READERS) as pool:
            records = list(pool.map(self._record, self.files))
        problems = [labels for _, labels in records if isinstance(labels, str)]
        if problems:
            raise UserError(f"{len(problems):,} label files cannot be used: {named(problems)}")
        # Without the size of the image, the boxes in pixels are unknown.
        labels = [own if shape and isinstance(own, Labels) else NO_LABELS for shape, own in records]
        owner = np.repeat(np.arange(len(labels)), [len(own.classes) for own in labels])
        shapes = np.array([shape or UNKNOWN_SHAPE for shape, _ in records], dtype=np.int32)
        centres = np.concatenate([own.centres for own in labels])
        sides = shapes[owner][:, [1, 0]].astype(np.float64)
        half = centres[:, 2:] / 2
        boxes = np.concatenate(((centres[:, :2] - half) * sides, (centres[:, :2] + half) * sides), axis=1)
        names = [file.removeprefix(f"{self.description.root}{os.sep}") for file in self.files]
        return still_images(
            image_ids(names),
            [True] * len(names),
            names,
            shapes,
            owner,
            boxes.astype(np.float32),
            np.concatenate([own.classes for own in labels]),
            dict(enumerate(self.description.class_names)),
            self._notes(records),
        )

    def _record(self, image: str) -> tuple[tuple[int, int] | None, Labels | str | None]:
        """Return the shape of an image (None if unreadable) and its labels (None without a file) or their error."""
        try:
            shape = image_shape(Path(image), self.limits)
        except (OSError, ValueError):
            shape = None
        try:
            return shape, read_labels(
                Path(label_file(image)), len(self.description.class_names), self.description.keypoint_columns
            )
        except ValueError as error:
            return shape, str(error)

    def _notes(self, records: list[tuple[tuple[int, int] | None, Labels | str | None]]) -> tuple[str, ...]:
        unlabelled = [image for image, (_, labels) in zip(self.files, records, strict=True) if labels is None]
        example = label_file(unlabelled[0]) if unlabelled else ""
        labels = [found for _, found in records if isinstance(found, Labels)]
        found = (
            (len(unlabelled), f"images without a label file (background), such as {example}"),
            (sum(shape is None for shape, _ in records), "missing or damaged images"),
            (sum(one.duplicates for one in labels), "duplicate label lines"),
            (sum(one.polygons for one in labels), "polygons or oriented boxes, replaced by the boxes around them"),
            (self.repeated, "duplicate images"),
            (len(stray := self._stray_labels()), f"label files without an image, such as {''.join(stray[:1])}"),
        )
        return tuple(one_line(f"{count:,} {what}") for count, what in found if count)

    def _stray_labels(self) -> list[str]:
        """Return the label files for which no file in the folder of the images has the same name without suffix."""
        stray = []
        for images in sorted({os.path.dirname(image) for image in self.files}):
            labels = os.path.dirname(label_file(os.path.join(images, ".")))
            if labels != images and os.path.isdir(labels) and os.path.isdir(images):
                stems = {os.path.splitext(name)[0] for name in os.listdir(images)}
                names = (name for name in sorted(os.listdir(labels)) if suffix(name) == ".txt")
                others = [name for name in names if name != "classes.txt" and name[:-4] not in stems]
                stray += [os.path.join(labels, name) for name in others]
        return stray


def label_file(image: str) -> str:
    """Return the label file of an image: the last folder `images` becomes `labels`, the suffix `.txt`."""
    return LABELS.join(image.rsplit(IMAGES, 1)).rpartition(".")[0] + ".txt"


def _size_and_time(file: str) -> tuple[int, int] | None:
    """Return size in bytes and modification time in nanoseconds, None if the file does not exist."""
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def image_ids(names: list[str]) -> list[str]:
    """Return the names without suffix; names that differ only in their suffix keep it."""
    stems = [name.rpartition(".")[0] for name in names]
    counts = Counter(stems)
    return [stem if counts[stem] == 1 else name for stem, name in zip(stems, names, strict=True)]


def _files_at(place: Path, root: Path) -> Iterable[str]:
    """Return the files below a folder, or the files in a list of images.

    In a list, `./` is the folder of the list. Other relative names are relative to the folder of the list, the dataset
    folder or the working folder: the first of them in which the first name exists.
    """
    if place.is_dir():
        return regular_files(place)
    if suffix(str(place)) in IMAGE_SUFFIXES:
        return [str(place)]
    try:
        lines = read_regular(place, LARGEST_LIST).decode("utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"image list {place} cannot be read: {error}") from error
    names = [line.strip().replace("\\", "/") for line in lines if line.strip()]
    for name in names:
        if suffix(name) not in IMAGE_SUFFIXES:
            raise UserError(f"image list {place}: a line must be the path of an image, got {one_line(name, 200)!r}")
    first = next((name for name in names if not name.startswith("./")), "")
    base = next((base for base in (place.parent, root, Path.cwd()) if os.path.exists(base / first)), place.parent)
    return [
        os.path.join(place.parent, name[2:]) if name.startswith("./") else os.path.join(base, name) for name in names
    ]


def _refuse_outside(description: DataDescription, places: Iterable[Path], files: Iterable[str]) -> None:
    """Refuse images of a list outside of the dataset folder, the folder of the list and the folders of `places`."""
    folders = {description.root, description.file.parent}
    folders |= {place if place.is_dir() else place.parent for place in places}
    allowed = tuple(f"{folder}{os.sep}" for folder in folders)
    for file in files:
        if not os.path.normpath(file).startswith(allowed):
            raise UserError(
                f"{description.file}: image {one_line(file, 300)!r} is outside of the dataset folder "
                f"{description.root}; set data.limits.allow_outside_root true to read it"
            )


def suffix(file: str) -> str:
    return os.path.splitext(file)[1].lower()


def image_shape(path: Path, limits: FrameLimits = FrameLimits()) -> tuple[int, int] | None:  # noqa: B008
    """Return `(height, width)` of the decoded image in pixels, after its EXIF orientation; None if it is damaged.

    Only the header is read, except for turned images: which formats are turned back depends on the OpenCV version.
    """
    with open_regular(path) as file:
        try:
            with open_image(file) as image:
                width, height = image.size
                # Pillow would decode the whole PNG to search for EXIF data.
                without_exif = image.format == "PNG" and "exif" not in image.info
                if without_exif or image.getexif().get(ORIENTATION) not in TURNED:
                    return height, width
        except Exception:  # Pillow raises many types of exceptions for damaged headers, also struct.error
            pass
    try:
        content = read_regular(path, limits.max_bytes)
        height, width = decode_frame(content, path.name, limits=limits).shape[:2]
    except FrameError:
        return None
    return height, width
