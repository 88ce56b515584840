"""Which detections are right as Ultralytics sees it, and which class each takes for which.

It differs from COCO's rule, see `matching`: every detection of a frame counts, however many there are of a class; of
equal overlaps the first object is taken; overlaps are computed as float32; detections are not clipped to the frame, so
that the part of a box outside the frame lowers its overlap with an object at the edge. Source: `DetectionValidator`,
`BaseValidator.match_predictions` and `ConfusionMatrix.process_batch` of Ultralytics 8.4.190.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from yolo_lightning.data.batch import Prediction, Target
from yolo_lightning.evaluation.frame_records import FrameRecords
from yolo_lightning.evaluation.matching import (
    IOU_THRESHOLDS,
    Integers,
    distinct,
    frame_key,
    numbers_within,
    pairs_of_group,
    segment_starts,
)

CONFUSION_CONFIDENCE = 0.25
"""Detections in a confusion matrix score more than this."""

CONFUSION_OVERLAP = 0.45
"""Intersection over union above which a detection and an object are the same, in a confusion matrix."""

NOT_COUNTED = -1

Singles = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class UltralyticsMatches(FrameRecords):
    """F frames and all their D detections.

    Attributes:
        annotated: `(F, C)` int32, annotated objects of each class.
        labels: `(D,)` uint8, class index from 0; detections go by frame, in it from best to worst.
        scores: `(D,)` float32, as predicted.
        hits: `(D,)` int16, bit `t` is set where the detection is right at `IOU_THRESHOLDS[t]`.
        found: `(D,)` int16, class of the object that the detection takes where classes do not matter; C where it takes
            none; -1 where it does not count in a confusion matrix.
    """

    BY_FRAME: ClassVar[frozenset[str]] = frozenset({"keys", "annotated", "counts"})

    annotated: Tensor
    labels: Tensor
    scores: Tensor
    hits: Tensor
    found: Tensor

    def confusion(self) -> npt.NDArray[np.int64]:
        """`(C + 1, C + 1)` by detected and annotated class; the last row and column stand for the background."""
        classes = self.annotated.shape[1]
        labels, found = self.labels.numpy().astype(np.int64), self.found.numpy()
        counted = found != NOT_COUNTED
        pairs = labels[counted] * (classes + 1) + found[counted]
        matrix = np.bincount(pairs, minlength=(classes + 1) ** 2).reshape(classes + 1, classes + 1)
        annotated = self.annotated.numpy().sum(axis=0, dtype=np.int64)
        matrix[classes, :classes] = annotated - matrix[:classes, :classes].sum(axis=0)
        return matrix


def match_as_ultralytics(
    predictions: Sequence[Prediction], targets: Sequence[Target], classes: int
) -> UltralyticsMatches:
    """Match the detections of some frames with their annotated objects; arguments as in `matching.match`."""
    assert [prediction.image_id for prediction in predictions] == [target.image_id for target in targets]
    frames = len(targets)
    boxes, labels, owners = flattened(
        [(one.boxes if one.unclipped is None else one.unclipped, one.labels) for one in predictions]
    )
    scores = np.concatenate([np.zeros(0, np.float32), *(one.scores.float().cpu().numpy() for one in predictions)])
    order = np.lexsort((-scores, owners))
    boxes, labels, owners, scores = boxes[order], labels[order], owners[order], scores[order]
    objects, object_labels, object_owners = flattened([(one.boxes, one.labels) for one in targets])
    annotated = np.bincount(object_owners * classes + object_labels, minlength=frames * classes)
    finder, other, overlaps = overlapping_pairs(boxes, owners, objects, object_owners)
    # Of one frame and class, at each threshold.
    same = labels[finder] == object_labels[other]
    taken = take_in_turn(finder[same], other[same], overlaps[same], owners * classes + labels, IOU_THRESHOLDS)
    hits = np.zeros(len(labels), dtype=np.int16)
    for threshold, (detections, _) in enumerate(taken):
        hits[detections] |= np.int16(1 << threshold)
    # Of one frame, above one threshold.
    counted = scores > np.float32(CONFUSION_CONFIDENCE)
    close = counted[finder] & (overlaps > np.float32(CONFUSION_OVERLAP))
    ((detections, objects_taken),) = take_in_turn(finder[close], other[close], overlaps[close], owners, (0.0,))
    found = np.where(counted, np.int16(classes), np.int16(NOT_COUNTED))
    found[detections] = object_labels[objects_taken]
    return UltralyticsMatches(
        keys=torch.tensor([frame_key(one.image_id) for one in targets], dtype=torch.int64),
        counts=torch.from_numpy(np.bincount(owners, minlength=frames).astype(np.int32)),
        annotated=torch.from_numpy(annotated.reshape(frames, classes).astype(np.int32)),
        labels=torch.from_numpy(labels.astype(np.uint8)),
        scores=torch.from_numpy(scores),
        hits=torch.from_numpy(hits),
        found=torch.from_numpy(found),
    )


def flattened(frames: Sequence[tuple[Tensor, Tensor]]) -> tuple[Singles, Integers, Integers]:
    """Join the boxes and labels of each frame: `(N, 4)` xyxy, `(N,)` labels, `(N,)` frame numbers of all N boxes."""
    all_boxes = [np.zeros((0, 4), np.float32), *(boxes.float().cpu().reshape(-1, 4).numpy() for boxes, _ in frames)]
    all_labels = [np.zeros(0, np.int64), *(labels.cpu().numpy().astype(np.int64) for _, labels in frames)]
    owners = np.repeat(np.arange(len(frames)), [len(labels) for _, labels in frames])
    return np.concatenate(all_boxes), np.concatenate(all_labels), owners


def overlapping_pairs(
    boxes: Singles, owners: Integers, objects: Singles, object_owners: Integers
) -> tuple[Integers, Integers, Singles]:
    """Pairs of one frame that overlap by more than `CONFUSION_OVERLAP`: detection, object, intersection over union.

    Args:
        boxes: `(D, 4)` xyxy.
        owners: `(D,)` frame numbers, ascending.
        objects: `(G, 4)` xyxy.
        object_owners: `(G,)` ascending.
    """
    finder, other = pairs_of_group(owners, object_owners)
    overlaps = overlap(objects[other], boxes[finder])
    close = overlaps > np.float32(CONFUSION_OVERLAP)
    return finder[close], other[close], overlaps[close]


def overlap(one: Singles, other: Singles) -> Singles:
    """`(N,)` intersection over union of pairs of boxes `(N, 4)` xyxy, in the order of Ultralytics' operations."""
    sides = np.maximum(np.minimum(one[:, 2:], other[:, 2:]) - np.maximum(one[:, :2], other[:, :2]), np.float32(0))
    size, other_size = one[:, 2:] - one[:, :2], other[:, 2:] - other[:, :2]
    shared = sides[:, 0] * sides[:, 1]
    union = size[:, 0] * size[:, 1] + other_size[:, 0] * other_size[:, 1] - shared + np.float32(1e-7)
    result: Singles = shared / union
    return result


