"""COCO's greedy matching of detections with annotated objects of the same frame and class.

The stored properties of a detection (class, score, rank, correct or not at ten IoU thresholds) are sufficient to score
any subset of the frames, so monthly scores need no further matching. Source: `COCOeval.evaluateImg` of pycocotools with
the arguments of torchmetrics' `MeanAveragePrecision`.

Objects outside an area range and crowds are ignored: a detection that takes one counts neither as correct nor as false,
and so does a detection outside the range that takes nothing. Detections prefer objects that are not ignored.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from yolo_lightning.data.array_types import (
    BoolArray,
    Float32Array,
    Float64Array,
    Int32Array,
    Int64Array,
    UInt8Array,
    UInt16Array,
    UnsignedArray,
)
from yolo_lightning.data.batch import Prediction, Target
from yolo_lightning.data.occurrences import occurrences
from yolo_lightning.evaluation.frame_records import FrameRecords
from yolo_lightning.evaluation.greedy import (
    chunks,
    intersection_over_union,
    pairs_of_group,
    take_in_turn,
)

COUNTED_PER_CLASS = 100  # number of detections per frame and class that COCO evaluates, highest scores first

IOU_THRESHOLDS = tuple(torch.linspace(0.5, 0.95, 10).tolist())
"""Minimum IoU of a correct detection; rounded to float32, as in torchmetrics."""

LOCALIZED = 1 << 10
DUPLICATE = 1 << 11
BACKGROUND = 1 << 12
"""Further bits of `Matches.hits`: the detection is correct at IoU 0.1; it is not correct at 0.5, although its IoU with
an object of its class is 0.5 or more; its IoU with every object of any class is below 0.1. Error types of "TIDE: A
General Toolbox for Identifying Object Detection Errors" (Bolya et al. 2020)."""
LEAST_OVERLAP = 0.1  # IoU of a detection of an object that is badly localized

MAX_THRESHOLDS = 16  # one bit each in `MatchedBoxes.hits`

AreaRange = tuple[float, float]
ALL_AREAS: AreaRange = (0.0, 1e10)
"""Smallest and largest area in square pixels, both inclusive; excludes boxes of negative area."""

PAIRS_PER_CHUNK = 500_000
"""Pairs of a detection and an object of one frame that are matched at once; 100 to 200 MB."""


@dataclass(frozen=True, slots=True)
class Matches(FrameRecords):
    """F frames and their D evaluated detections."""

    months: Int32Array  # `(F,)` int32, YYYYMM, 0 if unknown
    annotated: Int32Array  # `(F, C)` int32, number of annotated objects per class
    labels: UnsignedArray  # `(D,)` of `label_type`, class index from 0; detections are sorted by frame, class and rank
    scores: Float32Array  # `(D,)` float32, as predicted
    ranks: UInt8Array  # `(D,)` uint8, 0 is the highest score of the frame and class, below `COUNTED_PER_CLASS`
    # `(D,)` uint16, bit `t` is set if the detection is correct at `IOU_THRESHOLDS[t]`; see also `LOCALIZED`
    hits: UInt16Array


def match(predictions: Sequence[Prediction], targets: Sequence[Target], classes: int) -> Matches:
    """Match the detections of some frames with their annotated objects, xyxy float32 in pixels of the frame.

    Per frame, class and threshold, detections choose in descending order of their scores (ties: the first detection).
    Each takes the unmatched object with the largest IoU (ties: the last object) that reaches the threshold. Boxes of
    negative area are ignored, but keep their rank. Predictions and targets have the same frames in the same order.
    """
    assert [prediction.image_id for prediction in predictions] == [target.image_id for target in targets]
    detections = BoxTable.of(
        [(prediction.boxes, prediction.labels) for prediction in predictions], all_scores(predictions)
    )
    objects = BoxTable.of([(target.boxes, target.labels) for target in targets])
    return match_frames(detections, objects, classes, [target.month for target in targets])


