from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest

from tests.callbacks.tiny_detection import frame_batch
from yolo_lightning.data.batch import Batch
from yolo_lightning.data.boxes import Letterbox
from yolo_lightning.data.image_size import ImageSize
from yolo_lightning.evaluation.detection_result import DetectionResult
from yolo_lightning.evaluation.drawing import bgr, class_colour, original_frame

NAMES = ("a", "b", "c")


def plotted(box: list[float], labels: list[int], size: int = 400) -> npt.NDArray[np.uint8]:
    image = np.full((size, size, 3), (9, 5, 1), np.uint8)
    count = len(labels)
    numbers = np.array([box] * count, np.float32).reshape(-1, 4), np.full(count, 0.9, np.float32), np.array(labels)
    return DetectionResult(image, *numbers, NAMES).plot()


def test_notebooks_show_one_line_and_the_picture() -> None:
    numbers = np.array([[1, 2, 30, 40], [5, 5, 9, 9]], np.float32), np.array([0.9, 0.5], np.float32), np.array([2, 2])
    result = DetectionResult(np.zeros((50, 80, 3), np.uint8), *numbers, NAMES, Path("a.jpg"))
    assert repr(result) == "DetectionResult(2 c; 80 x 50 pixels, a.jpg)"
    assert [(name, score, box.tolist()) for name, score, box in result][1] == ("c", 0.5, [5, 5, 9, 9])
    decoded = cv2.imdecode(np.frombuffer(result._repr_png_(), np.uint8), cv2.IMREAD_COLOR_RGB)
    assert np.array_equal(decoded, result.plot())


@pytest.mark.parametrize("label", range(3))
def test_box_of_a_result_has_its_place_and_the_colour_of_its_class(label: int) -> None:
    image, colour = plotted([100, 200, 300, 350], [label]), bgr(class_colour(label))[::-1]
    for edge in (image[210:340, 100], image[210:340, 300], image[350, 110:290], image[200, 200:290]):
        assert (edge == colour).all()
    assert (image[210:340, 110:290] == (9, 5, 1)).all()


def test_first_box_is_on_top() -> None:
    image = plotted([100, 200, 300, 350], [1, 2])
    assert (image[350, 110:290] == bgr(class_colour(1))[::-1]).all()


@pytest.mark.parametrize("box", [[100, 0, 140, 60], [380, 100, 399, 160]], ids=["top", "right"])
def test_text_at_the_border_is_complete(box: list[float]) -> None:
    usual, image = ((plotted(one, [0]) == 0).all(axis=2).sum() for one in ([100, 100, 140, 160], box))
    assert image > 0.9 * usual > 0


def test_original_frame_is_cut_out_of_the_letterboxed_image() -> None:
    frame = original_frame(frame_batch(7, 9), 1)
    assert frame.dtype == np.uint8
    assert set(np.unique(frame)) == {9}


@pytest.mark.parametrize(("height", "width"), [(288, 384), (384, 288), (64, 64), (37, 91), (300, 2)])
def test_original_frame_has_the_shape_of_the_frame(height: int, width: int) -> None:
    placement = Letterbox.fit(height, width, ImageSize(64, 64))
    one: Any = frame_batch(1)
    batch = Batch(
        one.images, one.boxes, one.labels, one.sample_index, one.image_ids, ((height, width),), (placement,), (True,)
    )
    assert original_frame(batch, 0).shape == (height, width)
