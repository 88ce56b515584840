"""The challenge's answer file: one JSON object keyed by image id.

Source: the organisers' formatter and templates (RTIOD, 6th RWS workshop at WACV 2026): boxes are xyxy in pixels of the
original frame, labels are the dataset's category ids 1 to 4, and every id of the split is a key, with empty lists where
nothing was found. The evaluation counts the 100 best detections per image and class.
"""

import json
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from yolo_lightning.batch import Prediction

FIRST_CATEGORY_ID = 1
COUNTED_PER_CLASS = 100

Entry = dict[str, list[list[float]] | list[float] | list[int]]
Submission = dict[str, Entry]


def build_submission(predictions: Iterable[Prediction], image_ids: Sequence[str]) -> Submission:
    """Predictions as the answer file's content, every one of `image_ids` in their order.

    Raises:
        ValueError: If a prediction is of a frame that was not asked for, or of one twice.
    """
    content: Submission = {image_id: {"boxes": [], "scores": [], "labels": []} for image_id in image_ids}
    seen: set[str] = set()
    for prediction in predictions:
        if prediction.image_id not in content or prediction.image_id in seen:
            raise ValueError(f"prediction for image id {prediction.image_id}: not in the split, or there twice")
        seen.add(prediction.image_id)
        content[prediction.image_id] = entry(prediction)
    return content


def entry(prediction: Prediction) -> Entry:
    """One frame's value: the counted detections, boxes to 1/100 pixel, scores to 5 digits."""
    keep = torch.zeros(len(prediction.labels), dtype=torch.bool)
    for label in set(prediction.labels.tolist()):
        of_class = (prediction.labels == label).nonzero().flatten()
        best = prediction.scores[of_class].argsort(descending=True, stable=True)[:COUNTED_PER_CLASS]
        keep[of_class[best]] = True
    return {
        "boxes": [[round(side, 2) for side in box] for box in prediction.boxes[keep].tolist()],
        "scores": [round(score, 5) for score in prediction.scores[keep].tolist()],
        "labels": [label + FIRST_CATEGORY_ID for label in prediction.labels[keep].tolist()],
    }


def write_submission(content: Submission, path: Path, archive: Path) -> None:
    """Write the answer file, and a zip that holds it under the same name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.write(path, path.name)