def match_frames(detections: "BoxTable", objects: "BoxTable", classes: int, months: Sequence[int]) -> Matches:
    """Match the boxes of F frames of the months `months` (YYYYMM, 0 if unknown) as `match` does."""
    assert detections.scores is not None
    for labels in (detections.labels, objects.labels):
        assert labels.size == 0 or (labels.min() >= 0 and labels.max() < classes), "labels are class indices"
    frames = len(months)
    matched = match_boxes(detections, objects, classes, (*IOU_THRESHOLDS, LEAST_OVERLAP))
    hits = matched.hits[0] | _errors(detections, objects, matched, classes)
    counted = matched.ignored[0] == 0
    groups = matched.groups[counted]
    annotated = matched.object_groups[matched.counted[0]]
    return Matches(
        months=np.array(months, dtype=np.int32),
        annotated=np.bincount(annotated, minlength=frames * classes).reshape(frames, classes).astype(np.int32),
        counts=np.bincount(groups // classes, minlength=frames).astype(np.int32),
        labels=(groups % classes).astype(label_type(classes)),
        scores=detections.scores[matched.order[counted]],
        ranks=matched.ranks[counted].astype(np.uint8),
        hits=hits[counted],
    )


def label_type(classes: int) -> np.dtype[np.unsignedinteger[Any]]:
    """Return the dtype of stored class indices, the smallest that holds `classes` values: uint8 up to 256 classes."""
    return np.min_scalar_type(max(classes - 1, 0))


def _errors(detections: "BoxTable", objects: "BoxTable", matched: "MatchedBoxes", classes: int) -> UInt16Array:
    """Return the bits `DUPLICATE` and `BACKGROUND` of each evaluated detection, `(D,)` uint16."""
    frames, labels = np.divmod(matched.groups, classes)
    object_frames = objects.owners
    boxes = detections.boxes[matched.order].astype(np.float64)
    object_boxes = objects.boxes.astype(np.float64)
    errors: UInt16Array = np.full(len(frames), BACKGROUND, np.uint16)
    for start, stop in chunks(objects.counts[frames], PAIRS_PER_CHUNK):
        pair_detections, pair_objects = pairs_of_group(frames[start:stop], object_frames)
        pair_detections += start
        overlaps = intersection_over_union(boxes[pair_detections], object_boxes[pair_objects])
        errors[pair_detections[overlaps >= LEAST_OVERLAP]] = 0
        is_same_class = labels[pair_detections] == objects.labels[pair_objects]
        errors[pair_detections[(overlaps >= IOU_THRESHOLDS[0]) & is_same_class]] = DUPLICATE
    errors[matched.hits[0] & 1 > 0] = 0
    return errors


@dataclass(frozen=True, slots=True)
class BoxTable(FrameRecords):
    """N boxes of F frames; detections have scores, objects may have areas and crowds."""

    boxes: Float32Array  # `(N, 4)` float32 x, y, width, height
    labels: Int64Array  # `(N,)` class index from 0
    scores: Float32Array | None = None  # `(N,)` float32
    areas: Float64Array | None = None  # `(N,)` area in square pixels; width times height where it is not positive
    crowds: BoolArray | None = None  # `(N,)` whether the box surrounds a crowd

    @classmethod
    def of(cls, frames: Sequence[tuple[Tensor, Tensor]], scores: Float32Array | None = None) -> "BoxTable":
        """Return the table of boxes, xyxy, and labels per frame."""
        boxes, labels, owners = flattened(frames)
        return cls(np.bincount(owners, minlength=len(frames)), sized(boxes), labels, scores)

    def frames(self, first: int, stop: int) -> "BoxTable":
        """Return the boxes of frames `first` to `stop` - 1."""
        boxes = slice(int(self.counts[:first].sum()), int(self.counts[:stop].sum()))
        return self.indexed(slice(first, stop), boxes)

    def groups(self, classes: int) -> Int64Array:
        """Return `(N,)` frame number times `classes` plus label."""
        return self.owners * classes + self.labels


@dataclass(frozen=True, slots=True)
class MatchedBoxes:
    """D evaluated detections and O objects, both sorted by group, in A area ranges.

    The group of a box is its frame number times the number of classes plus its label. Detections of one group are
    sorted by descending score.
    """

    order: Int64Array  # `(D,)` position of each detection in its table
    groups: Int64Array  # `(D,)`
    ranks: Int64Array  # `(D,)`, 0 is the highest score of the group
    hits: UInt16Array  # `(A, D)`, bit `t` is set if the detection is correct at threshold `t`
    ignored: UInt16Array  # `(A, D)`, bit `t` is set if the detection does not count at threshold `t`
    object_groups: Int64Array  # `(O,)`
    counted: BoolArray  # `(A, O)` whether the object is not ignored


def match_boxes(
    detections: BoxTable,
    objects: BoxTable,
    classes: int,
    thresholds: Sequence[float] = IOU_THRESHOLDS,
    limit: int = COUNTED_PER_CLASS,
    areas: Sequence[AreaRange] = (ALL_AREAS,),
) -> MatchedBoxes:
    """Match the detections of all frames with the objects of the same frame and class.

    Args:
        detections: Boxes with scores.
        objects: Boxes of the same frames.
        classes: Number of classes, greater than every label.
        thresholds: Minimum IoU of a correct detection, at most `MAX_THRESHOLDS` values.
        limit: Number of detections per frame and class that are evaluated, highest scores first.
        areas: Area ranges of objects, each a separate matching; the first one contains all others.
    """
    parts = []
    behind = np.concatenate(([0], np.cumsum(detections.counts)))
    work = detections.counts * (objects.counts + 1) + objects.counts
    for first, stop in chunks(work, PAIRS_PER_CHUNK):
        part = _match_chunk(
            detections.frames(first, stop), objects.frames(first, stop), classes, thresholds, limit, areas
        )
        part.order[:] += behind[first]
        part.groups[:] += first * classes
        part.object_groups[:] += first * classes
        parts.append(part)
    names = [field.name for field in fields(MatchedBoxes)]
    return MatchedBoxes(**{name: np.concatenate([getattr(part, name) for part in parts], axis=-1) for name in names})


def _match_chunk(
    detections: BoxTable,
    objects: BoxTable,
    classes: int,
    thresholds: Sequence[float],
    limit: int,
    ranges: Sequence[AreaRange],
) -> MatchedBoxes:
    assert detections.scores is not None
    object_groups = objects.groups(classes)
    order = np.argsort(object_groups, kind="stable")
    object_groups = object_groups[order]
    object_boxes = objects.boxes[order].astype(np.float64)
    object_areas = object_boxes[:, 2] * object_boxes[:, 3]
    if objects.areas is not None:
        object_areas = np.where(objects.areas[order] > 0, objects.areas[order], object_areas)
    crowds = np.zeros(len(order), np.bool_)
    if objects.crowds is not None:
        crowds = objects.crowds[order]
    groups = detections.groups(classes)
    order = np.lexsort((-detections.scores, groups))
    ranks = occurrences(groups[order])
    order = order[ranks < limit]
    ranks = ranks[ranks < limit]
    groups = groups[order]
    boxes = detections.boxes[order].astype(np.float64)
    areas = boxes[:, 2] * boxes[:, 3]

    pair_detections, pair_objects = pairs_of_group(groups, object_groups)
    overlaps = intersection_over_union(boxes[pair_detections], object_boxes[pair_objects])
    if crowds.any():
        # The share of the detection that is in the crowd region.
        share = intersection_over_union(boxes[pair_detections], object_boxes[pair_objects], of_first=True)
        overlaps = np.where(crowds[pair_objects], share, overlaps)
    # COCO's limit: IoU 1 has to reach threshold 1 in spite of rounding.
    reached = [min(threshold, 1 - 1e-10) for threshold in thresholds]
    is_close = overlaps >= min(reached)
    pairs = (pair_detections[is_close], pair_objects[is_close], overlaps[is_close])

    hits, dropped = np.zeros((2, len(ranges), len(groups)), np.uint16)
    counted = np.empty((len(ranges), len(object_boxes)), np.bool_)
    for number, (least, most) in enumerate(ranges):
        ignored = crowds | (object_areas < least) | (object_areas > most)
        counted[number] = ~ignored
        taken = take_in_turn(*pairs, groups, reached, prefers_last=True, ignored=ignored, crowds=crowds)
        outside = (areas < least) | (areas > most)
        is_ignored = np.append(ignored, False)[taken]  # the last one is that of no object
        hits[number] = bit_masks((taken >= 0) & ~is_ignored)
        dropped[number] = bit_masks(is_ignored | ((taken < 0) & outside))
    return MatchedBoxes(order, groups, ranks, hits, dropped, object_groups, counted)


def bit_masks(flags: BoolArray) -> UInt16Array:
    """Return bit masks `(D,)` of `(T, D)` flags, bit `t` from row `t`."""
    bits = 1 << np.arange(len(flags), dtype=np.uint16)
    return np.asarray((flags * bits[:, None]).sum(axis=0, dtype=np.uint16))


def flattened(frames: Sequence[tuple[Tensor, Tensor]]) -> tuple[Float32Array, Int64Array, Int64Array]:
    """Concatenate boxes and labels of all frames: `(N, 4)` boxes, `(N,)` labels, `(N,)` frame numbers."""
    boxes = [np.zeros((0, 4), np.float32), *(boxes.float().cpu().reshape(-1, 4).numpy() for boxes, _ in frames)]
    labels = [np.zeros(0, np.int64), *(labels.cpu().numpy().astype(np.int64) for _, labels in frames)]
    owners = np.repeat(np.arange(len(frames)), [len(labels) for _, labels in frames])
    return np.concatenate(boxes), np.concatenate(labels), owners


def sized(boxes: Float32Array) -> Float32Array:
    """Return xyxy boxes as x, y, width, height.

    Width and height are rounded to float32 before any other operation, as in torchmetrics; ties depend on it.
    """
    return np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1)


def all_scores(predictions: Sequence[Prediction]) -> Float32Array:
    scores = [prediction.scores.float().cpu().numpy() for prediction in predictions]
    return np.concatenate([np.zeros(0, np.float32), *scores])
