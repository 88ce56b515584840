"""Rescoring of the detections of a camera that does not move: evidence of time and place.

A detection is real or a false alarm. The log-odds of that are learned from a split with known objects, per class:

- from its frame: a logistic regression on the logit of its score, on its place, the smoothed ratio of real detections
  to false alarms at the same place of the frame, and on its largest IoU with a better detection of its class and of
  another class (the more it overlaps one, the more often it is a duplicate or a confusion);
- from the past and the future: messages of a hidden Markov model along the links of `tracks.py`. Its state is whether
  the detection is real. The probabilities that a real detection and a false alarm have a successor, and that the
  successor is real, are frequencies of the split. A second logistic regression gives the weights of both messages,
  because errors of consecutive frames are not independent.

The new score is the probability that the detection is real.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from torchvision.ops import box_iou

from yolo_lightning.challenge.content import CATEGORY_IDS, Content
from yolo_lightning.challenge.score import box_table
from yolo_lightning.challenge.tracks import Links, link, places_in_time
from yolo_lightning.data.array_types import AnyArray, BoolArray, Float64Array, Int64Array
from yolo_lightning.data.formats.image_ids import clip_of_id, month_of_id
from yolo_lightning.data.index.splits import of_each_month
from yolo_lightning.errors import UserError
from yolo_lightning.evaluation.matching import match_boxes
from yolo_lightning.utils.files import write_json
from yolo_lightning.utils.json_record import read_json

GRID = (24, 32)  # rows and columns of a map of places
SMOOTHING = 1.0  # standard deviation of the smoothing of a map, cells
PRIOR_COUNT = 2.0  # detections by which a ratio of a map is drawn to that of the whole frame
FOLDS = 5  # groups of clips; the place of a detection is judged by the other groups while weights are learned
RIDGE = 1.0  # penalty of the squared weights of a logistic regression
DIGITS = 6  # of the new scores


@dataclass(frozen=True, slots=True)
class ClassModel:
    """What is known of the detections of one class."""

    prior: float  # log-odds that a detection is real
    places: Float64Array  # `GRID` log of the ratio of real detections to false alarms, relative to the whole frame
    alone: Float64Array  # `(5,)` weights of 1, logit of the score, place, overlaps with better detections
    stays: Float64Array  # `(2,)` probability that the successor is real, of a false alarm and of a real detection
    is_linked: Float64Array  # `(2,)` probability of a successor likewise
    weights: Float64Array  # `(4,)` weights of 1, the log-odds that the frame gives, past, future


SHAPES = {"places": GRID, "alone": (5,), "stays": (2,), "is_linked": (2,), "weights": (4,)}
"""Of the arrays of a `ClassModel`, in their order."""

Models = dict[int, ClassModel]
"""By label. A class without real detections or without false alarms has no model and keeps its scores."""


@dataclass(frozen=True, slots=True)
class _Evidence:
    """Detections of a content and what surrounds them."""

    content: Content
    frame_size: tuple[int, int]  # width and height
    links: Links
    overlaps: Float64Array  # `(D, 2)` of `overlaps_with_better`

    def features(self, members: Int64Array, places: Float64Array) -> Float64Array:
        """Return `(len(members), 5)` what the frame tells of some detections, for `ClassModel.alone`."""
        scores = np.clip(self.content.scores[members], 1e-6, 1 - 1e-6)
        place = places.reshape(-1)[_cells(self.content.boxes[members], self.frame_size)]
        return np.column_stack((np.ones(len(members)), np.log(scores / (1 - scores)), place, self.overlaps[members]))


class LabelledDetections:
    """Detections of a split with known objects.

    Args:
        content: Checked content with the frames of `truth`.
        truth: Objects of F frames.
        frame_size: Width and height in pixels.
    """

    def __init__(self, content: Content, truth: Content, frame_size: tuple[int, int]) -> None:
        self._evidence = _gather(content, frame_size, places_in_time(content.image_ids))
        self._is_real = real_detections(content, truth)

    def learn(self, chosen: BoolArray) -> Models:
        """Return the models that some frames teach; `chosen` is `(F,)`."""
        content = self._evidence.content
        _, clips = np.unique([clip_of_id(image_id) for image_id in content.image_ids], return_inverse=True)
        folds = (clips % FOLDS)[content.owners]
        models = {}
        for label in CATEGORY_IDS:
            members = np.flatnonzero((content.labels == label) & chosen[content.owners])
            if 0 < self._is_real[members].sum() < len(members):
                models[label] = _learn_class(self._evidence, self._is_real, members, folds)
        return models

    def cross_rescored(self, half: BoolArray) -> Content:
        """Return the content with the scores that the other half of the frames teaches; `half` is `(F,)`."""
        content = self._evidence.content
        scores = _new_scores(self._evidence, self.learn(~half))
        scores_of_other_half = _new_scores(self._evidence, self.learn(half))
        return replace(content, scores=np.where(half[content.owners], scores, scores_of_other_half))


def rescore(content: Content, models: Models, frame_size: tuple[int, int], places: Int64Array | None = None) -> Content:
    """Return the content with new scores; detections keep their order.

    `places` are numbers of the frames in time, by default those of their image ids (`places_in_time`).
    """
    if places is None:
        places = places_in_time(content.image_ids)
    return replace(content, scores=_new_scores(_gather(content, frame_size, places), models))


def overlaps_with_better(content: Content) -> Float64Array:
    """Return `(D, 2)` the largest IoU with a better detection of the frame, of the same and of another class, or 0."""
    result = np.zeros((len(content.scores), 2))
    order = np.lexsort((-content.scores, content.owners))
    for members in np.split(order, np.flatnonzero(np.diff(content.owners[order])) + 1):
        if len(members) > 1:
            boxes = torch.from_numpy(content.boxes[members])
            overlaps = box_iou(boxes, boxes).tril(-1).nan_to_num().numpy()
            is_same = content.labels[members, None] == content.labels[members]
            result[members, 0] = np.where(is_same, overlaps, 0).max(1)
            result[members, 1] = np.where(is_same, 0, overlaps).max(1)
    return result


def _gather(content: Content, frame_size: tuple[int, int], places: Int64Array) -> _Evidence:
    return _Evidence(content, frame_size, link(content, places), overlaps_with_better(content))


def _new_scores(evidence: _Evidence, models: Models) -> Float64Array:
    scores = evidence.content.scores.copy()
    for label, model in models.items():
        members = np.flatnonzero(evidence.content.labels == label)
        alone = evidence.features(members, model.places) @ model.alone
        odds = _joint_features(model, alone, _within(evidence.links, members, len(scores))) @ model.weights
        scores[members] = (1 / (1 + np.exp(-odds))).round(DIGITS)
    return scores


def write_models(models: Models, path: Path) -> None:
    """Write models as JSON, by label."""
    content = {}
    for label, model in models.items():
        content[label] = {name: np.asarray(value).tolist() for name, value in asdict(model).items()}
    write_json(path, content)


def read_models(path: Path) -> Models:
    """Return the models of a file of `write_models`.

    Raises:
        UserError: If the file cannot be read or contains something else.
    """
    try:
        content: dict[str, dict[str, Any]] = read_json(path)
        models = {}
        for label, values in content.items():
            arrays = {name: np.array(values[name], np.float64) for name in SHAPES}
            models[int(label)] = ClassModel(float(values["prior"]), **arrays)
        is_usable = bool(models) and models.keys() <= set(CATEGORY_IDS) and all(map(_is_usable, models.values()))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError):
        is_usable = False
    if not is_usable:
        raise UserError(f"{path} must be a file that `submission rescore --models` has written.")
    return models


def _is_usable(model: ClassModel) -> bool:
    arrays = {name: getattr(model, name) for name in SHAPES}
    if {name: array.shape for name, array in arrays.items()} != SHAPES:
        return False
    shares = np.concatenate((model.stays, model.is_linked))
    is_finite = all(np.isfinite(value).all() for value in (model.prior, *arrays.values()))
    return is_finite and bool(((shares > 0) & (shares < 1)).all())


def in_first_half(image_ids: Sequence[str]) -> BoolArray:
    """Return `(F,)` whether a frame belongs to half of its month's clips, at least one; halves share no clip."""
    names, clips = np.unique([clip_of_id(image_id) for image_id in image_ids], return_inverse=True)
    months = np.zeros(len(names), np.int64)
    months[clips] = [month_of_id(image_id) for image_id in image_ids]
    return np.isin(clips, of_each_month(names.tolist(), months, 0.5))


