"""Scores an answer file against the annotated boxes of its split, as the organisers' server does."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch

from yolo_lightning.challenge.content import CATEGORY_IDS, FIRST_CATEGORY_ID, Content, Truth
from yolo_lightning.data.batch import Prediction, Target
from yolo_lightning.evaluation.drift import DriftScores, drift_scores, month_of_id
from yolo_lightning.evaluation.matching import Matches, match

FRAMES_AT_ONCE = 256
"""Frames matched together."""


def score_submission(content: Content, truth: Truth) -> DriftScores:
    """Scores of a checked content.

    Frames of the split that the content lacks count as without detections, others are ignored. Boxes are taken as they
    are: one that ends before it begins, or has no area, matches no object.

    Args:
        content: Boxes xyxy in pixels, labels 1 to 4, all numbers finite.
        truth: The split. A frame's month stands in its id.
    """
    frames, matches = list(paired_frames(content, truth)), []
    for start in range(0, max(1, len(frames)), FRAMES_AT_ONCE):
        part = frames[start : start + FRAMES_AT_ONCE]
        predictions, targets = [one for one, _ in part], [one for _, one in part]
        matches.append(match(predictions, targets, len(CATEGORY_IDS)))
    return drift_scores(Matches.join(matches))


def paired_frames(content: Content, truth: Truth) -> Iterator[tuple[Prediction, Target]]:
    """Predictions and target of each frame of the split, in its order."""
    positions = {image_id: position for position, image_id in enumerate(content.image_ids)}
    stops = np.cumsum(content.counts)
    target_stops = np.searchsorted(truth.owners, np.arange(len(truth.template.image_ids)), side="right")
    start = 0
    for image_id, target_stop in zip(truth.template.image_ids, target_stops.tolist(), strict=True):
        position = positions.get(image_id)
        own = slice(0, 0) if position is None else slice(stops[position] - content.counts[position], stops[position])
        target = slice(start, target_stop)
        start = target_stop
        yield (
            Prediction(
                image_id,
                torch.from_numpy(content.boxes[own].astype(np.float32)),
                torch.from_numpy(content.scores[own].astype(np.float32)),
                class_indices(content.labels[own]),
            ),
            Target(
                image_id,
                torch.from_numpy(truth.boxes[target].astype(np.float32)),
                class_indices(truth.labels[target]),
                month_of_id(image_id),
            ),
        )


def class_indices(category_ids: npt.NDArray[np.float64] | npt.NDArray[np.int64]) -> torch.Tensor:
    """Labels from 0."""
    return torch.from_numpy(category_ids.astype(np.int64) - FIRST_CATEGORY_ID)
