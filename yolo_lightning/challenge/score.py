"""Scores of a submission, equal to those of the organisers' server."""

from typing import Any

import numpy as np
import torch

from yolo_lightning.challenge.content import CATEGORY_IDS, Content
from yolo_lightning.data.batch import Prediction, Target
from yolo_lightning.evaluation.drift import DriftScores, drift_scores, month_of_id
from yolo_lightning.evaluation.matching import Matches, match

FRAMES_AT_ONCE = 256


def score_submission(content: Content, truth: Content) -> DriftScores:
    """Return the scores of a checked content.

    Frames of the split that the content lacks have no detections, other frames are ignored. Boxes are used unchanged:
    an inverted box or a box without area matches no object.

    Args:
        content: Boxes xyxy in pixels, labels 1 to 4, all numbers finite.
        truth: Objects of the split. The month of a frame is part of its id.
    """
    image_ids = truth.image_ids
    content = content.with_frames(image_ids)
    found, objects = (
        np.searchsorted(owners, np.arange(len(image_ids) + 1)).tolist() for owners in (content.owners, truth.owners)
    )
    matches = []
    for start in range(0, len(image_ids), FRAMES_AT_ONCE):
        predictions, targets = [], []
        for frame, image_id in enumerate(image_ids[start : start + FRAMES_AT_ONCE], start):
            own = slice(found[frame], found[frame + 1])
            boxes, labels = tensors(content.boxes[own], content.labels[own])
            scores = torch.from_numpy(content.scores[own].astype(np.float32))
            predictions.append(Prediction(image_id, boxes, scores, labels))
            own = slice(objects[frame], objects[frame + 1])
            targets.append(Target(image_id, *tensors(truth.boxes[own], truth.labels[own]), month_of_id(image_id)))
        matches.append(match(predictions, targets, len(CATEGORY_IDS)))
    return drift_scores(Matches.join(matches))


def tensors(boxes: Any, category_ids: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return boxes as float32 and category ids as class indices from 0."""
    labels = category_ids.astype(np.int64) - CATEGORY_IDS[0]
    return torch.from_numpy(boxes.astype(np.float32)), torch.from_numpy(labels)
