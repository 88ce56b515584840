"""Small datasets whose boxes and frames a test chooses."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import yaml

from tests.helpers.annotations import open_ltdv2
from yolo_lightning.data.labelled_frames import LabelledFrames
from yolo_lightning.data.storage.folder_frames import FolderFrames

CATEGORIES = [
    {"id": number, "name": name}
    for number, name in enumerate(("background", "person", "bicycle", "motorcycle", "vehicle"))
]
FIRST_ID = 20200502114223915
HEIGHT, WIDTH = 48, 64


@pytest.fixture
def coco() -> Callable[..., dict[str, Any]]:
    """Builds the content of an annotation file; box `k` of a frame has category `1 + k % 4`."""

    def build(boxes: Sequence[Sequence[Sequence[float]]] = ((), ()), **replaced: Any) -> dict[str, Any]:
        images = [
            {
                "id": FIRST_ID + position,
                "file_name": f"frames/20200502/clip_1_1142/image_{position:04d}.jpg",
                "width": WIDTH,
                "height": HEIGHT,
                "date_captured": "2020-05-02T11:42:23",
                "meta": {"Temperature": 7.5},
            }
            for position in range(len(boxes))
        ]
        annotations = [
            {"id": 100 * position + k, "image_id": FIRST_ID + position, "category_id": 1 + k % 4, "bbox": list(box)}
            for position, frame_boxes in enumerate(boxes)
            for k, box in enumerate(frame_boxes)
        ]
        return {"images": images, "annotations": annotations, "categories": CATEGORIES, **replaced}

    return build


@pytest.fixture
def write_json(tmp_path: Path) -> Callable[..., Path]:
    """Writes an annotation file into the test's folder."""

    def write(content: Any, name: str = "Train.json") -> Path:
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


@pytest.fixture
def draw_frames(tmp_path: Path) -> Callable[..., None]:
    """Writes a JPEG for each image of an annotation file's content, each different."""

    def draw(content: dict[str, Any]) -> None:
        for position, image in enumerate(content["images"]):
            path = tmp_path / image["file_name"]
            path.parent.mkdir(parents=True, exist_ok=True)
            coarse = np.random.default_rng(position).integers(0, 256, (6, 8), dtype=np.uint8)
            cv2.imwrite(str(path), cv2.resize(coarse, (image["width"], image["height"])))

    return draw


@pytest.fixture
def split(
    tmp_path: Path,
    coco: Callable[..., dict[str, Any]],
    write_json: Callable[..., Path],
    draw_frames: Callable[..., None],
) -> Callable[..., LabelledFrames]:
    """Writes an annotation file with its frames and opens both."""

    def build(boxes: Sequence[Sequence[Sequence[float]]]) -> LabelledFrames:
        content = coco(boxes)
        draw_frames(content)
        return LabelledFrames(open_ltdv2(write_json(content), tmp_path / "index"), FolderFrames(tmp_path))

    return build


@pytest.fixture
def yolo_set(tmp_path: Path) -> Callable[..., Path]:
    """Writes a YOLO dataset below `tmp_path/set` and returns its data.yaml.

    `labels` has the text of each image's label file, or None for none; names are relative to `images`, and images are
    `HEIGHT` x `WIDTH` noise in colour. Further keywords go into the data.yaml, None takes a key out.
    """

    def build(labels: dict[str, str | None], **keys: Any) -> Path:
        root = tmp_path / "set"
        for position, (name, text) in enumerate(labels.items()):
            image = root / "images" / name
            image.parent.mkdir(parents=True, exist_ok=True)
            pixels = np.random.default_rng(position).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
            assert cv2.imwrite(str(image), pixels)
            if text is not None:
                label = (root / "labels" / name).with_suffix(".txt")
                label.parent.mkdir(parents=True, exist_ok=True)
                label.write_text(text)
        description = {"train": "images/train", "val": "images/val", "names": ["cat", "dog"], **keys}
        file = root / "data.yaml"
        root.mkdir(exist_ok=True)
        file.write_text(yaml.safe_dump({key: value for key, value in description.items() if value is not None}))
        return file

    return build
