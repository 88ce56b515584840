"""Reads LTDv2's official annotation files (COCO JSON) and checks that they are what they claim to be.

The categories of LTDv2 hold a background entry (id 0) in first place, so a class is `category_id - 1`, never the
position in the list.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from yolo_lightning.data import recording
from yolo_lightning.data.annotation_file import AnnotationRecord, CategoryRecord, ImageRecord, decode
from yolo_lightning.data.image_ids import (
    id_text,
    image_id_texts,
    refuse_rounded_ids,
    refuse_rounded_owners,
    unknown_image_hint,
)

CLASS_NAMES = ("person", "bicycle", "motorcycle", "vehicle")
"""LTDv2's classes in the order of their category ids 1 to 4."""

MINIMUM_BOX_SIDE = 1e-3
"""Pixels. A box narrower than this after clipping has no area to learn from."""

LARGEST_SIDE = 1 << 16
"""Pixels. Far beyond any camera, so that a damaged size is refused here."""

DATE_CHARACTERS = 19
"""Of an ISO date and time to the second."""


@dataclass(frozen=True, slots=True)
class BoxCounts:
    """What became of the boxes of an annotation file."""

    kept: int
    clipped: int
    dropped: int

    def describe(self) -> str:
        """One line for the log."""
        return f"{self.kept:,} boxes; {self.clipped:,} clipped to the frame, {self.dropped:,} of no size dropped"


@dataclass(frozen=True, slots=True)
class Annotations:
    """A split as flat arrays; image `i` owns boxes `box_offsets[i]:box_offsets[i + 1]`.

    Attributes:
        image_ids: `(N,)` bytes, the ids as ASCII text: 17 digits do not fit a float64.
        file_names: `(N,)` bytes, UTF-8, relative to the dataset root.
        shapes: `(N, 2)` int32, height and width in pixels.
        box_offsets: `(N + 1,)` int64.
        boxes: `(M, 4)` float32, xyxy, pixels of the frame.
        labels: `(M,)` int8, class index from 0.
        months: `(N,)` int32, YYYYMM, 0 where unknown.
        clips: `(N,)` int32, number of the frame's clip, from 0.
        clip_names: `(C,)` bytes, UTF-8, folder of each clip.
        positions_in_clip: `(N,)` int32, rank in the clip, from 0.
        weather: `(8, N)` float32, rows as `recording.WEATHER`, NaN where unknown.
        counts: What was clipped or dropped on the way.
    """

    image_ids: npt.NDArray[np.bytes_]
    file_names: npt.NDArray[np.bytes_]
    shapes: npt.NDArray[np.int32]
    box_offsets: npt.NDArray[np.int64]
    boxes: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int8]
    months: npt.NDArray[np.int32]
    clips: npt.NDArray[np.int32]
    clip_names: npt.NDArray[np.bytes_]
    positions_in_clip: npt.NDArray[np.int32]
    weather: npt.NDArray[np.float32]
    counts: BoxCounts


def read_annotations(path: Path) -> Annotations:
    """Read and check one annotation file.

    Raises:
        ValueError: If the file is missing or is not an LTDv2 annotation file; the message names file and record.
    """
    content = decode(path)
    images = content.images
    check_categories(path, content.categories)
    check_images(path, images)
    file_names = [image.file_name for image in images]
    positions = image_id_texts(path, [image.id for image in images], file_names)
    image_ids = np.array([text.encode() for text in positions], dtype=np.bytes_)
    dates = np.array([date_text(image.date_captured) for image in images], dtype=np.bytes_)
    refuse_rounded_ids(path, image_ids, dates, file_names)
    owner, boxes, labels = annotation_arrays(path, content.annotations, positions)
    refuse_rounded_owners(path, image_ids, owner, file_names)
    shapes = np.array([(image.height, image.width) for image in images], dtype=np.int32)
    owner, boxes, labels, counts = clean_boxes(owner, boxes, labels, shapes)
    order = np.argsort(owner, kind="stable")
    box_offsets = np.zeros(len(shapes) + 1, dtype=np.int64)
    np.cumsum(np.bincount(owner, minlength=len(shapes)), out=box_offsets[1:])
    clips, clip_names = recording.clips(file_names)
    return Annotations(
        image_ids=image_ids,
        file_names=np.array([name.encode() for name in file_names], dtype=np.bytes_),
        shapes=shapes,
        box_offsets=box_offsets,
        boxes=boxes[order],
        labels=labels[order],
        months=recording.months(image_ids, dates),
        clips=clips,
        clip_names=np.array([name.encode() for name in clip_names], dtype=np.bytes_),
        positions_in_clip=recording.positions_in_clip(file_names, clips),
        weather=recording.weather([image.meta for image in images]),
        counts=counts,
    )