def real_detections(content: Content, truth: Content) -> BoolArray:
    """Return `(D,)` whether a detection takes an object at IoU 0.5, as in the scores."""
    matched = match_boxes(box_table(content), box_table(truth), len(CATEGORY_IDS), thresholds=(0.5,))
    is_real = np.zeros(len(content.scores), np.bool_)
    is_real[matched.order] = matched.hits[0] > 0
    return is_real


def _learn_class(evidence: _Evidence, is_real: BoolArray, members: Int64Array, folds: Int64Array) -> ClassModel:
    """Return the model that the detections `members` of one class teach."""
    real = is_real[members]
    places = _learn_places(evidence, members, real)
    features = np.empty((len(members), 5))
    for fold in range(FOLDS):
        in_fold = folds[members] == fold
        real_of_other_folds = real[~in_fold]
        fold_places = places
        if real_of_other_folds.any():
            fold_places = _learn_places(evidence, members[~in_fold], real_of_other_folds)
        features[in_fold] = evidence.features(members[in_fold], fold_places)
    alone = logistic(features, real)
    links = _within(evidence.links, members, len(is_real))
    has_link = links.after >= 0
    successor_is_real = real[links.after]
    stays, is_linked = np.empty((2, 2))
    for state, in_state in enumerate((~real, real)):
        linked = in_state & has_link
        stays[state] = (successor_is_real[linked].sum() + state) / (linked.sum() + 1)
        is_linked[state] = (linked.sum() + 0.5) / ((in_state & links.has_next).sum() + 1)
    stays = np.clip(stays, 0.001, 0.999)
    model = ClassModel(float(np.log(real.sum() / (~real).sum())), places, alone, stays, is_linked, np.ones(4))
    return replace(model, weights=logistic(_joint_features(model, features @ alone, links), real))


