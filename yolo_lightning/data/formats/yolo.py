"""YOLO datasets: images in folders or lists, a label file per image, and a `data.yaml` with the splits."""

import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from yolo_lightning.data.formats.annotations import Annotations, encoded, still_images
from yolo_lightning.data.formats.frame_checks import named
from yolo_lightning.data.formats.yolo_description import DataDescription, Key, read_description
from yolo_lightning.data.formats.yolo_images import UNDECODED_SUFFIXES, image_shape, list_images
from yolo_lightning.data.formats.yolo_labels import NO_LABELS, Labels, read_labels
from yolo_lightning.data.index.annotation_index import SplitIndex, open_packed
from yolo_lightning.data.index.splits import Shares, Split
from yolo_lightning.data.storage.choose_storage import StorageKind
from yolo_lightning.data.storage.frames import Channels, ImageFiles, Storage

IMAGES, LABELS = f"{os.sep}images{os.sep}", f"{os.sep}labels{os.sep}"

UNKNOWN_SHAPE = (1, 1)
"""Height and width of a damaged image, which is counted as a bad frame when its pixels are read."""

READERS = 8
"""Number of threads that read label files and headers: they mostly wait for the disk."""


class YoloFormat:
    """Images and label files of the `data.yaml` `file`; `valid_share` of `train` replaces `val`."""

    storages: tuple[StorageKind, ...] = ("folder",)

    def __init__(self, file: Path, root: Path | None, shares: Shares, index_root: Path) -> None:
        self.description = read_description(file, root)
        self.root = self.description.root
        self.class_names = self.description.class_names
        self.category_ids = tuple(range(len(self.class_names)))
        self.channels = self.description.channels
        self.shares = shares
        self.index_root = index_root

    def name(self, split: Split) -> str:
        return f"{self.description.file.name} {self._key(split)}"

    def origin(self, split: Split) -> str:
        return f"data.format {self.description.file} '{self._key(split)}'"

    def open_index(self, split: Split) -> SplitIndex:
        key = self._key(split)
        images = YoloSplit(self.description, key)
        index = open_packed(f"{self.description.file.stem}-{key}", images.state, images.read, self.index_root)
        part: Split = "valid" if split in ("test", "predict") and key == "train" else split
        return self.shares.part(part, index)

    def open_storage(self, split: Split, channels: Channels, storage: StorageKind | None = None) -> Storage:
        return ImageFiles(self.root, channels)

    def _key(self, split: Split) -> Key:
        """Return the key of the `data.yaml` that a split is read from; raise `ValueError` if it does not exist."""
        entries = self.description.entries
        valid: Key = "val" if self.shares.valid_share is None else "train"
        keys: dict[Split, Key] = {"train": "train", "valid": valid}
        key = keys.get(split, "test" if "test" in entries else valid)
        if key not in entries:
            hint = " (or set data.valid_share to hold out a share of 'train')" if key == "val" else ""
            raise ValueError(f"{self.description.file} must have the key '{key}'{hint}")
        return key


class YoloSplit:
    """Images and labels of one split of a `data.yaml`."""

    def __init__(self, description: DataDescription, key: Key) -> None:
        self.description = description
        self.key = key
        self.files, self.repeated, self.undecoded = list_images(description, key)

    def state(self) -> dict[str, Any]:
        """Return the description, and a hash of name, size and modification time of all files.

        An index is current as long as they are unchanged.
        """
        content = sha256()
        for image in self.files:
            for file in (image, label_file(image)):
                content.update(f"{file}\0{size_and_time(file)}\n".encode(errors="surrogateescape"))
        return {
            "path": f"{self.description.file}:{self.key}",
            "root": str(self.description.root),
            "class_names": list(self.description.class_names),
            "keypoint_columns": self.description.keypoint_columns,
            "files": content.hexdigest(),
        }

    def read(self) -> Annotations:
        """Read all label files and the headers of all images.

        Raises:
            ValueError: If labels cannot be used; the message names files and lines.
        """
        with ThreadPoolExecutor(READERS) as pool:
            records = list(pool.map(self._record, self.files))
        problems = [labels for _, labels in records if isinstance(labels, str)]
        if problems:
            raise ValueError(f"{len(problems):,} label files cannot be used: {named(problems)}")
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
            encoded(image_ids(names)),
            [True] * len(names),
            names,
            shapes,
            owner,
            boxes.astype(np.float32),
            np.concatenate([own.classes for own in labels]),
            self.description.class_names,
            tuple(range(len(self.description.class_names))),
            notes=self._notes(records),
        )

    def _record(self, image: str) -> tuple[tuple[int, int] | None, Labels | str | None]:
        """Return the shape of an image (None if unreadable) and its labels (None without a file) or their error."""
        try:
            shape = image_shape(Path(image))
        except OSError:
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
        found = (
            (len(unlabelled), f"images without a label file (background), such as {example}"),
            (sum(shape is None for shape, _ in records), "missing or damaged images"),
            (sum(labels.duplicates for _, labels in records if isinstance(labels, Labels)), "duplicate label lines"),
            (self.repeated, "duplicate images"),
            (self.undecoded, f"files in formats that cannot be decoded ({', '.join(sorted(UNDECODED_SUFFIXES))})"),
        )
        return tuple(f"{count:,} {what}" for count, what in found if count)


def label_file(image: str) -> str:
    """Return the label file of an image: the last folder `images` becomes `labels`, the suffix `.txt`."""
    return LABELS.join(image.rsplit(IMAGES, 1)).rpartition(".")[0] + ".txt"


def size_and_time(file: str) -> tuple[int, int] | None:
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
