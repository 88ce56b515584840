"""Repairs of an answer file that need no guess: content in, mended content out."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from yolo_lightning.challenge.content import Content, Flags, Floats


def with_ids(content: Content, names: Mapping[str, str]) -> Content:
    """Keys renamed; those that `names` does not hold stay."""
    return replace(content, image_ids=tuple(names.get(image_id, image_id) for image_id in content.image_ids))


def without_frames(content: Content, image_ids: frozenset[str]) -> Content:
    """Some frames left out, with their detections."""
    kept = np.array([image_id not in image_ids for image_id in content.image_ids], dtype=np.bool_)
    remaining = content.keeping(np.repeat(kept, content.counts))
    names = tuple(image_id for image_id in content.image_ids if image_id not in image_ids)
    return replace(remaining, image_ids=names, counts=remaining.counts[kept])


def with_empty_frames(content: Content, image_ids: Sequence[str]) -> Content:
    """Frames without detections added at the end."""
    counts = np.concatenate((content.counts, np.zeros(len(image_ids), dtype=np.int64)))
    return replace(content, image_ids=(*content.image_ids, *image_ids), counts=counts)


def without_detections(content: Content, wrong: Flags) -> Content:
    """Some detections, `(D,)` bool, left out."""
    return content.keeping(~wrong)


def with_shifted_labels(content: Content, shift: int) -> Content:
    """Labels moved up or down."""
    return replace(content, labels=content.labels + shift)


def with_corners(content: Content, layout: str, scale: tuple[float, float]) -> Content:
    """Boxes of another layout or of another unit as xyxy in pixels; see `corners`."""
    return replace(content, boxes=corners(content.boxes, layout, scale))


def corners(boxes: Floats, layout: str, scale: tuple[float, float] = (1.0, 1.0)) -> Floats:
    """`(D, 4)` xyxy.

    Args:
        boxes: `(D, 4)`.
        layout: What the four numbers are: xyxy, xywh (corner and sides) or cxcywh (centre and sides).
        scale: Horizontal and vertical unit of the numbers, pixels.
    """
    first, second = boxes[:, :2], boxes[:, 2:]
    if layout == "xywh":
        second = first + second
    elif layout == "cxcywh":
        first, second = first - second / 2, first + second / 2
    result: Floats = np.concatenate((first, second), axis=1) * np.array([*scale, *scale])
    return result