def _joint_features(model: ClassModel, alone: Float64Array, links: Links) -> Float64Array:
    """Return `(D, 4)` 1, the log-odds that the frame gives, and those of past and future, for `ClassModel.weights`."""
    return np.stack((np.ones(len(alone)), alone, *_messages(model, alone, links)), axis=1)


def _within(links: Links, members: Int64Array, count: int) -> Links:
    """Return the links among the detections `members`, renumbered."""
    numbers = np.full(count + 1, -1)  # the last one is that of no detection
    numbers[members] = np.arange(len(members))
    return Links(
        after=numbers[links.after[members]],
        before=numbers[links.before[members]],
        has_next=links.has_next[members],
        has_previous=links.has_previous[members],
    )


def _learn_places(evidence: _Evidence, members: Int64Array, real: BoolArray) -> Float64Array:
    cells = _cells(evidence.content.boxes[members], evidence.frame_size)
    share = max(real.mean(), 1e-9)

    def smoothed(detections: BoolArray, prior: float) -> AnyArray:
        counts = np.bincount(cells[detections], minlength=GRID[0] * GRID[1]).reshape(GRID).astype(np.float64)
        return cv2.GaussianBlur(counts, (0, 0), SMOOTHING, borderType=cv2.BORDER_REFLECT) + PRIOR_COUNT * prior

    ratio = smoothed(real, share) / smoothed(~real, 1 - share)
    return np.asarray(np.log(ratio) - np.log(share / (1 - share)))


def _cells(boxes: Float64Array, frame_size: tuple[int, int]) -> Int64Array:
    """Return the number of the cell of the middle of the lower edge of each box."""
    rows, columns = GRID
    row = np.clip((boxes[:, 3] / frame_size[1] * rows).astype(np.int64), 0, rows - 1)
    column = np.clip(((boxes[:, 0] + boxes[:, 2]) / 2 / frame_size[0] * columns).astype(np.int64), 0, columns - 1)
    return row * columns + column


def _messages(model: ClassModel, alone: Float64Array, links: Links) -> tuple[Float64Array, Float64Array]:
    """Return `(D,)` what the past and the future of each detection add to its log-odds."""
    evidence = alone - model.prior
    false, real = model.stays
    linked = np.log(model.is_linked[1] / model.is_linked[0])
    unlinked = np.log((1 - model.is_linked[1]) / (1 - model.is_linked[0]))

    def from_past(odds: Float64Array) -> Float64Array:
        share = 1 / (1 + np.exp(-odds))
        mixed = share * real + (1 - share) * false
        return np.asarray(np.log(mixed / (1 - mixed)) - model.prior)

    def from_future(odds: Float64Array) -> Float64Array:
        ratio = np.exp(np.clip(odds - model.prior, -30, 30))
        return np.asarray(np.log((real * ratio + 1 - real) / (false * ratio + 1 - false)))

    def passed(
        before: Int64Array, after: Int64Array, has_before: BoolArray, message: Callable[[Float64Array], Float64Array]
    ) -> Float64Array:
        result = np.where(has_before, unlinked, 0.0)
        present = np.flatnonzero((before < 0) & (after >= 0))
        while len(present):
            following = after[present]
            result[following] = linked + message(model.prior + evidence[present] + result[present])
            present = following[after[following] >= 0]
        return result

    return (
        passed(links.before, links.after, links.has_previous, from_past),
        passed(links.after, links.before, links.has_next, from_future),
    )


def logistic(features: Float64Array, outcome: BoolArray) -> Float64Array:
    """Return the weights `(K,)` of a logistic regression on `(D, K)` features, the first of which is 1."""
    weights = np.zeros(features.shape[1])
    penalty = np.diag([1e-6, *[RIDGE] * (len(weights) - 1)])
    for _ in range(30):
        share = 1 / (1 + np.exp(-np.clip(features @ weights, -30, 30)))
        gradient = features.T @ (outcome - share) - penalty @ weights
        curvature = (features * (share * (1 - share))[:, None]).T @ features + penalty
        step = np.linalg.solve(curvature, gradient)
        weights = weights + step
        if np.abs(step).max() < 1e-6:
            break
    return weights
