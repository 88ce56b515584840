"""Which detections are right: COCO's greedy matching, done once per frame and class.

What is kept of a detection (class, score, rank, right or wrong at ten thresholds) is enough to score any part of the
frames afterwards, so that months cost no further matching. Source of the rule: `COCOeval.evaluateImg` of pycocotools,
as torchmetrics' `MeanAveragePrecision` calls it, with its default thresholds, all areas, and without crowds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from yolo_lightning.data.batch import Prediction, Target
from yolo_lightning.evaluation.frame_records import FrameRecords

COUNTED_PER_CLASS = 100
"""Detections per frame and class that the evaluation looks at, best first."""

IOU_THRESHOLDS = tuple(torch.linspace(0.5, 0.95, 10).tolist())
"""Intersection over union from which a detection may be right; rounded to float32, as in torchmetrics."""

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Matches(FrameRecords):
    """F frames and their D counted detections.

    Attributes:
        months: `(F,)` int32, YYYYMM, 0 where unknown.
        annotated: `(F, C)` int32, annotated objects of each class.
        labels: `(D,)` uint8, class index from 0; detections go by frame, class and rank.
        scores: `(D,)` float32, as predicted.
        ranks: `(D,)` uint8, 0 is the best of its frame and class, below `COUNTED_PER_CLASS`.
        hits: `(D,)` int16, bit `t` is set where the detection is right at `IOU_THRESHOLDS[t]`.
    """

    BY_FRAME: ClassVar[frozenset[str]] = frozenset({"keys", "months", "annotated", "counts"})

    months: Tensor
    annotated: Tensor
    labels: Tensor
    scores: Tensor
    ranks: Tensor
    hits: Tensor


def frame_key(image_id: str) -> int:
    """63 bits of a hash of the id, which may be any text."""
    return int.from_bytes(blake2b(image_id.encode(), digest_size=8).digest(), "big") >> 1


def match(predictions: Sequence[Prediction], targets: Sequence[Target], classes: int) -> Matches:
    """Match the detections of some frames with their annotated objects.

    Per frame, class and threshold, detections choose in the order of their scores (of equals, the first): each takes
    the object that it overlaps most, of equals the last, among those that are free and reach the threshold. Boxes of
    negative area count neither as detections, though they take a rank, nor as objects.

    Args:
        predictions: Of the same frames as `targets`, in the same order.
        targets: Boxes of both are xyxy float32 in pixels of the frame.
        classes: Number of classes; labels are below it.
    """
    assert [prediction.image_id for prediction in predictions] == [target.image_id for target in targets]
    objects, object_groups, _ = grouped(targets, torch.zeros(sum(len(one.labels) for one in targets)), classes)
    objects, object_groups = objects[has_area(objects)], object_groups[has_area(objects)]
    scores = torch.cat([one.scores.float().cpu() for one in predictions]) if predictions else torch.zeros(0)
    detections, groups, order = grouped(predictions, scores, classes)
    ranks = numbers_within(groups)
    counted = (ranks < COUNTED_PER_CLASS) & has_area(detections)
    detections, groups, order, ranks = detections[counted], groups[counted], order[counted], ranks[counted]
    frames = len(targets)
    return Matches(
        keys=torch.tensor([frame_key(one.image_id) for one in targets], dtype=torch.int64),
        months=torch.tensor([one.month for one in targets], dtype=torch.int32),
        annotated=torch.from_numpy(
            np.bincount(object_groups, minlength=frames * classes).reshape(frames, classes).astype(np.int32)
        ),
        counts=torch.from_numpy(np.bincount(groups // classes, minlength=frames).astype(np.int32)),
        labels=torch.from_numpy((groups % classes).astype(np.uint8)),
        scores=scores[torch.from_numpy(order)],
        ranks=torch.from_numpy(ranks.astype(np.uint8)),
        hits=torch.from_numpy(greedy_hits(detections, groups, objects, object_groups)),
    )


def grouped(
    frames: Sequence[Prediction] | Sequence[Target], scores: Tensor, classes: int
) -> tuple[Floats, Integers, Integers]:
    """The boxes of all frames, those of one frame and class together, best first.

    Args:
        frames: N boxes in all.
        scores: `(N,)`; equals keep their order.
        classes: Number of classes.

    Returns:
        `(N, 4)` float64 x, y, width, height; `(N,)` frame number times `classes` plus label; `(N,)` where each was.
    """
    if not frames:
        return np.zeros((0, 4)), np.zeros(0, np.int64), np.zeros(0, np.int64)
    boxes = torch.cat([one.boxes.float().cpu().reshape(-1, 4) for one in frames]).numpy()
    labels = torch.cat([one.labels.cpu() for one in frames]).numpy().astype(np.int64)
    assert labels.size == 0 or (labels.min() >= 0 and labels.max() < classes), "labels are class indices"
    groups = np.repeat(np.arange(len(frames)), [len(one.labels) for one in frames]) * classes + labels
    order = np.lexsort((-scores.numpy(), groups))
    # Width and height are rounded to float32 before anything else, as in torchmetrics: ties depend on it.
    sized = np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1)[order]
    return sized.astype(np.float64), groups[order], order


def has_area(boxes: Floats) -> Flags:
    """Whether the area of `(N, 4)` x, y, width, height is 0 or more: COCO's area range `all` begins there."""
    return boxes[:, 2] * boxes[:, 3] >= 0


