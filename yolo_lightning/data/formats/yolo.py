"""YOLO datasets: images in folders or lists, a label file per image, and a `data.yaml` with the splits."""

import os
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, get_args

import cv2
import numpy as np
import PIL

from yolo_lightning.data.array_types import Int64Array
from yolo_lightning.data.formats.annotations import Annotations, still_images
from yolo_lightning.data.formats.dataset_format import DatasetFormat, DatasetSettings
from yolo_lightning.data.formats.file_settings import Files
from yolo_lightning.data.formats.suspicious_boxes import CENTERS, FEWEST
from yolo_lightning.data.formats.yolo_description import DataDescription, Key, read_description
from yolo_lightning.data.formats.yolo_files import SplitFiles, find_split_files
from yolo_lightning.data.formats.yolo_labels import NO_LABELS, Labels, read_labels
from yolo_lightning.data.index.split_index import SplitIndex, open_packed
from yolo_lightning.data.index.splits import Split
from yolo_lightning.data.input_settings import Channels
from yolo_lightning.data.left_out_files import counted, suffix
from yolo_lightning.data.occurrences import occurrences
from yolo_lightning.data.storage.folder_frames import ImageFiles
from yolo_lightning.data.storage.frames import FrameError, decode_frame
from yolo_lightning.data.storage.image_header import ORIENTATION, TURNED, FrameLimits
from yolo_lightning.data.storage.pillow_images import HEIF_SUFFIXES, NEEDS_HEIF, open_image, reads_heif
from yolo_lightning.data.storage.storage import Storage
from yolo_lightning.errors import UserError
from yolo_lightning.utils.paths import user_path
from yolo_lightning.utils.plain_text import name_some
from yolo_lightning.utils.regular_files import open_regular, read_regular

UNKNOWN_SHAPE = (1, 1)  # Height and width of a damaged image, which is counted as a bad frame when its pixels are read
LABEL_RULE = f"a label line must be class, {CENTERS} as fractions of the image"
LATE_EXIF = 1 << 16  # Bytes at the end of a PNG in which EXIF data are searched, the largest size of such data
READERS = 8  # Number of threads that read label files and headers: they mostly wait for the disk

Record = tuple[tuple[int, int] | None, Labels | str | None]
"""Shape of an image, None if it is unreadable, and its labels, None without a file, or the error in them."""


class YoloFormat(DatasetFormat):
    """Images and label files of a `data.yaml`; `data.split.valid_share` of `train` replaces `val`."""

    accepted = "the path of a data.yaml"

    def __init__(self, settings: DatasetSettings) -> None:
        super().__init__(settings)
        defaults = Files()
        for name in get_args(Split):
            value = getattr(settings.files, name)
            if value not in (None, getattr(defaults, name)):
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

    def check_files(self, split: Split) -> None:
        self.description.places(self._key(split))

    def open_index(self, split: Split) -> SplitIndex:
        key = self._key(split)
        images = YoloSplit(self.description, key, self.settings.frame_limits)
        folder = self.settings.storage.index_folder
        index = open_packed(f"{self.description.file.stem}-{key}", images.state(), images.read, folder)
        if split in ("test", "predict") and key == "train":
            split = "valid"
        return self.settings.split.part(split, index)

    def open_storage(self, split: Split, channels: Channels) -> Storage:
        # `YoloSplit` has checked the names; a folder in the data.yaml may be outside of the dataset folder.
        return ImageFiles(self.root, channels, replace(self.settings.frame_limits, outside_root=True))

    def _key(self, split: Split) -> Key:
        """Return the key of the `data.yaml` that a split is read from; raise `ValueError` if it does not exist."""
        entries = self.description.entries
        key: Key = "train"
        if split != "train" and self.settings.split.valid_share is None:
            key = "val"
        if split in ("test", "predict") and "test" in entries:
            key = "test"
        if key not in entries:
            hint = " (or set data.split.valid_share to hold out a share of 'train')" if key == "val" else ""
            raise UserError(f"{self.description.file} must have the key '{key}'{hint}")
        return key


