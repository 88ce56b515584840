"""Weighted boxes fusion of several submissions."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from yolo_lightning.challenge.content import Content
from yolo_lightning.data.box_fusion import fuse_group
from yolo_lightning.evaluation.greedy import numbers_within, segment_starts
from yolo_lightning.evaluation.matching import COUNTED_PER_CLASS

LARGEST_LABEL = 4


def fuse(
    contents: Sequence[Content], weights: Sequence[float], iou_threshold: float, score_threshold: float = 0.0
) -> Content:
    """Return the fused detections of K checked contents with the frames of the first.

    The boxes of each frame and class are taken in descending order of score times weight. A box joins the group whose
    mean box has the largest IoU with this box, if that IoU is above the threshold. Otherwise the box begins a new
    group. The box of a group is the mean of its boxes, weighted by score times weight. The score of a group is
    `mean(score * weight) * min(n, K)` for its n boxes, and at most 1. An object found by all files has the weighted
    mean of the scores. An object that only one file contains has its score times the weight of that file.

    Args:
        contents: Boxes xyxy in pixels, scores 0 to 1, labels 1 to 4; frames are matched by their ids.
        weights: Weight of each content, > 0, with the sum 1.
        iou_threshold: Smallest IoU of a box with the mean box of its group, 0 to 1.
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
    parts_of_groups = [(np.zeros((0, 4)), np.zeros(0), np.zeros(0, np.int64))]
    edges = [*segment_starts(keys), len(keys)] if len(keys) else []
    for start, stop in pairwise(edges):
        found, score = fuse_group(boxes[start:stop], weighted[start:stop], iou_threshold, len(contents))
        parts_of_groups.append((found.round(2), score.round(5), np.full(len(score), keys[start])))
    all_boxes, all_scores, all_keys = map(np.concatenate, zip(*parts_of_groups, strict=True))
    order = np.lexsort((-all_scores, all_keys))
    all_boxes, all_scores, all_keys = all_boxes[order], all_scores[order], all_keys[order]
    kept = (all_boxes[:, :2] < all_boxes[:, 2:]).all(axis=1) & (numbers_within(all_keys) < COUNTED_PER_CLASS)
    owners, labels = np.divmod(all_keys, LARGEST_LABEL + 1)
    return replace(
        contents[0], owners=owners, boxes=all_boxes, scores=all_scores, labels=labels.astype(np.float64)
    ).take(kept)
