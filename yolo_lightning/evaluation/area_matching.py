"""COCO's greedy matching in ranges of object areas and with crowd regions, and the scores of the matches.

Source: `COCOeval.evaluateImg` and `accumulate` of pycocotools. `matching` is the special case of all areas without
crowds, with months and frame ids, that the callbacks use.

Objects outside an area range and crowds are ignored: a detection that takes one counts neither as correct nor as false,
and so does a detection outside the range that takes nothing. Detections prefer objects that are not ignored.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from yolo_lightning.evaluation.average_precision import NO_GROUND_TRUTH, average_precision
from yolo_lightning.evaluation.matching import (
    Flags,
    Floats,
    Integers,
    Singles,
    intersection_over_union,
    numbers_within,
    pairs_of_group,
    take_in_turn,
)

AREA_RANGES = {
    "all": (0.0, 1e10),
    "small": (0.0, 32.0**2),
    "medium": (32.0**2, 96.0**2),
    "large": (96.0**2, 1e10),
}
"""Smallest and largest area of an object in square pixels, both inclusive."""

MOST_THRESHOLDS = 64  # one bit each in `AreaMatches.hits`
PAIRS_PER_CHUNK = 500_000
"""Pairs of a detection and an object of one frame that are matched at once; 100 to 200 MB."""

Bits = npt.NDArray[np.unsignedinteger]


@dataclass(frozen=True, slots=True)
class BoxTable:
    """N boxes of F frames, sorted by frame; detections have scores, objects have areas and crowds."""

    boxes: Singles  # `(N, 4)` float32 x, y, width, height
    labels: Integers  # `(N,)` class index from 0
    counts: Integers  # `(F,)` number of boxes per frame
    scores: Singles | None = None  # `(N,)` float32
    areas: Floats | None = None  # `(N,)` area in square pixels; width times height where it is not positive
    crowds: Flags | None = None  # `(N,)` whether the box surrounds a crowd

    def frames(self, first: int, stop: int) -> "BoxTable":
        """Return the boxes of frames `first` to `stop` - 1."""
        own = slice(int(self.counts[:first].sum()), int(self.counts[:stop].sum()))
        return BoxTable(
            self.boxes[own],
            self.labels[own],
            self.counts[first:stop],
            scores=None if self.scores is None else self.scores[own],
            areas=None if self.areas is None else self.areas[own],
            crowds=None if self.crowds is None else self.crowds[own],
        )

    def groups(self, classes: int) -> Integers:
        """Return `(N,)` frame number times `classes` plus label."""
        return np.repeat(np.arange(len(self.counts)), self.counts) * classes + self.labels


@dataclass(frozen=True, slots=True)
class AreaMatches:
    """D evaluated detections, A area ranges (in the order of `AREA_RANGES`) and C classes."""

    labels: Integers  # `(D,)` class index
    scores: Singles  # `(D,)`
    ranks: Integers  # `(D,)`, 0 is the highest score of the frame and class
    hits: Bits  # `(A, D)`, bit `t` is set if the detection is correct at threshold `t`
    ignored: Bits  # `(A, D)`, bit `t` is set if the detection does not count at threshold `t`
    annotated: Integers  # `(A, C)` number of objects that are not ignored


def match_by_area(
    detections: BoxTable, objects: BoxTable, classes: int, thresholds: Sequence[float], limit: int
) -> AreaMatches:
    """Match the detections of all frames with the objects of the same frame and class.

    Args:
        detections: Boxes with scores.
        objects: Boxes of the same frames with areas and crowds.
        classes: Number of classes, greater than every label.
        thresholds: Minimum IoU of a correct detection, at most `MOST_THRESHOLDS` values.
        limit: Number of detections per frame and class that are evaluated, highest scores first.
    """
    parts = [
        _match_chunk(detections.frames(*part), objects.frames(*part), classes, thresholds, limit)
        for part in _chunks(detections.counts, objects.counts)
    ]
    if not parts:
        empty = np.zeros(0, np.int64)
        bits = np.zeros((len(AREA_RANGES), 0), _bits_type(len(thresholds)))
        annotated = np.zeros((len(AREA_RANGES), classes), np.int64)
        return AreaMatches(empty, np.zeros(0, np.float32), empty, bits, bits, annotated)
    return AreaMatches(
        labels=np.concatenate([part.labels for part in parts]),
        scores=np.concatenate([part.scores for part in parts]),
        ranks=np.concatenate([part.ranks for part in parts]),
        hits=np.concatenate([part.hits for part in parts], axis=1),
        ignored=np.concatenate([part.ignored for part in parts], axis=1),
        annotated=np.sum([part.annotated for part in parts], axis=0),
    )


def _chunks(detections: Integers, objects: Integers) -> Iterator[tuple[int, int]]:
    """Yield first and last frame, exclusive, of chunks of about `PAIRS_PER_CHUNK` pairs."""
    work = np.cumsum(detections * (objects + 1) + objects) // PAIRS_PER_CHUNK
    limits = [0, *(np.flatnonzero(np.diff(work)) + 1).tolist(), len(work)]
    yield from ((first, stop) for first, stop in pairwise(limits) if first < stop)


def _match_chunk(
    detections: BoxTable, objects: BoxTable, classes: int, thresholds: Sequence[float], limit: int
) -> AreaMatches:
    assert detections.scores is not None
    assert objects.areas is not None
    assert objects.crowds is not None
    object_groups = objects.groups(classes)
    order = np.argsort(object_groups, kind="stable")
    object_groups, truth, crowds = object_groups[order], objects.boxes[order].astype(np.float64), objects.crowds[order]
    areas = np.where(objects.areas[order] > 0, objects.areas[order], truth[:, 2] * truth[:, 3])
    groups = detections.groups(classes)
    order = np.lexsort((-detections.scores, groups))
    ranks = numbers_within(groups[order])
    order, ranks = order[ranks < limit], ranks[ranks < limit]
    groups, boxes = groups[order], detections.boxes[order].astype(np.float64)
    own_areas = boxes[:, 2] * boxes[:, 3]

    finder, found = pairs_of_group(groups, object_groups)
    overlaps = intersection_over_union(boxes[finder], truth[found])
    if crowds.any():
        # The share of the detection that is in the crowd region.
        share = intersection_over_union(boxes[finder], truth[found], of_first=True)
        overlaps = np.where(crowds[found], share, overlaps)
    # COCO's limit: IoU 1 has to reach threshold 1 in spite of rounding.
    reached = [min(threshold, 1 - 1e-10) for threshold in thresholds]
    close = overlaps >= min(reached)
    finder, found, overlaps = finder[close], found[close], overlaps[close]

    shape = len(AREA_RANGES), len(groups)
    hits, dropped = (np.zeros(shape, _bits_type(len(thresholds))) for _ in range(2))
    annotated = np.zeros((len(AREA_RANGES), classes), np.int64)
    taken_of_all: Integers | None = None
    for number, (least, most) in enumerate(AREA_RANGES.values()):
        outside = (areas < least) | (areas > most)
        ignored = crowds | outside
        annotated[number] = np.bincount(object_groups[~ignored] % classes, minlength=classes)
        if taken_of_all is None:
            taken = taken_of_all = take_in_turn(
                finder, found, overlaps, groups, reached, prefers_last=True, ignored=ignored, crowds=crowds
            )
        else:
            # The matching differs from that of all areas only in groups in which the range separates the objects.
            again = np.isin(object_groups[found], _separated(object_groups, ignored, crowds))
            taken = taken_of_all.copy()
            taken[:, finder[again]] = -1
            part = finder[again], found[again], overlaps[again]
            anew = take_in_turn(*part, groups, reached, prefers_last=True, ignored=ignored, crowds=crowds)
            taken = np.maximum(taken, anew)
        is_free = taken < 0
        is_ignored = (ignored[taken] if len(ignored) else np.zeros(taken.shape, np.bool_)) & ~is_free
        own_outside = (own_areas < least) | (own_areas > most)
        hits[number] = _bits(~is_free & ~is_ignored)
        dropped[number] = _bits(is_ignored | (is_free & own_outside))
    return AreaMatches(groups % classes, detections.scores[order], ranks, hits, dropped, annotated)


def _separated(object_groups: Integers, ignored: Flags, crowds: Flags) -> Integers:
    """Return the groups with objects that are ignored for their area, and with crowds or objects that count."""
    by_area = ignored & ~crowds
    return np.intersect1d(object_groups[by_area], object_groups[~by_area])


def _bits_type(thresholds: int) -> type[np.unsignedinteger]:
    return np.uint16 if thresholds <= 16 else np.uint64


def _bits(flags: Flags) -> Bits:
    """Return `(D,)` bit masks of `(T, D)` flags."""
    kind = _bits_type(len(flags))
    masks: Bits = np.zeros(flags.shape[1], kind)
    for number, row in enumerate(flags):
        masks |= row.astype(kind) << kind(number)
    return masks


@dataclass(frozen=True, slots=True)
class AreaScores:
    """Scores of A area ranges, T thresholds, C classes and M limits; -1 for classes without objects in the range."""

    precision: Floats  # `(A, T, C)` average precision, 0 to 1
    recall: Floats  # `(A, M, T, C)` largest recall, 0 to 1

    def map(self, area: int, threshold: int | None = None) -> float:
        """Return the mean average precision over the classes, and over all thresholds or at one of them."""
        values = self.precision[area] if threshold is None else self.precision[area, threshold]
        return _mean(values)

    def mar(self, area: int, limit: int) -> float:
        """Return the mean of the largest recalls with limit number `limit`, over thresholds and classes."""
        return _mean(self.recall[area, limit])


def _mean(values: Floats) -> float:
    present = values[values > NO_GROUND_TRUTH]
    return float(present.mean()) if present.size else NO_GROUND_TRUTH


def score_by_area(matches: AreaMatches, thresholds: int, recalls: Floats, limits: Sequence[int]) -> AreaScores:
    """Score matches; detections of equal scores are ranked in the order of their frames.

    Args:
        matches: All detections.
        thresholds: Number of IoU thresholds of the matching.
        recalls: Recalls at which precision is sampled.
        limits: M maximum numbers of detections per frame and class for recall, ascending; the last is that of
            the matching.
    """
    ranges, classes = matches.annotated.shape
    order = np.lexsort((-matches.scores, matches.labels))
    ends = np.searchsorted(matches.labels[order], np.arange(classes + 1))
    precision = np.full((ranges, thresholds, classes), NO_GROUND_TRUTH)
    recall = np.full((ranges, len(limits), thresholds, classes), NO_GROUND_TRUTH)
    for label in range(classes):
        own = order[ends[label] : ends[label + 1]]
        ranks = matches.ranks[own]
        for area in np.flatnonzero(matches.annotated[:, label]):
            annotated = int(matches.annotated[area, label])
            hits, ignored = matches.hits[area, own], matches.ignored[area, own]
            for threshold in range(thresholds):
                bit = hits.dtype.type(1 << threshold)
                correct = np.flatnonzero(hits & bit)
                places = correct
                if (dropped := np.flatnonzero(ignored & bit)).size:
                    places = correct - np.searchsorted(dropped, correct)
                precision[area, threshold, label] = average_precision(places, annotated, recalls)
                for number, limit in enumerate(limits):
                    recall[area, number, threshold, label] = (ranks[correct] < limit).sum() / annotated
    return AreaScores(precision, recall)
