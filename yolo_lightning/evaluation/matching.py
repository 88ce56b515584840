"""COCO's greedy matching of detections with annotated objects, computed once per frame and class.

The stored properties of a detection (class, score, rank, correct or not at ten IoU thresholds) are sufficient to score
any subset of the frames, so monthly scores need no further matching. Source: `COCOeval.evaluateImg` of pycocotools with
the arguments of torchmetrics' `MeanAveragePrecision`: default thresholds, all areas, no crowds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from hashlib import blake2b
from itertools import pairwise
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from yolo_lightning.data.batch import Prediction, Target

COUNTED_PER_CLASS = 100  # number of detections per frame and class that COCO evaluates, highest scores first

IOU_THRESHOLDS = tuple(torch.linspace(0.5, 0.95, 10).tolist())
"""Minimum IoU of a correct detection; rounded to float32, as in torchmetrics."""

Singles = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]
Overlaps = npt.NDArray[np.floating[Any]]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class FrameRecords:
    """F frames and all their items, as CPU tensors. Derived dataclasses add fields."""

    BY_FRAME: ClassVar[frozenset[str]] = frozenset({"keys", "counts"})
    """Fields with one entry per frame; all others have one entry per item."""

    keys: Tensor  # `(F,)` int64, `frame_key` of the image id
    counts: Tensor  # `(F,)` int32, number of items of the frame; items are sorted by frame

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(field.name for field in fields(cls))

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Concatenate one or more tables."""
        return cls(**{name: torch.cat([getattr(part, name) for part in parts]) for name in cls.names()})

    def in_order(self, order: Tensor) -> Self:
        """Return the table with its frames permuted by `order`, `(F,)` int64 positions in this table."""
        ends = self.counts.cumsum(0)
        counts = self.counts[order]
        # For each item: position of the first item of its frame, and number of items of its frame before it.
        begin = (ends - self.counts)[order].repeat_interleave(counts)
        before = torch.arange(int(counts.sum())) - (counts.cumsum(0) - counts).repeat_interleave(counts)
        return self.chosen(order, begin + before)

    def without_repeats(self) -> Self:
        """Return each frame once, at its first position: distributed samplers repeat frames to pad the last batch."""
        _, first = np.unique(self.keys.numpy(), return_index=True)
        if len(first) == len(self.keys):
            return self
        frames = torch.zeros(len(self.keys), dtype=torch.bool)
        frames[first] = True
        return self.chosen(frames, frames.repeat_interleave(self.counts))

    def chosen(self, frames: Tensor, items: Tensor) -> Self:
        """Index the fields by frame with `frames`, all other fields with `items`."""
        return type(self)(
            **{name: getattr(self, name)[frames if name in self.BY_FRAME else items] for name in self.names()}
        )


@dataclass(frozen=True, slots=True)
class Matches(FrameRecords):
    """F frames and their D evaluated detections."""

    BY_FRAME: ClassVar[frozenset[str]] = frozenset({"keys", "months", "annotated", "counts"})

    months: Tensor  # `(F,)` int32, YYYYMM, 0 if unknown
    annotated: Tensor  # `(F, C)` int32, number of annotated objects per class
    labels: Tensor  # `(D,)` uint8, class index from 0; detections are sorted by frame, class and rank
    scores: Tensor  # `(D,)` float32, as predicted
    ranks: Tensor  # `(D,)` uint8, 0 is the highest score of the frame and class, below `COUNTED_PER_CLASS`
    hits: Tensor  # `(D,)` int16, bit `t` is set if the detection is correct at `IOU_THRESHOLDS[t]`