def take_in_turn(
    finder: Integers, other: Integers, overlaps: Singles, groups: Integers, thresholds: Sequence[float]
) -> list[tuple[Integers, Integers]]:
    """Let each detection take the free object that it overlaps most, of equals the first, the best detection first.

    Args:
        finder: `(P,)` detections of the pairs, ascending.
        other: `(P,)` objects, ascending for one detection.
        overlaps: `(P,)`.
        groups: `(D,)` of all detections: those of different groups have no object in common.
        thresholds: T least overlaps, each a matching of its own.

    Returns:
        By threshold: the detections that take an object, and the objects.
    """
    objects = np.full((len(thresholds), len(groups)), -1)
    if len(finder):
        limits = np.array(thresholds, np.float32)[:, None]
        taken = np.zeros((len(thresholds), int(other.max()) + 1), dtype=np.bool_)
        # Groups do not touch each other: the best detections of all groups choose at once, then the second, ...
        turns = turns_of(finder, groups)
        order = np.argsort(turns, kind="stable")
        finder, other, overlaps, turns = finder[order], other[order], overlaps[order], turns[order]
        for start, stop in pairwise([*segment_starts(turns), len(turns)]):
            wanted, overlap_now = other[start:stop], overlaps[start:stop]
            allowed = ~taken[:, wanted] & (overlap_now >= limits)
            choice = first_largest(np.where(allowed, overlap_now, np.float32(-1)), finder[start:stop])
            threshold, position = np.nonzero(choice >= 0)
            chosen = wanted[choice[threshold, position]]
            taken[threshold, chosen] = True
            objects[threshold, distinct(finder[start:stop])[position]] = chosen
    detections = [np.flatnonzero(own >= 0) for own in objects]
    return [(found, own[found]) for found, own in zip(detections, objects, strict=True)]


def turns_of(finder: Integers, groups: Integers) -> Integers:
    """`(P,)` place of each pair's detection among those of its group that are in any pair; see `take_in_turn`."""
    choosing, position = np.unique(finder, return_inverse=True)
    order = np.argsort(groups[choosing], kind="stable")
    turns = np.empty(len(choosing), np.int64)
    turns[order] = numbers_within(groups[choosing][order])
    return turns[position]


def first_largest(values: Singles, owners: Integers) -> Integers:
    """Column of the largest value of each owner, the first of equals, -1 where all are negative.

    Args:
        values: `(T, P)`.
        owners: `(P,)` ascending; S different ones.

    Returns:
        `(T, S)`.
    """
    starts = segment_starts(owners)
    best = np.maximum.reduceat(values, starts, axis=1)
    lengths = np.diff(np.append(starts, len(owners)))
    is_best = values == np.repeat(best, lengths, axis=1)
    columns = np.arange(len(owners))
    return np.where(best >= 0, np.minimum.reduceat(np.where(is_best, columns, len(owners)), starts, axis=1), -1)
