"""Reads YOLO datasets: images in folders or lists, a label file beside each, sizes from the headers of the images."""

import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from yolo_lightning.data.formats.annotations import Annotations, still_images
from yolo_lightning.data.formats.image_lists import UNDECODED_SUFFIXES, list_images
from yolo_lightning.data.formats.image_size import image_shape
from yolo_lightning.data.formats.yolo_description import DataDescription, Key
from yolo_lightning.data.formats.yolo_labels import NO_LABELS, Labels, read_labels

IMAGES, LABELS = f"{os.sep}images{os.sep}", f"{os.sep}labels{os.sep}"

UNKNOWN_SHAPE = (1, 1)
"""Height and width of an image whose header cannot be read; reading it fails later and is counted."""

READERS = 8
"""Threads that read label files and headers: they wait for the disk most of the time."""

NAMED_PROBLEMS = 5
"""Problems named in one message."""


@dataclass(frozen=True, slots=True)
class YoloImage:
    """What a file and its labels say.

    Attributes:
        shape: `(height, width)` in pixels, None if the image is missing or damaged.
        labels: Its objects, None where there is no label file.
        problem: Why the label file cannot be used.
    """

    shape: tuple[int, int] | None
    labels: Labels | None
    problem: str | None = None


class YoloSplit:
    """The images of one split of a `data.yaml`.

    Args:
        description: The `data.yaml`.
        key: Which of its splits.

    Raises:
        ValueError: If it has no images.
    """

    def __init__(self, description: DataDescription, key: Key) -> None:
        self.description = description
        self.key = key
        self.files, self.repeated, self.undecoded = list_images(description, key)

    def state(self) -> dict[str, Any]:
        """What must be unchanged for an index to be current: the description, and name, size and time of each file."""
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
        refuse([record.problem for record in records if record.problem is not None])
        labels = [record.labels or NO_LABELS for record in records]
        # Where the size is not known, neither are the boxes in pixels.
        labels = [own if record.shape else NO_LABELS for own, record in zip(labels, records, strict=True)]
        counts = np.array([len(own.classes) for own in labels], dtype=np.int64)
        owner = np.repeat(np.arange(len(labels)), counts)
        shapes = np.array([record.shape or UNKNOWN_SHAPE for record in records], dtype=np.int32)
        centres = np.concatenate([own.centres for own in labels])
        sides = shapes[owner][:, [1, 0]].astype(np.float64)
        half = centres[:, 2:] / 2
        boxes = np.concatenate(((centres[:, :2] - half) * sides, (centres[:, :2] + half) * sides), axis=1)
        names = [relative_name(file, self.description.root) for file in self.files]
        return still_images(
            image_ids=image_ids(names),
            text_ids=[True] * len(names),
            file_names=names,
            shapes=shapes,
            owner=owner,
            boxes=boxes.astype(np.float32),
            labels=np.concatenate([own.classes for own in labels]),
            class_names=self.description.class_names,
            category_ids=tuple(range(len(self.description.class_names))),
            notes=self._notes(records),
        )

    def _record(self, image: str) -> YoloImage:
        try:
            shape = image_shape(Path(image))
        except OSError:
            shape = None
        try:
            labels = read_labels(
                Path(label_file(image)), len(self.description.class_names), self.description.keypoint_columns
            )
        except ValueError as error:
            return YoloImage(shape, None, str(error))
        return YoloImage(shape, labels)

    def _notes(self, records: list[YoloImage]) -> tuple[str, ...]:
        unlabelled = sum(record.labels is None for record in records)
        unreadable = sum(record.shape is None for record in records)
        duplicates = sum(record.labels.duplicates for record in records if record.labels is not None)
        first = next((image for image, record in zip(self.files, records, strict=True) if record.labels is None), "")
        found = (
            (unlabelled, f"images without a label file, such as {label_file(first)}: background"),
            (unreadable, "images that are missing or damaged"),
            (duplicates, "duplicate label lines left out"),
            (self.repeated, "images named more than once, taken once"),
            (self.undecoded, f"files in formats that are not decoded ({', '.join(sorted(UNDECODED_SUFFIXES))})"),
        )
        return tuple(f"{count:,} {what}" for count, what in found if count)


def label_file(image: str) -> str:
    """Where the labels of an image are: the last folder `images` of its path becomes `labels`, its suffix `txt`."""
    return LABELS.join(image.rsplit(IMAGES, 1)).rpartition(".")[0] + ".txt"


def size_and_time(file: str) -> tuple[int, int] | None:
    """Size in bytes and time of the last change in nanoseconds, None where there is no such file."""
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def relative_name(file: str, root: Path) -> str:
    """A path relative to the dataset's folder; one outside of it stays absolute."""
    return file.removeprefix(f"{root}{os.sep}")


def image_ids(names: list[str]) -> list[str]:
    """Names without suffix, which only stays where two names differ in nothing else."""
    stems = [name.rpartition(".")[0] for name in names]
    counts = Counter(stems)
    return [stem if counts[stem] == 1 else name for stem, name in zip(stems, names, strict=True)]


def refuse(problems: list[str]) -> None:
    """Name the first of the label files that cannot be used.

    Raises:
        ValueError: If there is one.
    """
    if problems:
        more = f"; and {len(problems) - NAMED_PROBLEMS:,} more files" if len(problems) > NAMED_PROBLEMS else ""
        raise ValueError(f"{len(problems):,} label files cannot be used: {'; '.join(problems[:NAMED_PROBLEMS])}{more}")
