"""A data.yaml read by Ultralytics' dataset and by this package: same images, boxes and classes."""

import os
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from yolo_lightning.data.formats.yolo import YoloSplit
from yolo_lightning.data.formats.yolo_description import read_description
from yolo_lightning.data.storage.image_header import ORIENTATION

YoloSet = Callable[..., Path]

LABELS = {
    "train/boxes.jpg": "0 0.5 0.5 0.2 0.3\n1 0.123456789 0.7 0.05 0.1\n1 0.9 0.9 0.2 0.2\n",
    "train/twice.png": "1 0.5 0.5 0.2 0.3\n0 0.25 0.25 0.1 0.1\n1 0.5 0.5 0.2 0.3\n",
    "train/polygons.png": "1 0.1 0.1 0.4 0.15 0.3 0.6\n0 0.5 0.5 0.9 0.5 0.9 0.9 0.5 0.8\n1 0.1 0.1 0.4 0.15 0.3 0.6\n",
    "train/deep/er/empty.bmp": "",
    "train/background.webp": None,
    "train/rounded.png": "0 1.005 0.5 0.01 0.1\n",
    "train/UPPER.PNG": "0 0.5 0.5 1.0 1.0",
    "train/a.b.jpg": "\ufeff1 0.5 0.5 0.1 0.1",
}

SUFFIXES = ("jpg", "png", "tif", "webp")


def theirs(file: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, np.ndarray]]:
    monkeypatch.setenv("YOLO_CONFIG_DIR", str(file.parent))
    from ultralytics.cfg import get_cfg
    from ultralytics.data import build_yolo_dataset

    description = read_description(file)
    names = dict(enumerate(description.class_names))
    data = {"names": names, "nc": len(names), "channels": 3}
    images = [str(place) for place in description.places("train")]
    settings = get_cfg(overrides={"imgsz": 64, "task": "detect"})
    return list(build_yolo_dataset(settings, images, 4, data, mode="val").labels)


def sorted_rows(rows: np.ndarray) -> np.ndarray:
    return rows[np.lexsort(rows.T)]


def assert_equal(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    annotations = YoloSplit(read_description(file), "train").read()
    expected = theirs(file, monkeypatch)
    names = [os.path.join(file.parent, bytes(name).decode()) for name in annotations.file_names]
    assert names == [label["im_file"] for label in expected]
    for position, label in enumerate(expected):
        height, width = label["shape"]
        assert tuple(annotations.shapes[position]) == (height, width)
        box_range = slice(*annotations.box_offsets[position : position + 2])
        centres = label["bboxes"].astype(np.float64)
        corners = np.concatenate((centres[:, :2] - centres[:, 2:] / 2, centres[:, :2] + centres[:, 2:] / 2), axis=1)
        limits = [width, height, width, height]
        corners = (corners * limits).clip(0, limits)
        actual_rows = np.column_stack((annotations.labels[box_range], annotations.boxes[box_range]))
        assert np.allclose(sorted_rows(actual_rows), sorted_rows(np.column_stack((label["cls"], corners))), atol=1e-4)


def test_boxes_polygons_duplicates_and_backgrounds(yolo_set: YoloSet, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_equal(yolo_set(LABELS), monkeypatch)


def test_turned_images(yolo_set: YoloSet, monkeypatch: pytest.MonkeyPatch) -> None:
    images = [f"train/{number}.{suffix}" for number in (1, 3, 6, 8) for suffix in SUFFIXES]
    file = yolo_set(dict.fromkeys(images, LABELS["train/boxes.jpg"]))
    for path in (file.parent / "images" / "train").iterdir():
        exif = Image.Exif()
        exif[ORIENTATION] = int(path.stem)
        Image.open(path).save(path, exif=exif)
    assert_equal(file, monkeypatch)


def test_list_of_images(yolo_set: YoloSet, monkeypatch: pytest.MonkeyPatch) -> None:
    file = yolo_set(LABELS, train="train.txt")
    names = [f"./images/{name}" for name in reversed(LABELS)]
    (file.parent / "train.txt").write_text("\n".join(names))
    assert_equal(file, monkeypatch)


def test_frames_are_theirs_in_another_order_of_channels(yolo_set: YoloSet) -> None:
    from ultralytics.utils.patches import imread

    from yolo_lightning.data.storage.folder_frames import ImageFiles

    file = yolo_set(dict.fromkeys(LABELS))
    for name in LABELS:
        path = file.parent / "images" / name
        expected = imread(str(path), cv2.IMREAD_COLOR)
        assert np.array_equal(ImageFiles(file.parent, 3).read(f"images/{name}"), expected[..., ::-1])
        gray = imread(str(path), cv2.IMREAD_GRAYSCALE)
        assert np.array_equal(ImageFiles(file.parent, 1).read(f"images/{name}"), gray[..., 0])
