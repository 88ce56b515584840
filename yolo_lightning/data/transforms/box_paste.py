"""Box paste: rectangles around annotated objects of one frame, pasted with soft borders into another frame.

Independent of the number of channels. All randomness comes from the generator argument.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from yolo_lightning.data.array_types import Float32Array, Int32Array, Int64Array
from yolo_lightning.data.index.split_index import SplitIndex
from yolo_lightning.data.transforms.augmentation_settings import BoxPaste
from yolo_lightning.data.transforms.letterbox import Labelled
from yolo_lightning.errors import UserError

ATTEMPTS = 8  # Draws of an object and a place until the object fits
JITTER = 0.03  # Maximum shift of an object from its place, fraction of the height of the frame
MINIMUM_SIDE = 3  # Pixels of the frame. Smaller objects are not pasted.
BELONGS_ABOVE = 0.1
"""Intersection as a fraction of the smaller area above which two objects of a frame are pasted only together."""

FEATHER_SHARE = 0.25  # Width of the soft border outside of the objects as a fraction of their shorter side
FEATHER_RANGE = (2, 8)  # Limits of this width, pixels

Read = Callable[[int], Labelled]
"""Returns frame i of the split; its `problem` is not None if it cannot be read."""


class Region(NamedTuple):
    """Rectangle of a frame with complete objects."""

    left: int
    top: int
    width: int
    height: int
    members: Int64Array  # Positions of the objects among the boxes of the frame

    @property
    def feather(self) -> int:
        return int(np.clip(round(FEATHER_SHARE * min(self.width, self.height)), *FEATHER_RANGE))

    def around(self, left: int, top: int) -> Float32Array:
        """Return the `(4,)` xyxy rectangle with its soft border if the objects are moved to `(left, top)`."""
        border = self.feather
        corners = (left - border, top - border, left + self.width + border, top + self.height + border)
        return np.array(corners, dtype=np.float32)


def object_region(boxes: Float32Array, chosen: int, shape: tuple[int, int]) -> Region | None:
    """Return the rectangle of object `chosen` and the objects that overlap it.

    Args:
        boxes: `(N, 4)` xyxy, pixels of the frame.
        chosen: Position of the object in `boxes`.
        shape: `(height, width)` of the frame.

    Returns:
        None if an object of the rectangle reaches the border of the frame, where it may be cut off, if the rectangle
        contains a part of another object, or if the object is too small.
    """
    belongs = overlap(boxes[chosen], boxes) > BELONGS_ABOVE
    belongs[chosen] = True
    low = np.floor(boxes[belongs, :2].min(axis=0))
    high = np.ceil(boxes[belongs, 2:].max(axis=0))
    is_cut_off = (low <= 0).any() or (high >= shape[::-1]).any()
    if is_cut_off or (boxes[chosen, 2:] - boxes[chosen, :2]).min() < MINIMUM_SIDE:
        return None
    if (overlap(np.concatenate((low, high)), boxes[~belongs]) > BELONGS_ABOVE).any():
        return None
    x, y = low.astype(int).tolist()
    width, height = (high - low).astype(int).tolist()
    return Region(x, y, width, height, np.flatnonzero(belongs))


def overlap(box: Float32Array, boxes: Float32Array) -> Float32Array:
    """Return the `(N,)` intersections of `box` `(4,)` with `boxes` `(N, 4)`, as fractions of the smaller area."""
    sides = np.minimum(box[2:], boxes[:, 2:]) - np.maximum(box[:2], boxes[:, :2])
    smaller = np.minimum((box[2:] - box[:2]).prod(), (boxes[:, 2:] - boxes[:, :2]).prod(axis=1))
    return np.asarray(sides.clip(min=0).prod(axis=1) / np.maximum(smaller, np.float32(1e-9)))


def random_place(
    region: Region,
    source_shape: tuple[int, int],
    target: Labelled,
    generator: np.random.Generator,
) -> tuple[int, int] | None:
    """Return `(left, top)` of the objects in `target`, near their place in their own frame.

    Returns None if the objects do not fit or overlap another object there.
    """
    height, width = target.image.shape[:2]
    centre_x = (region.left + region.width / 2) / source_shape[1] * width
    centre_y = (region.top + region.height / 2) / source_shape[0] * height
    shift_x, shift_y = generator.uniform(-JITTER, JITTER, size=2) * height
    x = round(centre_x + shift_x - region.width / 2)
    y = round(centre_y + shift_y - region.height / 2)
    if not (0 <= x <= width - region.width and 0 <= y <= height - region.height):
        return None
    if (overlap(region.around(x, y), target.boxes) > 0).any():
        return None
    return x, y


def paste(target: Labelled, source: Labelled, region: Region, left: int, top: int) -> Labelled:
    """Return a copy of `target` with the objects in `region` of `source` at `(left, top)`.

    The mean level of the surroundings of the objects is shifted to that of the new place, per channel.
    """
    height, width = source.image.shape[:2]
    target_height, target_width = target.image.shape[:2]
    # The soft border is narrower at the borders of both frames.
    before_x = min(region.feather, region.left, left)
    before_y = min(region.feather, region.top, top)
    after_x = min(region.feather, width - region.left - region.width, target_width - left - region.width)
    after_y = min(region.feather, height - region.top - region.height, target_height - top - region.height)
    columns = ramp(before_x, region.width, after_x)
    rows = ramp(before_y, region.height, after_y)
    weights = np.outer(rows, columns)

    def window(x: int, y: int) -> tuple[slice, slice]:
        return slice(y - before_y, y - before_y + len(rows)), slice(x - before_x, x - before_x + len(columns))

    image = target.image.copy()
    there = image[window(left, top)]
    patch = source.image[window(region.left, region.top)].astype(np.float32)
    border = weights < 1
    if border.any():
        patch += there[border].mean(axis=0, dtype=np.float32) - patch[border].mean(axis=0)
    if image.ndim == 3:
        weights = weights[..., None]
    blended = np.asarray(there + weights * (patch - there), dtype=np.float32)
    if image.dtype == np.uint8:
        blended = np.rint(blended).clip(0, 255)
    there[...] = blended
    moved = source.boxes[region.members] + np.array([left - region.left, top - region.top] * 2, dtype=np.float32)
    boxes = np.concatenate((target.boxes, moved))
    return Labelled(image, boxes, np.concatenate((target.labels, source.labels[region.members])), target.gain)


def ramp(before: int, inside: int, after: int) -> Float32Array:
    """Return the weights along an axis: 1 inside, falling towards 0 in the borders of `before` and `after` pixels."""
    rising, falling = (np.arange(1, count + 1, dtype=np.float32) / (count + 1) for count in (before, after))
    return np.concatenate((rising, np.ones(inside, dtype=np.float32), falling[::-1]))


class AnnotatedObject(NamedTuple):
    """An annotated object of a split."""

    frame: int  # Index of the frame in the split
    box: int  # Position of the box among the boxes of the frame


class PasteCandidates:
    """Objects of a training split with one of the classes `names`, with any class if `names` is empty.

    A pickle does not contain the positions. Each process derives them on the first draw, with four bytes per box of the
    chosen classes.

    Raises:
        UserError: If a name is not a class of the dataset, or no box has one of the classes.
    """

    def __init__(self, index: SplitIndex, names: Sequence[str]) -> None:
        classes = index.facts.class_names
        for name in names:
            if name not in classes:
                raise UserError(f"data.augmentation.paste.classes must be names of {', '.join(classes)}, got {name!r}")
        self.index = index
        self.classes = sorted({classes.index(name) for name in names}) or range(len(classes))
        if not np.isin(index.all_labels(), self.classes).any():
            raise UserError(
                "data.augmentation.paste.classes must contain a class that occurs in the training split, got "
                f"{', '.join(classes[label] for label in self.classes)}"
            )

    def __getstate__(self) -> dict[str, Any]:
        return {"index": self.index, "classes": self.classes}

    @cached_property
    def positions(self) -> dict[int, list[Int32Array]]:
        """Positions of the objects among all boxes of the split: by month, YYYYMM, one array per class that occurs."""
        labels = self.index.all_labels()
        months = np.repeat(self.index.months(), np.diff(self.index.box_offsets()))
        by_month = {}
        for month in np.unique(self.index.months()).tolist():
            by_class = [np.flatnonzero((months == month) & (labels == label)) for label in self.classes]
            by_month[month] = [boxes.astype(np.int32) for boxes in by_class if len(boxes)]
        return by_month

    @cached_property
    def box_offsets(self) -> Int64Array:
        """`(N + 1,)` as in `SplitIndex`, which computes the array of a part anew at each call."""
        return self.index.box_offsets()

    def draw(self, month: int, generator: np.random.Generator) -> AnnotatedObject | None:
        """Return a random object of `month`, YYYYMM: a class that occurs in the month, then one of its objects.

        Returns None if the month has no object of the chosen classes.
        """
        present = self.positions[month]
        if not present:
            return None
        boxes = present[generator.integers(len(present))]
        box = int(boxes[generator.integers(len(boxes))])
        frame = int(np.searchsorted(self.box_offsets, box, side="right")) - 1
        return AnnotatedObject(frame, box - int(self.box_offsets[frame]))


class ObjectPaster:
    """Pastes objects of frames of the same month into frames of the training split `index`."""

    def __init__(self, index: SplitIndex, settings: BoxPaste) -> None:
        self.index = index
        self.settings = settings
        self.candidates = PasteCandidates(index, settings.classes)

    def __call__(
        self,
        indices: Sequence[int],
        frames: Sequence[Labelled],
        read: Read,
        generator: np.random.Generator,
    ) -> list[Labelled]:
        """Return the frames, some of them with pasted objects.

        Args:
            indices: Positions of the frames in the split.
            frames: The frames; their arrays are not changed. An unreadable frame receives no object.
            read: Reads a frame of the split.
            generator: Source of all random choices, none of which depends on pixels.
        """
        pasted = []
        for index, frame in zip(indices, frames, strict=True):
            if frame.problem is None and generator.random() < self.settings.probability:
                for _ in range(generator.integers(1, self.settings.count, endpoint=True)):
                    frame = self._with_object(index, frame, read, generator)
            pasted.append(frame)
        return pasted

    def _with_object(self, index: int, frame: Labelled, read: Read, generator: np.random.Generator) -> Labelled:
        """Return `frame` with an object, or unchanged if no drawn object fits or its source is unreadable."""
        for _ in range(ATTEMPTS):
            candidate = self.candidates.draw(self.index.month(index), generator)
            if candidate is None:
                break
            shape = self.index.shape(candidate.frame)
            region = object_region(self.index.boxes(candidate.frame), candidate.box, shape)
            if region is None:
                continue
            place = random_place(region, shape, frame, generator)
            if place is not None:
                source = read(candidate.frame)
                if source.problem is None:
                    frame = paste(frame, source, region, *place)
                break
        return frame
