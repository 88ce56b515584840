"""Writer of challenge submissions: one JSON object keyed by image id.

Source: the organisers' formatter and templates (RTIOD, 6th RWS workshop at WACV 2026): boxes are xyxy in pixels of the
original frame, labels are the dataset's category ids 1 to 4, and every id of the split is a key, with empty lists for
frames without detections. The evaluation counts the 100 best detections per image and class.
"""

import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from yolo_lightning.challenge.content import CATEGORY_IDS, Content
from yolo_lightning.challenge.reading import MEMBER
from yolo_lightning.data.batch import Prediction, by_image
from yolo_lightning.data.occurrences import occurrences
from yolo_lightning.evaluation.matching import COUNTED_PER_CLASS
from yolo_lightning.utils.files import replacing

Entry = dict[str, list[Any]]


def build_submission(predictions: Iterable[Prediction], image_ids: Sequence[str]) -> dict[str, Entry]:
    """Return the content of a submission with all `image_ids` in order."""
    return {image_id: entry(prediction) for image_id, prediction in by_image(predictions, image_ids).items()}


def entry(prediction: Prediction | None) -> Entry:
    """Return the counted detections of a frame, boxes rounded to 1/100 pixel, scores to 5 digits.

    Boxes without area after rounding are left out, because they cannot match an object.
    """
    result: Entry = {"boxes": [], "scores": [], "labels": []}
    if prediction is None:
        return result
    labels = prediction.labels.numpy()
    order = np.lexsort((-prediction.scores.numpy(), labels))
    keep = np.sort(order[occurrences(labels[order]) < COUNTED_PER_CLASS])
    kept = (values[keep].tolist() for values in (prediction.boxes, prediction.scores, prediction.labels))
    for box, score, label in zip(*kept, strict=True):
        x1, y1, x2, y2 = (round(side, 2) for side in box)
        if x1 < x2 and y1 < y2:
            result["boxes"].append([x1, y1, x2, y2])
            result["scores"].append(round(score, 5))
            result["labels"].append(label + CATEGORY_IDS[0])
    return result


def entries(content: Content) -> Iterator[tuple[str, Entry]]:
    """Yield id and value of each frame of a checked content."""
    edges = np.searchsorted(content.owners, np.arange(len(content.image_ids) + 1)).tolist()
    for image_id, start, stop in zip(content.image_ids, edges, edges[1:], strict=False):
        yield (
            image_id,
            {
                "boxes": content.boxes[start:stop].tolist(),
                "scores": content.scores[start:stop].tolist(),
                "labels": content.labels[start:stop].astype(np.int64).tolist(),
            },
        )


def write_submission(content: Iterable[tuple[str, Entry]], path: Path) -> None:
    """Write a submission atomically, and create its folder: JSON, or a zip that contains it if `path` ends in .zip."""
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
    """Yield the JSON text, frame by frame."""
    yield b"{"
    for number, (image_id, value) in enumerate(content):
        yield (b",\n" if number else b"\n") + msgspec.json.encode(image_id) + b": " + msgspec.json.encode(value)
    yield b"\n}\n"