class YoloSplit:
    """Images and labels of one split of a `data.yaml`; `files` replaces the search for both."""

    def __init__(
        self,
        description: DataDescription,
        key: Key,
        limits: FrameLimits = FrameLimits(),  # noqa: B008 - frozen
        files: SplitFiles | None = None,
    ) -> None:
        self.description = description
        self.limits = limits
        self.key = key
        self.files = files or find_split_files(description, key, outside_root=limits.outside_root)

    def state(self) -> dict[str, Any]:
        """Return the description, a hash of name, size, times and inode of all files, and what decides which are read.

        An index is current as long as they are unchanged.
        """
        return {
            "path": f"{self.description.file}:{self.key}",
            "root": str(self.description.root),
            "class_names": list(self.description.class_names),
            "keypoint_columns": self.description.keypoint_columns,
            "files": self.files.state,
            "reads_heif": reads_heif(),
            "bits": self.limits.bits,
            # Turned images are decoded to find their shape, and other libraries may read other formats.
            "max_pixels": self.limits.max_pixels,
            "decoders": [cv2.__version__, PIL.__version__],
        }

    def read(self) -> Annotations:
        """Read all label files and the headers of all images.

        Raises:
            UserError: If labels cannot be used; the message names files and lines.
        """
        with ThreadPoolExecutor(READERS) as pool:
            records = list(pool.map(self._record, self.files.images, self.files.labels))
        problems = [labels for _, labels in records if isinstance(labels, str)]
        if problems:
            raise UserError(f"{len(problems):,} label files cannot be used: {name_some(problems)}")
        # Without the size of the image, the boxes in pixels are unknown.
        labels = [content if shape and isinstance(content, Labels) else NO_LABELS for shape, content in records]
        owner = np.repeat(np.arange(len(labels)), [len(image_labels.classes) for image_labels in labels])
        shapes = np.array([shape or UNKNOWN_SHAPE for shape, _ in records], dtype=np.int32)
        centres = np.concatenate([image_labels.centres for image_labels in labels])
        classes = np.concatenate([image_labels.classes for image_labels in labels])
        names = self.files.names
        annotations = still_images(
            image_ids(names),
            [True] * len(names),
            names,
            shapes,
            owner,
            centres * shapes[owner][:, [1, 0, 1, 0]],
            classes,
            self.description.names,
            self._notes(records),
            CENTERS,
            LABEL_RULE,
            unlikely=self._unlikely_classes(classes),
        )
        return _with_repeated_images(annotations, self.files.originals)

    def _unlikely_classes(self, classes: Int64Array) -> str:
        """Return a remark if no box has the first class: class numbers may begin at 1; else ""."""
        names = self.description.class_names
        if len(names) < 2 or len(classes) < FEWEST or not classes.min():
            return ""
        first_labelled = next(label for label in self.files.labels if label)
        return (
            f"no box has the class 0, {names[0]!r}: if the class numbers of the label files, such as {first_labelled}, "
            "begin at 1, subtract 1 from them"
        )

    def _record(self, image: str, label: str) -> Record:
        shape = image_shape(Path(image), self.limits)
        if not label:
            return shape, None
        try:
            return shape, read_labels(Path(label), len(self.description.names), self.description.keypoint_columns)
        except UserError as error:
            return shape, str(error)

    def _notes(self, records: list[Record]) -> list[str]:
        """Return the remarks about files, images and labels, one line each."""
        labels = [content for _, content in records if isinstance(content, Labels)]
        unreadable = [image for image, (shape, _) in zip(self.files.images, records, strict=True) if shape is None]
        label_files = [
            label for position, label in enumerate(self.files.labels) if position not in self.files.originals
        ]
        shared_labels = [label for label, count in Counter(filter(None, label_files)).items() if count > 1]
        counts = {
            "missing or damaged images": len(unreadable),
            "duplicate label lines": sum(content.duplicates for content in labels),
            "polygons or oriented boxes, replaced by the boxes around them": sum(
                content.polygons for content in labels
            ),
        }
        notes = [f"{count:,} {what}" for what, count in counts.items() if count]
        if shared_labels:
            what = "label files belong to several images of one name, which all have its boxes"
            notes.append(counted(len(shared_labels), what, shared_labels[0]))
        heif_images = [image for image in unreadable if suffix(image) in HEIF_SUFFIXES]
        if heif_images and not reads_heif():
            notes.append(f"{counted(len(heif_images), 'of them are HEIC images', heif_images[0])}: {NEEDS_HEIF}")
        return [*self.files.notes, *notes]


def image_ids(names: list[str]) -> list[str]:
    """Return the names without suffix, all different.

    Names that differ only in their suffix keep it, and so does `a.jpg.png` beside `a.jpg`.
    """
    stems = [name.rpartition(".")[0] for name in names]
    counts = Counter([*stems, *names])
    return [stem if counts[stem] == 1 else name for stem, name in zip(stems, names, strict=True)]


def _with_repeated_images(annotations: Annotations, originals: Mapping[int, int]) -> Annotations:
    """Make each image and the links to it one clip, so that `data.split.valid_share` does not divide them.

    `originals` has the position of the first image that is the same file, by the position of each repeated image.
    """
    if not originals:
        return annotations
    first_positions = np.arange(len(annotations.clips))
    first_positions[list(originals)] = list(originals.values())
    first_of_clip, clips = np.unique(first_positions, return_inverse=True)
    return replace(
        annotations,
        clips=clips.astype(np.int32),
        clip_names=annotations.clip_names[first_of_clip],
        positions_in_clip=occurrences(clips).astype(np.int32),
    )


def image_shape(path: Path, limits: FrameLimits = FrameLimits()) -> tuple[int, int] | None:  # noqa: B008
    """Return `(height, width)` of the decoded image in pixels, after its EXIF orientation; None if it is unreadable.

    Only the header is read, except for turned images: which formats are turned back depends on the OpenCV version.
    """
    # Pillow raises many types of exceptions for damaged headers, also struct.error.
    with suppress(Exception), open_regular(path) as file, open_image(file) as image:
        width, height = image.size
        if image.format == "PNG" and "exif" not in image.info:  # Pillow would decode it to search for EXIF data
            may_be_turned = _has_late_exif(file)
        else:
            may_be_turned = image.getexif().get(ORIENTATION) in TURNED
        if not may_be_turned:
            return height, width
    try:
        content = read_regular(path, limits.max_bytes)
        height, width = decode_frame(content, path.name, limits=limits).shape[:2]
    except (FrameError, OSError, ValueError):
        return None
    return height, width


def _has_late_exif(file: BinaryIO) -> bool:
    """Return whether a PNG has EXIF data behind its pixels, where the format allows them, too."""
    file.seek(max(0, file.seek(0, os.SEEK_END) - LATE_EXIF))
    return b"eXIf" in file.read()
