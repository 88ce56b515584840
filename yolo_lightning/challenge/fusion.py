"""Weighted boxes fusion of several submissions."""

from collections.abc import Sequence

import numpy as np

from yolo_lightning.challenge.content import Content
from yolo_lightning.data import box_fusion
from yolo_lightning.data.occurrences import occurrences
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
    scores = np.concatenate([part.scores for part in parts])
    owners = np.concatenate([part.owners for part in parts])
    labels = np.concatenate([part.labels for part in parts])
    boxes = np.concatenate([part.boxes for part in parts])
    keys = owners * (LARGEST_LABEL + 1) + labels.astype(np.int64)
    is_used = scores > score_threshold
    boxes, scores, keys = box_fusion.fuse(
        boxes[is_used], weighted[is_used], keys[is_used], iou_threshold, len(contents)
    )
    scores = scores.round(5)
    order = np.lexsort((-scores, keys))
    scores = scores[order]
    keys = keys[order]
    boxes = boxes[order].round(2)
    kept = (boxes[:, :2] < boxes[:, 2:]).all(axis=1) & (occurrences(keys) < COUNTED_PER_CLASS)
    owners, labels = np.divmod(keys, LARGEST_LABEL + 1)
    return Content(image_ids, owners, boxes, scores, labels.astype(np.float64)).take(kept)
