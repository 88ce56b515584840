"""LTDv2's official layout: annotation files (COCO JSON) with month, clip and weather of the frames; gray frames.

The list of categories begins with a background entry (id 0), so a class index is `category_id - 1`, not a position in
the list.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from yolo_lightning.data.formats.annotations import (
    IMAGE_NUMBER,
    WEATHER,
    Annotations,
    encoded,
    image_shapes,
    still_images,
)
from yolo_lightning.data.formats.coco_json import annotation_arrays, decode
from yolo_lightning.data.formats.dataset_format import DatasetSettings, JsonFormat
from yolo_lightning.data.formats.image_ids import ID_DIGITS, image_id_texts, number_at, refuse_rounded_ids
from yolo_lightning.data.formats.suspicious_boxes import suspicions
from yolo_lightning.data.index.split_index import SplitIndex
from yolo_lightning.data.index.splits import Split
from yolo_lightning.data.storage.choose_storage import STORAGES, open_frames
from yolo_lightning.data.storage.frames import Channels
from yolo_lightning.data.storage.storage import Storage, StorageKind
from yolo_lightning.utils.plain_text import one_line

CLASS_NAMES = ("person", "bicycle", "motorcycle", "vehicle")  # LTDv2's classes in the order of their category ids
CATEGORY_IDS = (1, 2, 3, 4)
OFFICIAL_FILES = TRAIN_FILE, VALID_FILE, PREDICT_FILE = "Train.json", "Valid.json", "TestNoLabels.json"

DATE_CHARACTERS = 19  # Length of an ISO date and time to the second

MOMENT = (
    ((0, 4), (1900, 2099)),
    ((4, 6), (1, 12)),
    ((9, 11), (1, 31)),
    ((11, 13), (0, 23)),
    ((13, 15), (0, 59)),
    ((15, 17), (0, 59)),
)
"""Columns of year, month, day, hour, minute and second in an LTDv2 id, and their valid ranges."""

LARGEST_FLOAT32 = float(np.finfo(np.float32).max)
LEADING_NUMBER = re.compile(r"\s*([-+]?\d+(?:[.,]\d+)?(?:[eE][-+]?\d+)?)")


def read_annotations(path: Path) -> Annotations:
    """Read and check an annotation file of LTDv2."""
    content = decode(path)
    images = content.images
    found = {category.id: category.name.strip().lower() for category in content.categories if category.id != 0}
    expected = dict(zip(CATEGORY_IDS, CLASS_NAMES, strict=True))
    if found != expected:
        got = one_line(str(found), 300)
        raise ValueError(f"{path}: categories must be {expected} (and optionally 0, background), got {got}")
    shapes = image_shapes(path, images)
    file_names = [image.file_name for image in images]
    positions = image_id_texts(path, [image.id for image in images], file_names)
    image_ids = encoded(positions)
    dates = [date if isinstance(date := image.date_captured, str) else "" for image in images]
    iso_dates = np.array([date[:DATE_CHARACTERS].encode(errors="replace") for date in dates], dtype=np.bytes_)
    owner, boxes, labels, notes = annotation_arrays(path, content, positions, CATEGORY_IDS, np.float32)
    impossible, unlikely = suspicions(owner, boxes, labels, shapes, file_names)
    refuse_rounded_ids(path, image_ids, iso_dates, owner, file_names)
    clip_numbers, clip_names = clips(file_names)
    return replace(
        still_images(
            image_ids,
            [isinstance(image.id, str) for image in images],
            file_names,
            shapes,
            owner,
            boxes,
            labels,
            CLASS_NAMES,
            CATEGORY_IDS,
            notes,
            impossible,
            unlikely,
        ),
        months=months(image_ids, iso_dates),
        clips=clip_numbers,
        clip_names=encoded(clip_names),
        positions_in_clip=positions_in_clip(file_names, clip_numbers),
        weather=weather([image.meta for image in images]),
        has_clips=True,
    )


def months(image_ids: npt.NDArray[np.bytes_], dates: npt.NDArray[np.bytes_]) -> npt.NDArray[np.int32]:
    """Return `(N,)` int32 months, YYYYMM, 0 if unknown: from the id if it is an LTDv2 id, else from the ISO date."""
    by_id = np.where(are_ltdv2_ids(image_ids), number_at(image_ids, range(6)), 0)
    by_date = number_at(dates, (0, 1, 2, 3, 5, 6))
    by_date = np.where(within(by_date % 100, 1, 12) & (by_date >= 0), by_date, 0)
    return np.where(by_id > 0, by_id, by_date).astype(np.int32)


def are_ltdv2_ids(image_ids: npt.NDArray[np.bytes_]) -> npt.NDArray[np.bool_]:
    """Return `(N,)` bool: ids of 17 digits with a valid date and time between 1900 and 2099."""
    valid: npt.NDArray[np.bool_] = np.char.str_len(image_ids) == ID_DIGITS
    valid &= number_at(image_ids, range(ID_DIGITS)) >= 0
    for columns, limits in MOMENT:
        valid &= within(number_at(image_ids, range(*columns)), *limits)
    return valid


def within(values: npt.NDArray[np.int64], lowest: int, highest: int) -> npt.NDArray[np.bool_]:
    return (values >= lowest) & (values <= highest)


def clips(file_names: Sequence[str]) -> tuple[npt.NDArray[np.int32], list[str]]:
    """Number the clips: frames whose files are in the same folder form one clip.

    Returns:
        `(N,)` int32 clip numbers from 0 in order of first appearance, and the folder of each clip.
    """
    numbers: dict[str, int] = {}
    clip_of = [numbers.setdefault(name.rpartition("/")[0], len(numbers)) for name in file_names]
    return np.array(clip_of, dtype=np.int32), list(numbers)


def positions_in_clip(file_names: Sequence[str], clip_numbers: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Return `(N,)` int32, rank of each frame in its clip from 0, ordered by the last number in its file name.

    Frames without a number are first. Frames with equal numbers keep the order of the file.
    """
    found = [IMAGE_NUMBER.search(name.rpartition("/")[2].rpartition(".")[0]) for name in file_names]
    image_numbers = np.array([-1 if match is None else int(match[1]) for match in found], dtype=np.int64)
    order = np.lexsort((image_numbers, clip_numbers))
    lengths = np.bincount(clip_numbers)
    first = np.repeat(np.cumsum(lengths) - lengths, lengths)
    positions = np.empty(len(order), dtype=np.int32)
    positions[order] = np.arange(len(order)) - first
    return positions


