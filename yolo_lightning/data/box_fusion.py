"""Weighted boxes fusion of the detections of several sources: submissions, or views of a frame.

Source: "Weighted boxes fusion" (Solovyev, Wang and Gabruseva 2021, arXiv 1910.13302) as in the package ensemble-boxes
1.0.9 with `conf_type="avg"`, whose numbers a test compares. Non-maximum suppression keeps the box with the highest
score; here the boxes of an object are replaced by their mean, and objects that few sources contain get lower scores.
"""

from itertools import pairwise

import numpy as np

from yolo_lightning.data.array_types import Float64Array, Int64Array

FUSION_IOU = 0.55
"""Default of ensemble-boxes: boxes with a larger IoU are of the same object."""


def fuse(
    boxes: Float64Array, weighted: Float64Array, keys: Int64Array, iou_threshold: float, sources: int
) -> tuple[Float64Array, Float64Array, Int64Array]:
    """Return boxes `(G, 4)`, scores `(G,)` and keys `(G,)` of the groups of boxes, sorted by key.

    Args:
        boxes: `(N, 4)` xyxy.
        weighted: `(N,)` score times weight, > 0.
        keys: `(N,)` number of the frame and class of each box; boxes of different keys are not fused.
        iou_threshold: Minimum IoU of a box with the mean box of its group, exclusive.
        sources: Number of fused sources.
    """
    order = np.lexsort((-weighted, keys))
    boxes = boxes[order]
    scores = weighted[order]
    keys = keys[order]
    is_fused = np.zeros(len(keys), np.bool_)
    for start, stop in pairwise([0, *(np.flatnonzero(np.diff(keys)) + 1).tolist(), len(keys)]):
        group_boxes, group_scores = _fuse_descending(boxes[start:stop], scores[start:stop], iou_threshold, sources)
        fused = slice(start, start + len(group_scores))  # the mean boxes replace the first boxes
        boxes[fused] = group_boxes
        scores[fused] = group_scores
        is_fused[fused] = True
    return boxes[is_fused], scores[is_fused], keys[is_fused]


def _fuse_descending(
    boxes: Float64Array, weighted: Float64Array, iou_threshold: float, sources: int
) -> tuple[Float64Array, Float64Array]:
    """Return boxes and scores of the groups of one frame and class, given boxes in descending order of `weighted`."""
    means = np.empty_like(boxes)
    sums = np.zeros_like(boxes)
    totals = np.zeros(len(boxes))
    counts = np.zeros(len(boxes))
    used = 0
    for box, score in zip(boxes, weighted, strict=True):
        place = used
        if used:
            overlaps = _iou(means[:used], box)
            best = int(overlaps.argmax())
            if overlaps[best] > iou_threshold:
                place = best
        used = max(used, place + 1)
        sums[place] += score * box
        totals[place] += score
        counts[place] += 1
        means[place] = sums[place] / totals[place]
    counts = counts[:used]
    return means[:used], np.minimum(totals[:used] / counts * np.minimum(counts, sources), 1.0)


def _iou(boxes: Float64Array, box: Float64Array) -> Float64Array:
    """Return the IoU of each of `(N, 4)` xyxy boxes with one box; 0 if both have no area."""
    sides = np.minimum(boxes[:, 2:], box[2:]) - np.maximum(boxes[:, :2], box[:2])
    shared = np.maximum(sides, 0).prod(axis=1)
    union = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1) + (box[2:] - box[:2]).prod() - shared
    overlaps = np.zeros(len(boxes))
    np.divide(shared, union, out=overlaps, where=shared > 0)
    return overlaps
