"""Statistics of written boxes that point to another box format or to repeated records, for every dataset format."""

import numpy as np

from yolo_lightning.data.array_types import BoolArray, FloatingArray, Int32Array, Int64Array, IntegerArray

CORNERS = "x1, y1, x2, y2"
CENTERS = "center x, center y, width, height"
CORNER_AND_SIDES = "x, y, width, height"
BOX_FORMATS = (CORNERS, CENTERS, CORNER_AND_SIDES)
"""What the four numbers of a written box may be."""

FEWEST = 10  # Boxes below which only sides of less than a pixel are suspicious
EDGE = 2.0  # Pixels by which a box may exceed its frame without being counted
REPEATED_SHARE = 0.05
BEYOND_SHARE = 0.005


def corners_of(values: FloatingArray, box_format: str) -> FloatingArray:
    """Return boxes `(M, 4)` as xyxy in the unit of their written `values`, one of `BOX_FORMATS`."""
    low = values[:, :2]
    high = values[:, 2:]
    if box_format == CENTERS:
        low = low - high / 2
    if box_format != CORNERS:
        high = low + high
    return np.concatenate((low, high), axis=1)


def suspicions(
    owner: Int64Array,
    values: FloatingArray,
    labels: IntegerArray,
    shapes: Int32Array,
    box_format: str,
    rule: str,
) -> tuple[str, str]:
    """Return what cannot be right about the boxes of a file, and what is unlikely; empty texts for usual boxes.

    Args:
        owner: `(M,)`, position of the image of each box.
        values: `(M, 4)`, the written numbers of each box in pixels of the frame, not clipped.
        labels: `(M,)`, class of each box.
        shapes: `(N, 2)`, height and width of the images.
        box_format: Format in which `values` are read, one of `BOX_FORMATS`.
        rule: Sentence for messages that names this format, without full stop.
    """
    count = len(values)
    if not count:
        return "", ""
    limits = shapes[owner][:, ::-1]
    boxes = corners_of(values, box_format)
    if (boxes[:, 2:] - boxes[:, :2] < 1).all():
        return f"all {count:,} boxes are smaller than 1 pixel: {rule}.", ""
    unlikely = repeated(owner, values, labels)
    if count < FEWEST:
        return "", "; ".join(unlikely)
    beyond = int((~_inside(boxes, limits, EDGE)).sum())
    description = f"{beyond:,} of {count:,} boxes extend beyond the edge of their image"
    other_formats = [other for other in BOX_FORMATS if other != box_format]
    fitting = {other: float(_inside(corners_of(values, other), limits, 1).mean()) for other in other_formats}
    cause = max(fitting, key=lambda other: fitting[other])
    if beyond > count / 2:
        if fitting[cause] < 0.99:
            cause = f"boxes of another image size, or {' or '.join(other_formats)}"
        return f"{description}: {rule}. Is it {cause}?", ""
    like_corners = box_format == CORNER_AND_SIDES and float((values[:, 2:] > values[:, :2]).all(axis=1).mean()) > 0.99
    if like_corners:
        unlikely.append(f"all boxes are wider and higher than the distance to the origin: {rule}. Is it {CORNERS}?")
    elif beyond > max(2, BEYOND_SHARE * count) and fitting[cause] == 1:
        unlikely.append(f"{description}: {rule}. Is it {cause}?")
    return "", "; ".join(unlikely)


def _inside(boxes: FloatingArray, limits: Int32Array, tolerance: float) -> BoolArray:
    """Return `(M,)`, whether xyxy boxes are in their frames of `limits` `(M, 2)`, width and height, in this order."""
    low = boxes[:, :2]
    high = boxes[:, 2:]
    inside = (low >= -tolerance) & (high <= limits + tolerance) & (high >= low)
    return np.asarray(inside.all(axis=1), np.bool_)


def repeated(owner: Int64Array, values: FloatingArray, labels: IntegerArray) -> list[str]:
    """Return a text if many boxes occur several times with the same class in the same image."""
    rows = np.column_stack([owner, labels, values]).astype(np.float64)
    rows = rows[np.lexsort(rows.T)]
    count = int((rows[1:] == rows[:-1]).all(axis=1).sum())
    if count <= max(2, REPEATED_SHARE * len(rows)):
        return []
    return [f"{count:,} of {len(rows):,} boxes repeat another box of their image: are objects listed twice?"]
