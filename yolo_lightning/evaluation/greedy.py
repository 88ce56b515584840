"""Greedy choice of objects by detections in descending order of scores, for all groups of a batch at once."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from yolo_lightning.data.array_types import BoolArray, Float64Array, FloatingArray, Int64Array, IntegerArray
from yolo_lightning.data.occurrences import occurrences


def pairs_of_group(groups: Int64Array, object_groups: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return all pairs of a detection and an object of one group, sorted by detection; both inputs are ascending."""
    starts = np.searchsorted(object_groups, groups)
    counts = np.searchsorted(object_groups, groups, side="right") - starts
    detections = np.repeat(np.arange(len(groups)), counts)
    return detections, np.repeat(starts - np.cumsum(counts) + counts, counts) + np.arange(len(detections))


def chunks(work: IntegerArray, limit: int) -> Iterator[tuple[int, int]]:
    """Yield first and last position, exclusive, of at least one chunk; chunks have work of about `limit`."""
    ends = np.flatnonzero(np.diff(np.cumsum(work) // limit)) + 1
    return pairwise([0, *ends.tolist(), len(work)])


def intersection_over_union(boxes: Float64Array, others: Float64Array, *, of_first: bool = False) -> Float64Array:
    """Return the IoU of N pairs of boxes `(N, 4)` x, y, width, height, by the operations of COCO's `bbIou`.

    With `of_first` the intersection is divided by the area of the first box, as for crowd regions.
    """
    upper = np.minimum(boxes[:, :2] + boxes[:, 2:], others[:, :2] + others[:, 2:])
    sides = np.maximum(upper - np.maximum(boxes[:, :2], others[:, :2]), 0.0)
    shared = sides[:, 0] * sides[:, 1]
    union = boxes[:, 2] * boxes[:, 3]
    if not of_first:
        union = union + others[:, 2] * others[:, 3] - shared
    overlaps = np.zeros(len(boxes))
    np.divide(shared, union, out=overlaps, where=shared > 0)
    return overlaps


def take_in_turn(
    pair_detections: Int64Array,
    pair_objects: Int64Array,
    overlaps: FloatingArray,
    groups: Int64Array,
    thresholds: Sequence[float],
    *,
    prefers_last: bool,
    ignored: BoolArray | None = None,
    crowds: BoolArray | None = None,
) -> Int64Array:
    """Match greedily: each detection takes the unmatched object with the largest IoU, in descending order of scores.

    Args:
        pair_detections: `(P,)` detection of each candidate pair, ascending.
        pair_objects: `(P,)` object of each pair, ascending within a detection.
        overlaps: `(P,)` IoU of each pair.
        groups: `(D,)` group of each detection, best detections of a group first. Groups share no objects.
        thresholds: T minimum IoUs, each a separate matching.
        prefers_last: Of objects with equal IoU, take the last one (COCO) instead of the first one (Ultralytics).
        ignored: `(O,)` objects that a detection takes only if it can take no other object.
        crowds: `(O,)` objects that any number of detections take; they are among the ignored ones.

    Returns:
        `(T, D)` object that a detection takes, or -1.
    """
    result = np.full((len(thresholds), len(groups)), -1)
    if not len(pair_detections):
        return result
    limits = np.array(thresholds, overlaps.dtype)[:, None]
    is_taken = np.zeros((len(thresholds), int(pair_objects.max()) + 1), dtype=np.bool_)
    # Groups are independent: the best detections of all groups choose in one pass, then the second best ones, ...
    choosing, position = np.unique(pair_detections, return_inverse=True)
    turns = occurrences(groups[choosing])[position]
    order = np.argsort(turns, kind="stable")
    pair_detections = pair_detections[order]
    pair_objects = pair_objects[order]
    overlaps = overlaps[order]
    owners = np.cumsum(np.diff(pair_detections, prepend=pair_detections[0]) != 0)  # rank of the detection in this order
    starts = segment_starts(pair_detections)  # first pair of each detection
    detections = pair_detections[starts]
    for start, stop in pairwise([*segment_starts(turns[order]).tolist(), len(turns)]):
        objects = pair_objects[start:stop]
        overlap = overlaps[start:stop]
        values = np.where(~is_taken[:, objects] & (overlap >= limits), overlap, overlap.dtype.type(-1))
        members = slice(int(owners[start]), int(owners[stop - 1]) + 1)
        segments = (starts[members] - start, owners[start:stop] - members.start)
        if ignored is None or not ignored[objects].any():
            choice = _largest(values, *segments, prefers_last=prefers_last)
        else:
            is_ignored = ignored[objects]
            choice = _largest(np.where(is_ignored, -1, values), *segments, prefers_last=prefers_last)
            instead = _largest(np.where(is_ignored, values, -1), *segments, prefers_last=prefers_last)
            choice = np.where(choice >= 0, choice, instead)
        threshold, chooser = np.nonzero(choice >= 0)
        chosen = objects[choice[threshold, chooser]]
        is_taken[threshold, chosen] = True if crowds is None else ~crowds[chosen]
        result[threshold, detections[members][chooser]] = chosen
    return result


def segment_starts(ascending: Int64Array) -> Int64Array:
    """Return the positions at which runs of equal values begin."""
    return np.flatnonzero(np.concatenate(([True], ascending[1:] != ascending[:-1])))


def _largest(values: FloatingArray, starts: Int64Array, owners: Int64Array, *, prefers_last: bool) -> Int64Array:
    """Return the column of the largest value of each of S owners, `(T, S)`; -1 if all its values are negative.

    `values` is `(T, P)`; `starts` `(S,)` is the first column of each owner, `owners` `(P,)` the owner of each column.
    """
    columns = np.arange(len(owners))
    if len(starts) == len(owners):
        return np.where(values >= 0, columns, -1)
    best = np.maximum.reduceat(values, starts, axis=1)
    is_best = values == best[:, owners]
    if prefers_last:
        column = np.maximum.reduceat(np.where(is_best, columns, -1), starts, axis=1)
    else:
        column = np.minimum.reduceat(np.where(is_best, columns, len(owners)), starts, axis=1)
    return np.where(best >= 0, column, -1)
