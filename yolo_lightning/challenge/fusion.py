"""Weighted boxes fusion of several submissions.

Source: "Weighted boxes fusion" (Solovyev, Wang and Gabruseva 2021, arXiv 1910.13302) as in the package ensemble-boxes
1.0.9 with `conf_type="avg"`, whose numbers a test compares. Non-maximum suppression keeps the box with the highest
score; here the boxes of an object are replaced by their mean, and objects that few files contain get lower scores.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from yolo_lightning.challenge.content import Content, Floats
from yolo_lightning.evaluation.matching import COUNTED_PER_CLASS, numbers_within, segment_starts

LARGEST_LABEL = 4
FUSION_IOU = 0.55
"""Default of ensemble-boxes: boxes with a larger IoU are of the same object."""


def fuse(
    contents: Sequence[Content], weights: Sequence[float], iou_threshold: float, score_threshold: float = 0.0
) -> Content:
    """Return the fused detections of K checked contents with the frames of the first.

    In each frame and class, boxes join, in descending order of score times weight, the group whose mean box has the
    largest IoU above the threshold, or begin a new one. The box of a group is the mean of its boxes, weighted by score
    times weight. Its score is the mean of score times weight over its boxes, multiplied by the number of its boxes, at
    most K: an object found by all files has the weighted mean of their scores, an object that only one file contains
    its score times the weight of that file. Scores are at most 1.

    Args:
        contents: Boxes xyxy in pixels, scores 0 to 1, labels 1 to 4; frames are matched by their ids.
        weights: Weight of each content, > 0, with the sum 1.
        iou_threshold: See above, 0 to 1.
        score_threshold: Detections with a score up to this one are left out before fusion, 0 to 1.

    Returns:
        At most 100 detections per frame and class, boxes rounded to 1/100 pixel, scores to 5 digits.
    """
    image_ids = contents[0].image_ids
    parts = [content.with_frames(image_ids) for content in contents]
    weighted = np.concatenate([part.scores * weight for part, weight in zip(parts, weights, strict=True)])
    raw = np.concatenate([part.scores for part in parts])
    owners = np.concatenate([part.owners for part in parts])
    labels = np.concatenate([part.labels for part in parts])
    boxes = np.concatenate([part.boxes for part in parts])
    keys = owners * (LARGEST_LABEL + 1) + labels.astype(np.int64)
    order = np.lexsort((-weighted, keys))
    order = order[raw[order] > score_threshold]
    keys, weighted, boxes = keys[order], weighted[order], boxes[order]
    fused, scores, groups = [np.zeros((0, 4))], [np.zeros(0)], [np.zeros(0, np.int64)]
    edges = [*segment_starts(keys), len(keys)] if len(keys) else []
    for start, stop in pairwise(edges):
        found, score = fuse_group(boxes[start:stop], weighted[start:stop], iou_threshold, len(contents))
        fused.append(found)
        scores.append(score)
        groups.append(np.full(len(score), keys[start]))
    all_boxes, all_scores, all_keys = (
        np.concatenate(fused).round(2),
        np.concatenate(scores).round(5),
        np.concatenate(groups),
    )
    order = np.lexsort((-all_scores, all_keys))
    all_boxes, all_scores, all_keys = all_boxes[order], all_scores[order], all_keys[order]
    kept = (all_boxes[:, :2] < all_boxes[:, 2:]).all(axis=1) & (numbers_within(all_keys) < COUNTED_PER_CLASS)
    owners, labels = np.divmod(all_keys, LARGEST_LABEL + 1)
    return replace(
        contents[0], owners=owners, boxes=all_boxes, scores=all_scores, labels=labels.astype(np.float64)
    ).take(kept)


def fuse_group(boxes: Floats, weighted: Floats, iou_threshold: float, files: int) -> tuple[Floats, Floats]:
    """Return boxes `(G, 4)` and scores `(G,)` of the groups of one frame and class.

    Args:
        boxes: `(N, 4)` xyxy in descending order of `weighted`.
        weighted: `(N,)` score times weight, > 0.
        iou_threshold: Minimum IoU of a box with the mean box of its group, exclusive.
        files: Number of fused files.
    """
    means, sums = np.empty_like(boxes), np.empty_like(boxes)
    totals, counts = np.zeros(len(boxes)), np.zeros(len(boxes))
    used = 0
    for box, score in zip(boxes, weighted, strict=True):
        place = used
        if used:
            overlaps = iou(means[:used], box)
            best = int(overlaps.argmax())
            place = best if overlaps[best] > iou_threshold else used
        if place == used:
            sums[place] = 0
            used += 1
        sums[place] += score * box
        totals[place] += score
        counts[place] += 1
        means[place] = sums[place] / totals[place]
    counts, totals = counts[:used], totals[:used]
    return means[:used], np.minimum(totals / counts * np.minimum(counts, files), 1.0)


def iou(boxes: Floats, box: Floats) -> npt.NDArray[np.float64]:
    """Return the IoU of each of `(N, 4)` xyxy boxes with one box; 0 if both have no area."""
    sides = np.minimum(boxes[:, 2:], box[2:]) - np.maximum(boxes[:, :2], box[:2])
    shared = np.maximum(sides, 0).prod(axis=1)
    union = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1) + (box[2:] - box[:2]).prod() - shared
    overlaps = np.zeros(len(boxes))
    np.divide(shared, union, out=overlaps, where=shared > 0)
    return overlaps