def weather(metas: Sequence[msgspec.Raw]) -> npt.NDArray[np.float32]:
    """Return `(8, N)` float32, the `WEATHER` measurements in each frame's `meta`; NaN if missing or not a number."""
    columns = {name.lower(): column for column, name in enumerate(WEATHER)}
    table = np.full((len(metas), len(WEATHER)), np.nan)
    decode = msgspec.json.Decoder().decode
    for row, raw in enumerate(metas):
        meta = decode(raw)
        if not isinstance(meta, dict):
            continue
        for key, value in meta.items():
            column = columns.get(key.strip().lower())
            if column is not None:
                table[row, column] = measurement(value)
    return np.ascontiguousarray(table.T.astype(np.float32))


def measurement(value: object) -> float:
    """Return a number, or the leading number of a text (decimal point or comma); NaN for any other value."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) if abs(value) < LARGEST_FLOAT32 else float("nan")
    match = LEADING_NUMBER.match(value) if isinstance(value, str) else None
    return float("nan") if match is None else measurement(float(match[1].replace(",", ".")))


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
        self.files = replace(self.files, test=self.files.test or VALID_FILE, predict=self.files.predict or PREDICT_FILE)

    read = staticmethod(read_annotations)

    def open_index(self, split: Split) -> SplitIndex:
        return self.settings.split.part(split, self.open_file(self.name(split)))

    def open_storage(self, split: Split, channels: Channels, kind: StorageKind | None = None) -> Storage:
        storage = self.settings.storage
        return open_frames(self.root, replace(storage, kind=kind or storage.kind), limits=self.settings.frame_limits)

    def existing_parts(self) -> dict[str, SplitIndex]:
        """Return the whole official files that exist, also without labels."""
        return {name: self.open_file(name) for name in OFFICIAL_FILES if (self.root / name).is_file()}
