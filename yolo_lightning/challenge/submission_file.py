"""The challenge's answer file: one JSON object keyed by image id.

Source: the organisers' formatter and templates (RTIOD, 6th RWS workshop at WACV 2026): boxes are xyxy in pixels of the
original frame, labels are the dataset's category ids 1 to 4, and every id of the split is a key, with empty lists where
nothing was found. The evaluation counts the 100 best detections per image and class.
"""

import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import torch

from yolo_lightning.challenge.content import FIRST_CATEGORY_ID, Content
from yolo_lightning.challenge.reading import MEMBER
from yolo_lightning.data.batch import Prediction, by_image
from yolo_lightning.evaluation.matching import COUNTED_PER_CLASS
from yolo_lightning.utils.files import replacing

Entry = dict[str, list[list[float]] | list[float] | list[int]]
Submission = dict[str, Entry]


def build_submission(predictions: Iterable[Prediction], image_ids: Sequence[str]) -> Submission:
    """Predictions as the answer file's content, every one of `image_ids` in their order.

    Raises:
        ValueError: If a prediction is of a frame that was not asked for, or of one twice.
    """
    return {
        image_id: {"boxes": [], "scores": [], "labels": []} if prediction is None else entry(prediction)
        for image_id, prediction in by_image(predictions, image_ids).items()
    }


def entry(prediction: Prediction) -> Entry:
    """One frame's value: the counted detections, boxes to 1/100 pixel, scores to 5 digits.

    Boxes without area after that, which can match no object, are left out.
    """
    keep = torch.zeros(len(prediction.labels), dtype=torch.bool)
    for label in set(prediction.labels.tolist()):
        of_class = (prediction.labels == label).nonzero().flatten()
        best = prediction.scores[of_class].argsort(descending=True, stable=True)[:COUNTED_PER_CLASS]
        keep[of_class[best]] = True
    rounded = [[round(side, 2) for side in box] for box in prediction.boxes[keep].tolist()]
    whole = [left < right and top < bottom for left, top, right, bottom in rounded]
    scores, labels = prediction.scores[keep].tolist(), prediction.labels[keep].tolist()
    return {
        "boxes": [box for box, is_whole in zip(rounded, whole, strict=True) if is_whole],
        "scores": [round(score, 5) for score, is_whole in zip(scores, whole, strict=True) if is_whole],
        "labels": [label + FIRST_CATEGORY_ID for label, is_whole in zip(labels, whole, strict=True) if is_whole],
    }


def entries(content: Content) -> Iterator[tuple[str, Entry]]:
    """Id and value of each frame of a checked content."""
    stops = np.cumsum(content.counts).tolist()
    for image_id, start, stop in zip(content.image_ids, [0, *stops], stops, strict=False):
        own = slice(start, stop)
        yield (
            image_id,
            {
                "boxes": content.boxes[own].tolist(),
                "scores": content.scores[own].tolist(),
                "labels": content.labels[own].astype(np.int64).tolist(),
            },
        )


def write_submission(content: Iterable[tuple[str, Entry]], path: Path) -> None:
    """Write the answer file, whole or not at all: JSON, or a zip that holds it where `path` ends in .zip.

    Args:
        content: Id and value of each frame.
        path: Its folder is made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        if path.suffix == ".zip":
            with (
                zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive,
                archive.open(MEMBER, "w", force_zip64=True) as member,
            ):
                member.writelines(encoded(content))
        else:
            with temporary.open("wb") as file:
                file.writelines(encoded(content))


def encoded(content: Iterable[tuple[str, Entry]]) -> Iterator[bytes]:
    """The JSON text, frame by frame."""
    yield b"{"
    for number, (image_id, value) in enumerate(content):
        yield (b",\n" if number else b"\n") + msgspec.json.encode(image_id) + b": " + msgspec.json.encode(value)
    yield b"\n}\n"