def match(predictions: Sequence[Prediction], targets: Sequence[Target], classes: int) -> Matches:
    """Match the detections of some frames with their annotated objects, xyxy float32 in pixels of the frame.

    Per frame, class and threshold, detections choose in descending order of their scores (ties: the first detection).
    Each takes the unmatched object with the largest IoU (ties: the last object) that reaches the threshold. Boxes of
    negative area are ignored, but keep their rank. Predictions and targets have the same frames in the same order.
    """
    assert [prediction.image_id for prediction in predictions] == [target.image_id for target in targets]
    objects, object_groups, _ = grouped(targets, None, classes)
    objects, object_groups = objects[has_area(objects)], object_groups[has_area(objects)]
    scores = all_scores(predictions)
    detections, groups, order = grouped(predictions, scores, classes)
    ranks = numbers_within(groups)
    counted = (ranks < COUNTED_PER_CLASS) & has_area(detections)
    detections, groups, order, ranks = detections[counted], groups[counted], order[counted], ranks[counted]
    frames = len(targets)
    annotated = np.bincount(object_groups, minlength=frames * classes)
    finder, found = pairs_of_group(groups, object_groups)
    overlaps = intersection_over_union(detections[finder], objects[found])
    close = overlaps >= IOU_THRESHOLDS[0]
    taken = take_in_turn(finder[close], found[close], overlaps[close], groups, IOU_THRESHOLDS, prefers_last=True)
    return Matches(
        keys=frame_keys([one.image_id for one in targets]),
        months=torch.tensor([one.month for one in targets], dtype=torch.int32),
        annotated=torch.from_numpy(annotated.reshape(frames, classes).astype(np.int32)),
        counts=torch.from_numpy(np.bincount(groups // classes, minlength=frames).astype(np.int32)),
        labels=torch.from_numpy((groups % classes).astype(np.uint8)),
        scores=torch.from_numpy(scores[order]),
        ranks=torch.from_numpy(ranks.astype(np.uint8)),
        hits=torch.from_numpy(hit_bits(taken)),
    )


def grouped(
    frames: Sequence[Prediction] | Sequence[Target], scores: Singles | None, classes: int
) -> tuple[Floats, Integers, Integers]:
    """Sort the N boxes of all frames by frame, class and descending score.

    Returns:
        `(N, 4)` x, y, width, height; `(N,)` frame number times `classes` plus label; `(N,)` position before sorting.
    """
    boxes, labels, owners = flattened([(one.boxes, one.labels) for one in frames])
    assert labels.size == 0 or (labels.min() >= 0 and labels.max() < classes), "labels are class indices"
    groups = owners * classes + labels
    order = np.argsort(groups, kind="stable") if scores is None else np.lexsort((-scores, groups))
    # Width and height are rounded to float32 before any other operation, as in torchmetrics; ties depend on it.
    sized = np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1)[order]
    return sized.astype(np.float64), groups[order], order


def flattened(frames: Sequence[tuple[Tensor, Tensor]]) -> tuple[Singles, Integers, Integers]:
    """Concatenate boxes and labels of all frames: `(N, 4)` boxes, `(N,)` labels, `(N,)` frame numbers."""
    boxes = [np.zeros((0, 4), np.float32), *(boxes.float().cpu().reshape(-1, 4).numpy() for boxes, _ in frames)]
    labels = [np.zeros(0, np.int64), *(labels.cpu().numpy().astype(np.int64) for _, labels in frames)]
    owners = np.repeat(np.arange(len(frames)), [len(labels) for _, labels in frames])
    return np.concatenate(boxes), np.concatenate(labels), owners


def all_scores(predictions: Sequence[Prediction]) -> Singles:
    return np.concatenate([np.zeros(0, np.float32), *(one.scores.float().cpu().numpy() for one in predictions)])


def has_area(boxes: Floats) -> Flags:
    """Return whether the area of `(N, 4)` x, y, width, height is >= 0, the lower bound of COCO's area range `all`."""
    return boxes[:, 2] * boxes[:, 3] >= 0


def numbers_within(groups: Integers) -> Integers:
    """Return the number of each element within its group, from 0; `groups` is ascending."""
    return np.arange(len(groups)) - np.searchsorted(groups, groups)


def pairs_of_group(groups: Integers, object_groups: Integers) -> tuple[Integers, Integers]:
    """Return all pairs of a detection and an object of one group, sorted by detection; both inputs are ascending."""
    first, behind = np.searchsorted(object_groups, groups), np.searchsorted(object_groups, groups, side="right")
    counts = behind - first
    finder = np.repeat(np.arange(len(groups)), counts)
    return finder, np.repeat(first - np.cumsum(counts) + counts, counts) + np.arange(len(finder))


def intersection_over_union(one: Floats, other: Floats, *, of_first: bool = False) -> Floats:
    """Return the IoU of N pairs of boxes `(N, 4)` x, y, width, height, by the operations of COCO's `bbIou`.

    With `of_first` the intersection is divided by the area of the first box, as for crowd regions.
    """
    upper = np.minimum(one[:, :2] + one[:, 2:], other[:, :2] + other[:, 2:])
    sides = np.maximum(upper - np.maximum(one[:, :2], other[:, :2]), 0.0)
    shared = sides[:, 0] * sides[:, 1]
    union = one[:, 2] * one[:, 3]
    if not of_first:
        union = union + other[:, 2] * other[:, 3] - shared
    overlaps = np.zeros(len(one))
    np.divide(shared, union, out=overlaps, where=shared > 0)
    return overlaps


def take_in_turn(
    finder: Integers,
    found: Integers,
    overlaps: Overlaps,
    groups: Integers,
    thresholds: Sequence[float],
    *,
    prefers_last: bool,
    ignored: Flags | None = None,
    crowds: Flags | None = None,
) -> Integers:
    """Match greedily: each detection takes the unmatched object with the largest IoU, in descending order of scores.

    Args:
        finder: `(P,)` detection of each candidate pair, ascending.
        found: `(P,)` object of each pair, ascending within a detection.
        overlaps: `(P,)` IoU of each pair.
        groups: `(D,)` group of each detection, best detections of a group first. Groups share no objects.
        thresholds: T minimum IoUs, each a separate matching.
        prefers_last: Of objects with equal IoU, take the last one (COCO) instead of the first one (Ultralytics).
        ignored: `(O,)` objects that a detection takes only if it can take no other object.
        crowds: `(O,)` objects that any number of detections take; they are among the ignored ones.

    Returns:
        `(T, D)` object that a detection takes, or -1.
    """
    objects = np.full((len(thresholds), len(groups)), -1)
    if not len(finder):
        return objects
    limits = np.array(thresholds, overlaps.dtype)[:, None]
    taken = np.zeros((len(thresholds), int(found.max()) + 1), dtype=np.bool_)
    # Groups are independent: the best detections of all groups choose in one pass, then the second best ones, ...
    choosing, position = np.unique(finder, return_inverse=True)
    order = np.argsort(groups[choosing], kind="stable")
    turns_of_detections = np.empty(len(choosing), np.int64)
    turns_of_detections[order] = numbers_within(groups[choosing][order])
    turns = turns_of_detections[position]
    order = np.argsort(turns, kind="stable")
    finder, found, overlaps, turns = finder[order], found[order], overlaps[order], turns[order]
    for start, stop in pairwise([*segment_starts(turns), len(turns)]):
        own, wanted, overlap = finder[start:stop], found[start:stop], overlaps[start:stop]
        values = np.where(~taken[:, wanted] & (overlap >= limits), overlap, overlap.dtype.type(-1))
        if ignored is None or not (second := ignored[wanted]).any():
            choice = largest(values, own, prefers_last=prefers_last)
        else:
            choice = largest(np.where(second, -1, values), own, prefers_last=prefers_last)
            instead = largest(np.where(second, values, -1), own, prefers_last=prefers_last)
            choice = np.where(choice >= 0, choice, instead)
        threshold, detection = np.nonzero(choice >= 0)
        chosen = wanted[choice[threshold, detection]]
        taken[threshold, chosen] = True if crowds is None else ~crowds[chosen]
        objects[threshold, own[segment_starts(own)][detection]] = chosen
    return objects


def hit_bits(taken: Integers) -> npt.NDArray[np.int16]:
    """Return a bit mask of the thresholds at which each detection takes an object; `taken` is `(T, D)`."""
    bits = (1 << np.arange(len(taken), dtype=np.int16))[:, None]
    hits: npt.NDArray[np.int16] = ((taken >= 0) * bits).sum(axis=0, dtype=np.int16)
    return hits


def segment_starts(ascending: Integers) -> Integers:
    """Return the positions at which runs of equal values begin."""
    return np.flatnonzero(np.concatenate(([True], ascending[1:] != ascending[:-1])))


def largest(values: Overlaps, owners: Integers, *, prefers_last: bool) -> Integers:
    """Return the column of the largest value of each owner, `(T, S)`; -1 if all its values are negative.

    `values` is `(T, P)`, `owners` is `(P,)`, ascending, with S different values.
    """
    starts = segment_starts(owners)
    best = np.maximum.reduceat(values, starts, axis=1)
    is_best = values == np.repeat(best, np.diff(np.append(starts, len(owners))), axis=1)
    columns = np.arange(len(owners))
    choose, never = (np.maximum, -1) if prefers_last else (np.minimum, len(owners))
    at = choose.reduceat(np.where(is_best, columns, never), starts, axis=1)
    return np.where(best >= 0, at, -1)


def frame_key(image_id: str) -> int:
    """Return 63 bits of a hash of an image id, which may be any text."""
    return int.from_bytes(blake2b(image_id.encode(), digest_size=8).digest(), "big") >> 1


def frame_keys(image_ids: Sequence[str]) -> Tensor:
    """Return the `frame_key` of each image id, `(F,)` int64."""
    return torch.tensor([frame_key(image_id) for image_id in image_ids], dtype=torch.int64)
