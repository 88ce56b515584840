"""Statistics of the boxes of an annotation file that point to another box format or to repeated records."""

import numpy as np

from yolo_lightning.data.array_types import FloatingArray, Int32Array, Int64Array, IntegerArray

FEWEST = 10  # Boxes below which only sides of less than a pixel are suspicious
EDGE = 2.0  # Pixels by which a box may exceed its frame without being counted
REPEATED_SHARE = 0.05
CENTRE_SHARE = 0.005


def suspicions(
    owner: Int64Array,
    boxes: FloatingArray,
    labels: IntegerArray,
    shapes: Int32Array,
) -> tuple[str, str]:
    """Return what cannot be right about the boxes of a file, and what is unlikely; empty texts for usual boxes.

    The boxes `(M, 4)` are xyxy in pixels of the frame, from `bbox` as x, y, width, height, and are not clipped. `owner`
    `(M,)` is the position of the image of each box, and `shapes` `(N, 2)` are height and width of the images.
    """
    if not len(boxes):
        return "", ""
    count = len(boxes)
    corners = boxes[:, :2]
    sides = boxes[:, 2:] - corners
    beyond = (np.maximum(-corners, boxes[:, 2:] - shapes[owner][:, ::-1]) > EDGE).any(axis=1)
    across = int(beyond.sum())
    unlikely = repeated(owner, boxes, labels)
    if (sides < 1).all():
        return f"all {count:,} boxes are smaller than 1 pixel: are they relative to the image?", ""
    if count < FEWEST:
        return "", "; ".join(unlikely)
    description = f"{across:,} of {count:,} boxes extend beyond the edge of their image"
    like_corners = float((sides > corners).all(axis=1).mean()) > 0.99
    cause = "x1, y1, x2, y2" if like_corners else "boxes of another image size, or center x, center y, width, height"
    if across > count / 2:
        return f"{description}: bbox must be x, y, width, height in pixels. Is it {cause}?", ""
    half = sides / 2
    inside_left = (corners >= half - 1).all(axis=1)
    inside_right = (boxes[:, 2:] - half <= shapes[owner][:, ::-1] + 1).all(axis=1)
    if like_corners:
        unlikely.append("all boxes are wider and higher than the distance to the origin: is bbox x1, y1, x2, y2?")
    elif across > max(2, CENTRE_SHARE * count) and inside_left.all() and inside_right.all():
        unlikely.append(f"{description}, to the right or bottom only: is bbox center x, center y, width, height?")
    return "", "; ".join(unlikely)


def repeated(owner: Int64Array, boxes: FloatingArray, labels: IntegerArray) -> list[str]:
    """Return a text if many boxes occur several times with the same class in the same image."""
    rows = np.column_stack([owner, labels, boxes]).astype(np.float64)
    rows = rows[np.lexsort(rows.T)]
    count = int((rows[1:] == rows[:-1]).all(axis=1).sum())
    if count <= max(2, REPEATED_SHARE * len(rows)):
        return []
    return [f"{count:,} of {len(rows):,} boxes repeat another box of their image: are objects listed twice?"]
