"""Result of every annotation reader: a split as flat arrays, with its boxes clipped to their frames."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from yolo_lightning.data.array_types import (
    BoolArray,
    BytesArray,
    Float32Array,
    FloatingArray,
    Int32Array,
    Int64Array,
    IntegerArray,
)
from yolo_lightning.data.formats.suspicious_boxes import corners_of, suspicions
from yolo_lightning.utils.plain_text import one_line

IMAGE_NUMBER = re.compile(r"(\d{1,18})\D*$")  # Last number in the stem of a file name

MINIMUM_BOX_SIDE = 1e-3  # Pixels. A box with a shorter side after clipping is dropped.
CLIPPED_BY = 0.01  # Pixels. A box that exceeds its frame by less was rounded when it was written.
LONGEST_NAME = 200  # Characters of a class name


class SplitFacts(msgspec.Struct, frozen=True):
    """Facts about a split as a whole."""

    class_names: tuple[str, ...]  # Index 0 first
    category_ids: tuple[int, ...]  # Number of each class in the annotation files, index 0 first
    kept: int  # Number of boxes
    clipped: int  # Number of kept boxes that were clipped to their frame
    dropped: int  # Number of boxes without area, which were dropped
    has_clips: bool = False  # Whether clips are recordings; if not, each image is its own clip
    notes: tuple[str, ...] = ()  # Further remarks for the log, one line each
    impossible: str = ""  # What cannot be right about the boxes of the file, see `suspicions`
    unlikely: str = ""  # What is unlikely about the boxes of the file

    def describe_boxes(self) -> str:
        return f"{self.kept:,} boxes; {self.clipped:,} clipped to the frame, {self.dropped:,} without area dropped"


@dataclass(frozen=True, slots=True)
class Annotations:
    """A split as flat arrays; the boxes of image `i` are `box_offsets[i]:box_offsets[i + 1]`."""

    image_ids: BytesArray  # `(N,)` bytes, the ids as UTF-8 text: 17 digits do not fit into a float64
    text_ids: BoolArray  # `(N,)` bool, whether the id is text in the annotation file, else a number
    file_names: BytesArray  # `(N,)` bytes, UTF-8, relative to the folder of the frames
    shapes: Int32Array  # `(N, 2)` int32, height and width in pixels
    box_offsets: Int64Array  # `(N + 1,)` int64
    boxes: Float32Array  # `(M, 4)` float32, xyxy, pixels of the frame
    labels: IntegerArray  # `(M,)` int8 or int16, class index from 0
    months: Int32Array  # `(N,)` int32, YYYYMM, 0 if unknown
    clips: Int32Array  # `(N,)` int32, number of the frame's clip, from 0
    clip_names: BytesArray  # `(C,)` bytes, UTF-8, folder of each clip
    positions_in_clip: Int32Array  # `(N,)` int32, rank in the clip, from 0
    facts: SplitFacts


def still_images(
    image_ids: Iterable[str],
    text_ids: Sequence[bool],
    file_names: Sequence[str],
    shapes: Int32Array,
    owner: Int64Array,
    values: FloatingArray,
    labels: IntegerArray,
    classes: Mapping[int, str],
    notes: Iterable[str],
    box_format: str,
    rule: str,
    impossible: str = "",
    unlikely: str = "",
) -> Annotations:
    """Check boxes, group them by image, clip them and drop those without area.

    Clips and months are unknown. The boxes may be outside of the frame and in any order.

    Args:
        image_ids: N ids as text.
        text_ids: Whether each id is text in the annotation file.
        file_names: N names, which may be absolute.
        shapes: `(N, 2)`, height and width of the images.
        owner: `(M,)`, position of the image of each box.
        values: `(M, 4)`, the written numbers of each box in pixels of the frame.
        labels: `(M,)`, class index of each box.
        classes: Written names by number in the annotation files, in the order of the class indexes.
        notes: Remarks for the log.
        box_format: Format of `values`, one of `BOX_FORMATS`.
        rule: Sentence for messages that names this format, without full stop.
        impossible: What cannot be right according to the reader, in place of the result of `suspicions`.
        unlikely: What is unlikely according to the reader, in addition to the result of `suspicions`.
    """
    suspicious, unlikely_boxes = suspicions(owner, values, labels, shapes, box_format, rule)
    boxes = corners_of(values, box_format).astype(np.float32)
    lines = list(map(one_line, (*renamed_classes(classes), *notes)))
    limits = shapes[owner][:, [1, 0, 1, 0]].astype(np.float32)
    clipped = np.clip(boxes, 0, limits)
    keep = (clipped[:, 2:] - clipped[:, :2] >= MINIMUM_BOX_SIDE).all(axis=1)
    exceeds = (np.abs(clipped - boxes) > CLIPPED_BY).any(axis=1) & keep
    kept = np.flatnonzero(keep)
    kept = kept[np.argsort(owner[kept], kind="stable")]
    if not keep.all():
        dropped = keep.argmin()
        example = f"x1, y1, x2, y2 = {boxes[dropped].tolist()} of {file_names[owner[dropped]]}"
        lines.append(one_line(f"dropped boxes have no area inside their image, such as {example}", LONGEST_NAME))
    count = len(shapes)
    return Annotations(
        image_ids=encoded(image_ids),
        text_ids=np.array(text_ids, dtype=np.bool_),
        file_names=encoded(file_names),
        shapes=shapes,
        box_offsets=np.concatenate(([0], np.cumsum(np.bincount(owner[kept], minlength=count)))),
        boxes=clipped[kept],
        labels=labels[kept].astype(np.int8 if len(classes) <= 128 else np.int16),
        months=np.zeros(count, dtype=np.int32),
        clips=np.arange(count, dtype=np.int32),
        clip_names=encoded(location_free(file_names)),
        positions_in_clip=np.zeros(count, dtype=np.int32),
        facts=SplitFacts(
            tuple(distinct_names(classes).values()),
            tuple(classes),
            len(kept),
            int(exceeds.sum()),
            int((~keep).sum()),
            notes=tuple(lines),
            impossible=impossible or suspicious,
            unlikely="; ".join(filter(None, (unlikely_boxes, unlikely))),
        ),
    )


def encoded(texts: Iterable[str]) -> BytesArray:
    return np.array([text.encode() for text in texts], dtype=np.bytes_)


def location_free(names: Sequence[str]) -> list[str]:
    """Return the names, with absolute paths relative to the folder that contains all of them and a leading `/`.

    Such names are equal for a dataset that was moved.
    """
    absolute_names = [name for name in names if name.startswith("/")]
    if not absolute_names:
        return list(names)
    ends = (min(absolute_names), max(absolute_names))  # All names between them begin as both of them do
    common_folder = os.path.commonpath([os.path.dirname(name) for name in ends]).rstrip("/")
    return [name.removeprefix(common_folder) if name.startswith("/") else name for name in names]


def distinct_names(names: Mapping[int, str]) -> dict[int, str]:
    """Return class names by number, each as one line without control characters.

    A name of several classes gets its number, because scores are stored by name.
    """
    names = {number: one_line(name, LONGEST_NAME) for number, name in names.items()}
    counts = Counter(names.values())
    return {number: name if counts[name] == 1 else f"{name} ({number})" for number, name in names.items()}


def renamed_classes(names: Mapping[int, str]) -> list[str]:
    """Return a note if `distinct_names` changes a name that several classes have."""
    counts = Counter(one_line(name, LONGEST_NAME) for name in names.values())
    if not counts:
        return []
    name, count = counts.most_common(1)[0]
    if count == 1:
        return []
    renamed = [f"'{new_name}'" for new_name in distinct_names(names).values() if new_name.startswith(f"{name} (")]
    return [
        f"{count:,} classes have the name '{name}' and remain different classes, such as {' and '.join(renamed[:2])}; "
        "to make them one class, give all their boxes the same class number"
    ]
