"""Reader of Label Studio's exports JSON and JSON-MIN: rectangles with x, y, width, height in percent of the image."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import msgspec

from yolo_lightning.data.formats.suspicious_boxes import CORNER_AND_SIDES
from yolo_lightning.data.layouts.labelled_folder import LabelledFolder, SourceFolder
from yolo_lightning.data.layouts.source_dataset import SourceDataset, located
from yolo_lightning.data.left_out_files import suffix
from yolo_lightning.data.storage.frames import IMAGE_SUFFIXES
from yolo_lightning.errors import UserError

LABEL_STUDIO = "Label Studio JSON"
LABELS = "rectanglelabels"
BOX_KEYS = ("x", "y", "width", "height")


def label_studio_files(folder: SourceFolder) -> list[str]:
    """Return the JSON files that contain rectangles with labels."""
    return [file for file in folder.of(".json") if f'"{LABELS}"'.encode() in folder.read(file)]


def read_label_studio(folder: SourceFolder, files: list[str]) -> SourceDataset:
    labelled = LabelledFolder(LABEL_STUDIO, CORNER_AND_SIDES, is_percent=True)
    for file in files:
        try:
            tasks = msgspec.json.decode(folder.read(file), type=list[dict[str, Any]])
        except (msgspec.DecodeError, RecursionError) as error:
            raise UserError(f"{folder.root / file}: not a list of Label Studio's tasks: {error}") from error
        for task in tasks:
            fields = task.get("data", task)
            texts = [unquote(value.rpartition("?d=")[2]) for value in fields.values() if isinstance(value, str)]
            names = [text for text in texts if suffix(text) in IMAGE_SUFFIXES]
            if not names:
                labelled.notes["tasks without an image left out"].append(file)
                continue
            image = labelled.images[names[0]]
            for region in _regions(task.get("annotations", [task])[:1]):
                if region.get("rotation") or len(region[LABELS]) != 1:
                    labelled.notes["regions left out that are rotated or have not one label"].append(names[0])
                    continue
                image.class_names.append(str(region[LABELS][0]))
                image.boxes.append(folder.numbers((region.get(key) for key in BOX_KEYS), file))
    return located(folder, labelled)


def _regions(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the rectangles with labels in a part of a task."""
    if isinstance(value, dict):
        if LABELS in value:
            yield value
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from _regions(part)
