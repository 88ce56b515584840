"""LTDv2's official layout: annotation files (COCO JSON) with month and clip of the frames; gray frames.

The list of categories begins with a background entry (id 0), so a class index is `category_id - 1`, not a position in
the list.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from yolo_lightning.data.array_types import Int32Array
from yolo_lightning.data.formats.annotations import IMAGE_NUMBER, Annotations, encoded
from yolo_lightning.data.formats.coco_json import decode, to_annotations
from yolo_lightning.data.formats.dataset_format import DatasetSettings, JsonFormat
from yolo_lightning.data.formats.image_ids import month_of_digits, month_of_id
from yolo_lightning.data.index.splits import Split
from yolo_lightning.data.input_settings import Channels
from yolo_lightning.data.occurrences import occurrences
from yolo_lightning.data.storage.choose_storage import DOWNLOAD, STORAGES, open_frames
from yolo_lightning.data.storage.storage import Storage
from yolo_lightning.errors import UserError
from yolo_lightning.utils.plain_text import one_line

CLASS_NAMES = ("person", "bicycle", "motorcycle", "vehicle")  # LTDv2's classes in the order of their category ids
CATEGORY_IDS = (1, 2, 3, 4)
VALID_FILE = "Valid.json"
PREDICT_FILE = "TestNoLabels.json"
OFFICIAL_FILES = ("Train.json", VALID_FILE, PREDICT_FILE)


def read_annotations(path: Path) -> Annotations:
    """Read and check an annotation file of LTDv2."""
    content = decode(path)
    images = content.images
    categories = {category.id: category.name.strip().lower() for category in content.categories if category.id != 0}
    expected = dict(zip(CATEGORY_IDS, CLASS_NAMES, strict=True))
    if categories != expected:
        got = one_line(str(categories), 300)
        raise UserError(f"{path}: categories must be {expected} (and optionally 0, background), got {got}")
    annotations = to_annotations(path, content, expected, np.float32)
    file_names = [name.decode() for name in annotations.file_names.tolist()]
    clip_numbers, clip_names = clips(file_names)
    dates = [image.date_captured if isinstance(image.date_captured, str) else "" for image in images]
    return replace(
        annotations,
        months=months((image_id.decode() for image_id in annotations.image_ids.tolist()), dates),
        clips=clip_numbers,
        clip_names=encoded(clip_names),
        positions_in_clip=positions_in_clip(file_names, clip_numbers),
        facts=msgspec.structs.replace(annotations.facts, has_clips=True),
    )


def months(image_ids: Iterable[str], dates: Iterable[str]) -> Int32Array:
    """Return `(N,)` int32 months, YYYYMM, 0 if unknown: from an id of 17 digits, else from the ISO date."""
    pairs = zip(image_ids, dates, strict=True)
    return np.array([month_of_id(name) or month_of_digits(date[:4] + date[5:7]) for name, date in pairs], np.int32)


def clips(file_names: Sequence[str]) -> tuple[Int32Array, list[str]]:
    """Number the clips: frames whose files are in the same folder form one clip.

    Returns:
        `(N,)` int32 clip numbers from 0 in order of first appearance, and the folder of each clip.
    """
    numbers: dict[str, int] = {}
    clip_of = [numbers.setdefault(name.rpartition("/")[0], len(numbers)) for name in file_names]
    return np.array(clip_of, dtype=np.int32), list(numbers)


def positions_in_clip(file_names: Sequence[str], clip_numbers: Int32Array) -> Int32Array:
    """Return `(N,)` int32, rank of each frame in its clip from 0, ordered by the last number in its file name.

    Frames without a number are first. Frames with equal numbers keep the order of the file.
    """
    matches = [IMAGE_NUMBER.search(name.rpartition("/")[2].rpartition(".")[0]) for name in file_names]
    image_numbers = np.array([-1 if match is None else int(match[1]) for match in matches], dtype=np.int64)
    order = np.lexsort((image_numbers, clip_numbers))
    positions = np.empty(len(order), dtype=np.int32)
    positions[order] = occurrences(clip_numbers[order])
    return positions


class LTDv2Format(JsonFormat):
    """LTDv2's JSON files, and its gray frames in any storage."""

    accepted = "ltdv2"
    storages = tuple(storage.kind for storage in STORAGES)
    is_gray = True
    has_clips = True
    has_submission = True
    class_names = CLASS_NAMES
    category_ids = CATEGORY_IDS
    channels = 1

    def __init__(self, settings: DatasetSettings) -> None:
        super().__init__(settings)
        is_description = self.root.suffix in (".yaml", ".yml")
        description = self.root if is_description else self.root / "data.yaml"
        if is_description or (description.is_file() and not (self.root / self.files.train).exists()):
            absence = "" if description.is_file() else ", and this file does not exist"
            raise UserError(
                f"data.root must be a folder with {self.files.train}, got {self.root}; a dataset in Ultralytics' "
                f"layout is read with data.format {description}{absence}"
            )
        self.files = replace(self.files, test=self.files.test or VALID_FILE, predict=self.files.predict or PREDICT_FILE)

    read = staticmethod(read_annotations)

    def remedy(self) -> str:
        return f"{super().remedy()} {DOWNLOAD}"

    def open_storage(self, split: Split, channels: Channels) -> Storage:
        return open_frames(self.root, self.settings.storage, self.settings.frame_limits)
