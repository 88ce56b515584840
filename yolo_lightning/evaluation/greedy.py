"""Greedy choice of objects by detections in descending order of scores, for all groups of a batch at once."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from yolo_lightning.data.array_types import BoolArray, Float64Array, FloatingArray, Int64Array


def numbers_within(groups: Int64Array) -> Int64Array:
    """Return the number of each element within its group, from 0; `groups` is ascending."""
    return np.arange(len(groups)) - np.searchsorted(groups, groups)


def pairs_of_group(groups: Int64Array, object_groups: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return all pairs of a detection and an object of one group, sorted by detection; both inputs are ascending."""
    first, behind = np.searchsorted(object_groups, groups), np.searchsorted(object_groups, groups, side="right")
    counts = behind - first
    finder = np.repeat(np.arange(len(groups)), counts)
    return finder, np.repeat(first - np.cumsum(counts) + counts, counts) + np.arange(len(finder))


def intersection_over_union(one: Float64Array, other: Float64Array, *, of_first: bool = False) -> Float64Array:
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
    finder: Int64Array,
    found: Int64Array,
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
    owners = np.cumsum(np.diff(finder, prepend=finder[0]) != 0)  # number of the detection among all in this order
    first = segment_starts(finder)  # first pair of each detection
    detections = finder[first]
    for start, stop in pairwise([*segment_starts(turns).tolist(), len(turns)]):
        wanted, overlap = found[start:stop], overlaps[start:stop]
        values = np.where(~taken[:, wanted] & (overlap >= limits), overlap, overlap.dtype.type(-1))
        own = slice(int(owners[start]), int(owners[stop - 1]) + 1)
        segments = first[own] - start, owners[start:stop] - own.start
        if ignored is None or not (second := ignored[wanted]).any():
            choice = _largest(values, *segments, prefers_last=prefers_last)
        else:
            choice = _largest(np.where(second, -1, values), *segments, prefers_last=prefers_last)
            instead = _largest(np.where(second, values, -1), *segments, prefers_last=prefers_last)
            choice = np.where(choice >= 0, choice, instead)
        threshold, chooser = np.nonzero(choice >= 0)
        chosen = wanted[choice[threshold, chooser]]
        taken[threshold, chosen] = True if crowds is None else ~crowds[chosen]
        objects[threshold, detections[own][chooser]] = chosen
    return objects


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
    choose, never = (np.maximum, -1) if prefers_last else (np.minimum, len(owners))
    at = choose.reduceat(np.where(values == best[:, owners], columns, never), starts, axis=1)
    return np.where(best >= 0, at, -1)
