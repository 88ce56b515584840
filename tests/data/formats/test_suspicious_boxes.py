"""Annotations of another box format and repeated records, in every format."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from yolo_lightning.data.datamodule import DetectionDataModule
from yolo_lightning.data.formats.annotations import Annotations
from yolo_lightning.data.formats.coco import read_coco
from yolo_lightning.data.formats.file_settings import Files
from yolo_lightning.data.formats.frame_checks import refuse_annotations, warn_of_boxes
from yolo_lightning.data.formats.ltdv2 import CLASS_NAMES, read_annotations
from yolo_lightning.data.formats.yolo import YoloSplit
from yolo_lightning.data.formats.yolo_description import read_description
from yolo_lightning.data.index.split_index import open_index
from yolo_lightning.data.limit_settings import Limits
from yolo_lightning.data.storage.storage_settings import StorageSettings

WIDTH, HEIGHT = 384, 288
Content = dict[str, Any]


def content(images: int = 30, boxes: int = 60) -> Content:
    """Frames with boxes within them, some of which touch an edge."""
    random = np.random.default_rng(0)
    sides = random.uniform(4, 40, (boxes, 2))
    corners = random.uniform(0, 1, (boxes, 2)) * ((WIDTH, HEIGHT) - sides)
    corners[::9, 0], corners[4::9, 1] = 0, 0
    annotations = [
        {"id": number, "image_id": number % images + 1, "category_id": number % 4 + 1, "bbox": [*corner, *side]}
        for number, (corner, side) in enumerate(zip(corners.tolist(), sides.tolist(), strict=True))
    ]
    frames = [
        {"id": number + 1, "file_name": f"clip/image_{number:04}.jpg", "width": WIDTH, "height": HEIGHT}
        for number in range(images)
    ]
    categories = [{"id": number, "name": name} for number, name in enumerate(CLASS_NAMES, start=1)]
    return {"images": frames, "categories": categories, "annotations": annotations}


def each_box(change: Callable[..., list[float]]) -> Callable[[Content], None]:
    def apply(tree: Content) -> None:
        for annotation in tree["annotations"]:
            annotation["bbox"] = change(*annotation["bbox"])

    return apply


def list_twice(tree: Content) -> None:
    tree["annotations"] *= 2


def name_one_file(tree: Content) -> None:
    for number, image in enumerate(tree["images"]):
        image["file_name"] = f"./clip//image_{number // 3:04}.jpg" if number % 2 else f"clip/image_{number // 3:04}.jpg"


IMPOSSIBLE: dict[str, tuple[Callable[[Content], None], str]] = {
    "relative": (each_box(lambda x, y, w, h: [x / WIDTH, y / HEIGHT, w / WIDTH, h / HEIGHT]), "smaller than 1 pixel"),
    "corners": (each_box(lambda x, y, w, h: [x, y, x + w, y + h]), "x, y, width, height in pixels. Is it x1, y1, x2"),
    "larger image": (each_box(lambda *box: [4 * value for value in box]), "Is it boxes of another image size"),
    "an entry per box": (
        name_one_file,
        "20 of 30 entries of images name the file of an earlier entry, such as clip/image_0000.jpg (ids 1 and 2)",
    ),
}
UNLIKELY: dict[str, tuple[Callable[[Content], None], str]] = {
    "centers": (each_box(lambda x, y, w, h: [x + w / 2, y + h / 2, w, h]), "Is it center x, center y"),
    "twice": (list_twice, "60 of 120 boxes repeat another box"),
}


@pytest.fixture(params=[read_annotations, read_coco], ids=["ltdv2", "coco"])
def read(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Content], Annotations]:
    def call(tree: Content) -> Annotations:
        (tmp_path / "Train.json").write_text(json.dumps(tree))
        annotations: Annotations = request.param(tmp_path / "Train.json")
        return annotations

    return call


def test_usual_boxes_are_not_suspicious(read: Callable[[Content], Annotations]) -> None:
    for images, boxes in ((30, 60), (1, 1), (500, 50_000), (3, 0)):
        annotations = read(content(images, boxes))
        assert (annotations.facts.impossible, annotations.facts.unlikely) == ("", "")


@pytest.mark.parametrize("name", [*IMPOSSIBLE, *UNLIKELY])
def test_cause_is_named(name: str, read: Callable[[Content], Annotations]) -> None:
    change, text = (IMPOSSIBLE | UNLIKELY)[name]
    tree = content()
    change(tree)
    facts = read(tree).facts
    assert text in (facts.impossible if name in IMPOSSIBLE else facts.unlikely)
    assert bool(facts.impossible) == (name in IMPOSSIBLE)


LABELS: dict[str, tuple[Callable[..., list[float]], str, str]] = {
    "usual": (lambda x, y, w, h: [x + w / 2, y + h / 2, w, h], "", ""),
    "numbers from 1": (
        lambda x, y, w, h: [x + w / 2, y + h / 2, w, h],
        "",
        "no box has the class 0, 'cat': if the class numbers",
    ),
    "corners": (lambda x, y, w, h: [x, y, x + w, y + h], "Is it x1, y1, x2, y2", ""),
    "corner and sides": (lambda x, y, w, h: [x, y, w, h], "", "Is it x, y, width, height"),
    "fractions of fractions": (lambda x, y, w, h: [x, y, w / WIDTH, h / HEIGHT], "smaller than 1 pixel", ""),
}


@pytest.mark.parametrize("name", LABELS)
def test_label_files_are_judged(name: str, yolo_set: Callable[..., Path]) -> None:
    change, impossible, unlikely = LABELS[name]
    label = int(name == "numbers from 1")
    lines: dict[str, str] = {f"train/{number:02}.png": "" for number in range(30)}
    for record in content()["annotations"]:
        x, y, width, height = record["bbox"]
        box = change(x / WIDTH, y / HEIGHT, width / WIDTH, height / HEIGHT)
        lines[f"train/{record['image_id'] - 1:02}.png"] += f"{label} {' '.join(map(str, box))}\n"
    facts = YoloSplit(read_description(yolo_set(lines)), "train").read().facts
    assert impossible in facts.impossible
    assert unlikely in facts.unlikely
    assert (bool(facts.impossible), bool(facts.unlikely)) == (bool(impossible), bool(unlikely))


def test_entries_of_one_file_without_boxes_are_predicted_each(read: Callable[[Content], Annotations]) -> None:
    tree = content(boxes=0)
    name_one_file(tree)
    facts = read(tree).facts
    assert facts.impossible == ""
    assert facts.notes[-1].startswith("20 of 30 entries of images name the file of an earlier entry")


def test_refusal_has_one_key(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    tree = content()
    IMPOSSIBLE["relative"][0](tree)
    (tmp_path / "Train.json").write_text(json.dumps(tree))
    index = open_index(tmp_path / "Train.json", tmp_path / "index", read_annotations)
    with pytest.raises(ValueError, match=r"^Train: all 60 .* set data.limits.allow_suspicious_boxes true"):
        refuse_annotations(index, "train", Limits(), "Train")
    refuse_annotations(index, "train", Limits(allow_suspicious_boxes=True), "Train")
    warn_of_boxes(index, "Train")
    assert "smaller than 1 pixel" in str(recwarn.pop().message)


def test_validation_equal_to_training_is_a_warning(look_alike: Path, index_root: Path) -> None:
    data = DetectionDataModule(
        str(look_alike), files=Files(valid="Train.json"), storage=StorageSettings(index_root=str(index_root))
    )
    with pytest.warns(UserWarning, match="train and valid have the same frames and boxes"):
        data.setup("fit")
