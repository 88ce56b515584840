"""Reader of Label Studio's exports JSON and JSON-MIN: rectangles with x, y, width, height in percent of the image."""

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import msgspec

from yolo_lightning.data.formats.suspicious_boxes import CORNER_AND_SIDES
from yolo_lightning.data.layouts.labelled_folder import LabelledFolder, SourceFolder
from yolo_lightning.data.layouts.source_dataset import Advance, SourceDataset, located
from yolo_lightning.data.left_out_files import suffix
from yolo_lightning.data.storage.frames import IMAGE_SUFFIXES
from yolo_lightning.errors import UserError

LABEL_STUDIO = "Label Studio JSON"
LABELS = "rectanglelabels"
REGIONS = re.compile(rb'"(rectangle|polygon|brush|ellipse|keypoint)labels"')
BOX_KEYS = ("x", "y", "width", "height")


def label_studio_files(folder: SourceFolder) -> list[str]:
    """Return the JSON files that contain regions with labels."""
    return [file for file in folder.of(".json") if REGIONS.search(folder.read(file))]


def read_label_studio(folder: SourceFolder, files: list[str], advance: Advance) -> SourceDataset:
    labelled = LabelledFolder(LABEL_STUDIO, CORNER_AND_SIDES, is_percent=True)
    newest: dict[str, dict[str, Any]] = {}  # Newest annotation of each image
    for file in files:
        try:
            tasks = msgspec.json.decode(folder.read(file), type=list[dict[str, Any]])
        except (msgspec.DecodeError, RecursionError) as error:
            raise UserError(f"{folder.root / file}: not a list of Label Studio's tasks: {error}") from error
        for task in tasks:
            name = _image_name(task.get("data", task))
            if not name:
                labelled.notes["tasks without an image left out"].append(file)
                continue
            annotations = _annotations(task)
            if not annotations:
                labelled.notes["tasks left out, which are skipped or not annotated"].append(name)
            for annotation in annotations:
                if name in newest:
                    labelled.notes["annotations left out, because the image has a newer annotation"].append(name)
                if name not in newest or _time(annotation) >= _time(newest[name]):
                    newest[name] = annotation
    for name, annotation in newest.items():
        image = labelled.images[name]
        for region in _regions(annotation.get("result", annotation)):
            labels = region.get(LABELS)
            if labels is None:
                labelled.notes["regions left out that are not rectangles, such as polygons"].append(name)
                continue
            if region.get("rotation") or not isinstance(labels, list) or len(labels) != 1:
                labelled.notes["regions left out that are rotated or have not one label"].append(name)
                continue
            image.class_names.append(str(labels[0]))
            image.boxes.append(folder.numbers((region.get(key) for key in BOX_KEYS), name))
    return located(folder, labelled, advance)


def _image_name(fields: Any) -> str:
    """Return the written path of the image of a task, empty if there is none."""
    if not isinstance(fields, dict):
        return ""
    texts = [unquote(value.rpartition("?d=")[2]) for value in fields.values() if isinstance(value, str)]
    return next((text for text in texts if suffix(text) in IMAGE_SUFFIXES), "")


def _annotations(task: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the annotations of a task that are not skipped; in the export JSON-MIN, the task is one annotation.

    The rectangles of an annotation are in `result`; `prediction` contains those of a model, from which it was made.
    """
    annotations = task.get("annotations", [task])
    if not isinstance(annotations, list):
        return []
    return [part for part in annotations if isinstance(part, dict) and not part.get("was_cancelled")]


def _time(annotation: dict[str, Any]) -> str:
    """Return the time of the last change of an annotation as text in ISO 8601, empty if it is unknown."""
    return str(annotation.get("updated_at") or annotation.get("created_at") or "")


def _regions(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the regions with labels in a part of a task."""
    if isinstance(value, dict):
        if any(REGIONS.fullmatch(f'"{key}"'.encode()) for key in value):
            yield value
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from _regions(part)