def numbers_within(groups: Integers) -> Integers:
    """`(N,)`, number of each element within its group, from 0; `groups` is ascending."""
    return np.arange(len(groups)) - np.searchsorted(groups, groups)


def greedy_hits(
    detections: Floats, groups: Integers, objects: Floats, object_groups: Integers
) -> npt.NDArray[np.int16]:
    """`(D,)` bit `t` is set where the detection takes an object at `IOU_THRESHOLDS[t]`.

    Args:
        detections: `(D, 4)` x, y, width, height, by group and rank.
        groups: `(D,)` ascending.
        objects: `(G, 4)`, by group.
        object_groups: `(G,)` ascending.
    """
    hits = np.zeros(len(detections), dtype=np.int16)
    finder, found, overlaps = close_pairs(detections, groups, objects, object_groups)
    if not len(finder):
        return hits
    # Groups do not touch each other: the first detections of all groups choose at once, then the second, ...
    choosing, position = np.unique(finder, return_inverse=True)
    turns = numbers_within(groups[choosing])[position]
    order = np.argsort(turns, kind="stable")
    finder, found, overlaps, turns = finder[order], found[order], overlaps[order], turns[order]
    thresholds = np.array(IOU_THRESHOLDS)[:, None]
    bits = (1 << np.arange(len(IOU_THRESHOLDS), dtype=np.int16))[:, None]
    taken = np.zeros((len(IOU_THRESHOLDS), len(objects)), dtype=np.bool_)
    limits = np.searchsorted(turns, np.arange(turns[-1] + 2))
    for start, stop in pairwise(limits):
        pairs = slice(start, stop)
        wanted, overlap = found[pairs], overlaps[pairs]
        allowed = ~taken[:, wanted] & (overlap >= thresholds)
        choice = last_largest(np.where(allowed, overlap, -1.0), finder[pairs])
        threshold, detection = np.nonzero(choice >= 0)
        taken[threshold, wanted[choice[threshold, detection]]] = True
        hits[distinct(finder[pairs])] = (bits * (choice >= 0)).sum(axis=0)
    return hits


def close_pairs(
    detections: Floats, groups: Integers, objects: Floats, object_groups: Integers
) -> tuple[Integers, Integers, Floats]:
    """Pairs of one group that overlap by the lowest threshold or more: detection, object, intersection over union."""
    finder, found = pairs_of_group(groups, object_groups)
    overlaps = intersection_over_union(detections[finder], objects[found])
    close = overlaps >= IOU_THRESHOLDS[0]
    return finder[close], found[close], overlaps[close]


def pairs_of_group(groups: Integers, object_groups: Integers) -> tuple[Integers, Integers]:
    """All pairs of a detection and an object of one group, by detection, then by object; both arrays are ascending."""
    first, behind = np.searchsorted(object_groups, groups), np.searchsorted(object_groups, groups, side="right")
    counts = behind - first
    finder = np.repeat(np.arange(len(groups)), counts)
    return finder, np.repeat(first - np.cumsum(counts) + counts, counts) + np.arange(len(finder))


def intersection_over_union(one: Floats, other: Floats) -> Floats:
    """`(N,)` of pairs of boxes `(N, 4)` x, y, width, height; 0 where they do not touch. Source: COCO's `bbIou`."""
    upper = np.minimum(one[:, :2] + one[:, 2:], other[:, :2] + other[:, 2:])
    sides = np.maximum(upper - np.maximum(one[:, :2], other[:, :2]), 0.0)
    shared = sides[:, 0] * sides[:, 1]
    union = one[:, 2] * one[:, 3] + other[:, 2] * other[:, 3] - shared
    overlaps = np.zeros(len(one))
    np.divide(shared, union, out=overlaps, where=shared > 0)
    return overlaps


def distinct(ascending: Integers) -> Integers:
    """The different values of an ascending array."""
    return ascending[segment_starts(ascending)]


def segment_starts(ascending: Integers) -> Integers:
    """Where runs of equal values begin."""
    return np.flatnonzero(np.concatenate(([True], ascending[1:] != ascending[:-1])))


def last_largest(values: Floats, owners: Integers) -> Integers:
    """Column of the largest value of each owner, the last of equals, -1 where all are negative.

    Args:
        values: `(T, P)`.
        owners: `(P,)` ascending; S different ones.

    Returns:
        `(T, S)`.
    """
    starts = segment_starts(owners)
    best = np.maximum.reduceat(values, starts, axis=1)
    lengths = np.diff(np.append(starts, len(owners)))
    is_best = (values == np.repeat(best, lengths, axis=1)) & (values >= 0)
    return np.maximum.reduceat(np.where(is_best, np.arange(len(owners)), -1), starts, axis=1)