def date_text(date: object) -> bytes:
    """The ASCII beginning of an ISO date and time, to the second; empty where it is no text."""
    return date[:DATE_CHARACTERS].encode(errors="replace") if isinstance(date, str) else b""


def check_categories(path: Path, categories: list[CategoryRecord]) -> None:
    """Refuse a file whose category ids do not mean LTDv2's classes."""
    found = {category.id: category.name.strip().lower() for category in categories if category.id != 0}
    expected = dict(enumerate(CLASS_NAMES, start=1))
    if found != expected:
        raise ValueError(f"{path}: categories are {found}, expected {expected} (and optionally 0, background)")


def check_images(path: Path, images: list[ImageRecord]) -> None:
    """Refuse an empty split and frames without size."""
    if not images:
        raise ValueError(f"{path}: the list of images is empty")
    for number, image in enumerate(images):
        if not (1 <= image.width <= LARGEST_SIDE and 1 <= image.height <= LARGEST_SIDE):
            raise ValueError(
                f"{path}: images[{number}] {image.file_name!r} has size {image.width} x {image.height}, "
                f"allowed are 1 to {LARGEST_SIDE} pixels a side"
            )


def annotation_arrays(
    path: Path, annotations: list[AnnotationRecord], positions: dict[str, int]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32], npt.NDArray[np.int8]]:
    """Owner image, xyxy box and class of every annotation.

    Raises:
        ValueError: If an annotation names an unknown image or a category other than 1 to 4.
    """
    owner = np.empty(len(annotations), dtype=np.int64)
    boxes = np.empty((len(annotations), 4), dtype=np.float32)
    labels = np.empty(len(annotations), dtype=np.int8)
    for number, annotation in enumerate(annotations):
        position = positions.get(id_text(annotation.image_id) or "")
        if position is None:
            raise ValueError(
                f"{path}: annotations[{number}] belongs to unknown image_id {annotation.image_id}"
                + unknown_image_hint(annotation.image_id, positions)
            )
        if not 1 <= annotation.category_id <= len(CLASS_NAMES):
            raise ValueError(
                f"{path}: annotations[{number}] has category_id {annotation.category_id}, "
                f"allowed are 1 to {len(CLASS_NAMES)} {CLASS_NAMES}; 0 is background"
            )
        owner[number], boxes[number], labels[number] = position, annotation.bbox, annotation.category_id - 1
    boxes[:, 2:] += boxes[:, :2]
    return owner, boxes, labels


def clean_boxes(
    owner: npt.NDArray[np.int64],
    boxes: npt.NDArray[np.float32],
    labels: npt.NDArray[np.int8],
    shapes: npt.NDArray[np.int32],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32], npt.NDArray[np.int8], BoxCounts]:
    """Clip boxes to their frame and drop those of no size, inside or outside of it."""
    limits = shapes[owner][:, [1, 0, 1, 0]].astype(np.float32)
    clipped = np.clip(boxes, 0, limits)
    sides = clipped[:, 2:] - clipped[:, :2]
    keep = (sides >= MINIMUM_BOX_SIDE).all(axis=1)
    changed = (clipped != boxes).any(axis=1) & keep
    counts = BoxCounts(kept=int(keep.sum()), clipped=int(changed.sum()), dropped=int((~keep).sum()))
    return owner[keep], clipped[keep], labels[keep], counts
