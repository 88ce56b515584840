"""What every reader of annotations returns: a split as flat arrays, its boxes clipped to their frames."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from yolo_lightning.data.formats.annotation_file import ImageEntry
from yolo_lightning.data.formats.recording import WEATHER

MINIMUM_BOX_SIDE = 1e-3
"""Pixels. A box narrower than this after clipping has no area to learn from."""

LARGEST_SIDE = 1 << 16
"""Pixels. Far beyond any camera, so that a damaged size is refused here."""

Integers = npt.NDArray[np.int64]
Boxes = npt.NDArray[np.float32]
Labels = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True)
class BoxCounts:
    """What became of the boxes of a split."""

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
        image_ids: `(N,)` bytes, the ids as text, UTF-8: 17 digits do not fit a float64.
        text_ids: `(N,)` bool, whether the id is text in the annotation file; else it is a number there.
        file_names: `(N,)` bytes, UTF-8, relative to where the frames lie.
        shapes: `(N, 2)` int32, height and width in pixels.
        box_offsets: `(N + 1,)` int64.
        boxes: `(M, 4)` float32, xyxy, pixels of the frame.
        labels: `(M,)` int8 or int16, class index from 0.
        months: `(N,)` int32, YYYYMM, 0 where unknown.
        clips: `(N,)` int32, number of the frame's clip, from 0.
        clip_names: `(C,)` bytes, UTF-8, folder of each clip.
        positions_in_clip: `(N,)` int32, rank in the clip, from 0.
        weather: `(8, N)` float32, rows as `recording.WEATHER`, NaN where unknown.
        counts: What was clipped or dropped on the way.
        class_names: Index 0 first.
        category_ids: Number of each class in the files, index 0 first.
        has_clips: Whether clips are recordings; if not, each image stands as a clip of its own.
        notes: What else the user should know of the split, one line each.
    """

    image_ids: npt.NDArray[np.bytes_]
    text_ids: npt.NDArray[np.bool_]
    file_names: npt.NDArray[np.bytes_]
    shapes: npt.NDArray[np.int32]
    box_offsets: Integers
    boxes: Boxes
    labels: Labels
    months: npt.NDArray[np.int32]
    clips: npt.NDArray[np.int32]
    clip_names: npt.NDArray[np.bytes_]
    positions_in_clip: npt.NDArray[np.int32]
    weather: npt.NDArray[np.float32]
    counts: BoxCounts
    class_names: tuple[str, ...]
    category_ids: tuple[int, ...]
    has_clips: bool = True
    notes: tuple[str, ...] = ()


def still_images(
    image_ids: Sequence[str],
    text_ids: Sequence[bool],
    file_names: Sequence[str],
    shapes: npt.NDArray[np.int32],
    owner: Integers,
    boxes: Boxes,
    labels: Labels,
    class_names: tuple[str, ...],
    category_ids: tuple[int, ...],
    notes: tuple[str, ...],
) -> Annotations:
    """A split of which neither clips nor months nor weather are known.

    Args:
        image_ids: N ids, each once.
        text_ids: N flags, whether the id is text in the annotation file.
        file_names: N names, relative to where the frames lie, or absolute.
        shapes: `(N, 2)` int32, height and width in pixels.
        owner: `(M,)` int64, image that each box belongs to.
        boxes: `(M, 4)` float32, xyxy, pixels of the frame; may leave it.
        labels: `(M,)` integer, class index from 0.
        class_names: Index 0 first.
        category_ids: Number of each class in the files.
        notes: See `Annotations`.
    """
    images = len(shapes)
    owner, boxes, labels, counts = clean_boxes(owner, boxes, labels, shapes)
    order, box_offsets = group_by_image(owner, images)
    names = np.array([name.encode() for name in file_names], dtype=np.bytes_)
    return Annotations(
        image_ids=np.array([identifier.encode() for identifier in image_ids], dtype=np.bytes_),
        text_ids=np.array(text_ids, dtype=np.bool_),
        file_names=names,
        shapes=shapes,
        box_offsets=box_offsets,
        boxes=boxes[order],
        labels=labels[order].astype(label_type(len(class_names))),
        months=np.zeros(images, dtype=np.int32),
        clips=np.arange(images, dtype=np.int32),
        clip_names=names,
        positions_in_clip=np.zeros(images, dtype=np.int32),
        weather=np.full((len(WEATHER), images), np.nan, dtype=np.float32),
        counts=counts,
        class_names=class_names,
        category_ids=category_ids,
        has_clips=False,
        notes=notes,
    )


def label_type(classes: int) -> type[np.int8] | type[np.int16]:
    """The smallest type that holds the index of each class."""
    return np.int8 if classes <= np.iinfo(np.int8).max + 1 else np.int16


def distinct_names(names: Mapping[int, str]) -> dict[int, str]:
    """Class names by number; to those that several classes share, the number is added: scores are kept by name."""
    counts = Counter(names.values())
    return {number: name if counts[name] == 1 else f"{name} ({number})" for number, name in names.items()}


def check_images(path: Path, images: Sequence[ImageEntry]) -> None:
    """Refuse an empty split and frames without size.

    Raises:
        ValueError: Names file and record.
    """
    if not images:
        raise ValueError(f"{path}: the list of images is empty")
    for number, image in enumerate(images):
        if not (1 <= image.width <= LARGEST_SIDE and 1 <= image.height <= LARGEST_SIDE):
            raise ValueError(
                f"{path}: images[{number}] {image.file_name!r} has size {image.width} x {image.height}, "
                f"allowed are 1 to {LARGEST_SIDE} pixels a side"
            )


def clean_boxes(
    owner: Integers, boxes: Boxes, labels: Labels, shapes: npt.NDArray[np.int32]
) -> tuple[Integers, Boxes, Labels, BoxCounts]:
    """Clip boxes to their frame and drop those of no size, inside or outside of it."""
    limits = shapes[owner][:, [1, 0, 1, 0]].astype(np.float32)
    clipped = np.clip(boxes, 0, limits)
    sides = clipped[:, 2:] - clipped[:, :2]
    keep = (sides >= MINIMUM_BOX_SIDE).all(axis=1)
    changed = (clipped != boxes).any(axis=1) & keep
    counts = BoxCounts(kept=int(keep.sum()), clipped=int(changed.sum()), dropped=int((~keep).sum()))
    return owner[keep], clipped[keep], labels[keep], counts


def group_by_image(owner: Integers, images: int) -> tuple[Integers, Integers]:
    """Order that groups boxes by image, else as they are, and where each image's begin.

    Returns:
        `(M,)` positions of the boxes, and `(images + 1,)` offsets.
    """
    box_offsets = np.zeros(images + 1, dtype=np.int64)
    np.cumsum(np.bincount(owner, minlength=images), out=box_offsets[1:])
    return np.argsort(owner, kind="stable"), box_offsets
