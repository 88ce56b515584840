"""Links between detections of the same object in consecutive frames of a clip.

Two detections of one class are linked if each is the best partner of the other: their boxes are close, of similar size,
and have high scores. The position in the next frame is expected either at the same place or after the same displacement
as in the frame before.
"""

from dataclasses import dataclass

import numpy as np

from yolo_lightning.challenge.content import Content
from yolo_lightning.data.array_types import BoolArray, Float64Array, Int64Array
from yolo_lightning.data.formats.image_ids import clip_of_id, month_of_id
from yolo_lightning.data.occurrences import occurrences
from yolo_lightning.evaluation.greedy import chunks, pairs_of_group

LONGEST_STEP_S = 3  # longer pauses between frames separate clips
LINKED_PER_CLASS = 30  # detections of a frame and class that may be linked, highest scores first
FARTHEST = 1.5  # largest distance of two linked boxes, in units of their sides
DISTANCE_SCALE = 0.5  # standard deviation of that distance
ROUNDS = 3  # of the choice of partners; later rounds link what the best partners have left
PAIRS_PER_CHUNK = 2_000_000
_CLASSES = 8  # more than the largest label


@dataclass(frozen=True, slots=True)
class Links:
    """Links of D detections; -1 where there is none."""

    after: Int64Array  # `(D,)` position of the detection of the same object in the next frame
    before: Int64Array  # `(D,)` likewise in the previous frame
    has_next: BoolArray  # `(D,)` whether the clip has a next frame
    has_previous: BoolArray  # `(D,)` whether the clip has a previous frame


def places_in_time(image_ids: tuple[str, ...]) -> Int64Array:
    """Return `(F,)` numbers that differ by 1 for consecutive frames of a clip, and by more between clips.

    Clip and time are part of LTDv2's image ids. A frame with another id is a clip of its own.
    """
    names = [clip_of_id(image_id) for image_id in image_ids]
    seconds = np.array([_second(image_id) for image_id in image_ids])
    _, clips = np.unique(np.array(names), return_inverse=True)
    order = np.lexsort((seconds, clips))
    is_next = (np.diff(clips[order]) == 0) & (np.diff(seconds[order]) <= LONGEST_STEP_S)
    places = np.zeros(len(order), np.int64)
    places[order[1:]] = np.cumsum(np.where(is_next, 1, 10))
    return places


def _second(image_id: str) -> int:
    """Return the second of the day, the last six digits of an LTDv2 image id; 0 for other ids."""
    if not (month_of_id(image_id) and image_id.isdecimal()):
        return 0
    return 3600 * int(image_id[-6:-4]) + 60 * int(image_id[-4:-2]) + int(image_id[-2:])


def link(content: Content, places: Int64Array) -> Links:
    """Link the detections of a checked content; `places` as those of `places_in_time`."""
    detection_places = places[content.owners]
    keys = detection_places * _CLASSES + content.labels.astype(np.int64)
    order = np.lexsort((-content.scores, keys))
    order = order[occurrences(keys[order]) < LINKED_PER_CLASS]
    boxes = content.boxes[order]
    sides = np.maximum(boxes[:, 2:] - boxes[:, :2], 1e-3)
    centers = boxes[:, :2] + sides / 2
    logs = np.log(np.maximum(content.scores[order], 1e-6))
    earlier, later = _candidates(keys[order], centers, sides)
    likelihood = logs[earlier] + logs[later]
    distance = _distance(earlier, later, centers, sides)
    after, before = _partners(earlier, later, likelihood, distance, len(order))
    moved = np.where((before >= 0)[:, None], centers - centers[before], np.nan)
    # The second time with the displacement from the previous frame, where it is known.
    distance = np.fmin(distance, _distance(earlier, later, centers, sides, moved[earlier]))
    after, before = _partners(earlier, later, likelihood, distance, len(order))
    links = np.full((2, len(content.scores)), -1)
    for row, partners in zip(links, (after, before), strict=True):
        row[order] = np.where(partners >= 0, order[partners], -1)
    return Links(links[0], links[1], np.isin(detection_places + 1, places), np.isin(detection_places - 1, places))


def _candidates(keys: Int64Array, centers: Float64Array, sides: Float64Array) -> tuple[Int64Array, Int64Array]:
    """Return the pairs of detections in consecutive frames that are close to each other: earlier and later ones."""
    counts = np.searchsorted(keys, keys + _CLASSES, side="right") - np.searchsorted(keys, keys + _CLASSES)
    parts = []
    for start, stop in chunks(counts, PAIRS_PER_CHUNK):
        earlier, later = pairs_of_group(keys[start:stop], keys - _CLASSES)
        earlier += start
        is_close = _distance(earlier, later, centers, sides) < (2 * FARTHEST) ** 2
        parts.append(np.stack((earlier[is_close], later[is_close])))
    all_earlier, all_later = np.concatenate(parts, axis=1)
    return all_earlier, all_later


def _distance(
    earlier: Int64Array,
    later: Int64Array,
    centers: Float64Array,
    sides: Float64Array,
    moved: Float64Array | float = 0.0,
) -> Float64Array:
    """Return the squared distance of the boxes of each pair, in units of their sides.

    The earlier boxes are moved by `moved` `(P, 2)` before.
    """
    scale = np.sqrt(sides[earlier] * sides[later])
    step = centers[later] - centers[earlier] - moved
    return np.asarray(((step / scale) ** 2 + np.log(sides[later] / sides[earlier]) ** 2).sum(axis=1))


def _partners(
    earlier: Int64Array, later: Int64Array, likelihood: Float64Array, distance: Float64Array, count: int
) -> tuple[Int64Array, Int64Array]:
    """Return the next and the previous detection of each of `count` detections, -1 for none.

    `likelihood` `(P,)` is the logarithm of the product of both scores of a pair, `distance` `(P,)` that of `_distance`.
    """
    affinity = np.where(distance < FARTHEST**2, likelihood - distance / (2 * DISTANCE_SCALE**2), -np.inf)
    after = np.full(count, -1)
    before = np.full(count, -1)
    for _ in range(ROUNDS):
        free = (after[earlier] < 0) & (before[later] < 0) & np.isfinite(affinity)
        earlier = earlier[free]
        later = later[free]
        affinity = affinity[free]
        best, best_of_later = np.full((2, count), -np.inf)
        np.maximum.at(best, earlier, affinity)
        np.maximum.at(best_of_later, later, affinity)
        mutual = (affinity == best[earlier]) & (affinity == best_of_later[later])
        # Of equal affinities, the first pair of a detection counts.
        pairs = np.stack((earlier[mutual], later[mutual]))
        for row in range(2):
            pairs = pairs[:, np.unique(pairs[row], return_index=True)[1]]
        after[pairs[0]] = pairs[1]
        before[pairs[1]] = pairs[0]
    return after, before
