import sys
from pathlib import Path
from types import SimpleNamespace
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
from yolo_lightning.evaluation.drawing import bgr, class_colour, free_place, original_frame, with_boxes

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
    assert result.legible_scale == 3
    assert np.array_equal(decoded, result.plot(3))


@pytest.mark.parametrize("label", range(3))
def test_box_of_a_result_has_its_place_and_the_colour_of_its_class(label: int) -> None:
    image, colour = plotted([100, 200, 300, 350], [label]), bgr(class_colour(label))[::-1]
    for edge in (image[210:340, 100], image[210:340, 300], image[350, 110:290], image[200, 200:290]):
        assert (edge == colour).all()
    assert (image[210:340, 110:290] == (9, 5, 1)).all()


def test_box_up_to_the_border_has_all_edges() -> None:
    image, colour = plotted([0, 0, 400, 400], [0]), bgr(class_colour(0))[::-1]
    for edge in (image[60:, 0], image[60:, -1], image[-1], image[0, 200:]):
        assert (edge == colour).all()


def test_first_box_is_on_top() -> None:
    image = plotted([100, 200, 300, 350], [1, 2])
    assert (image[350, 110:290] == bgr(class_colour(1))[::-1]).all()


@pytest.mark.parametrize("box", [[100, 0, 140, 60], [380, 100, 399, 160]], ids=["top", "right"])
def test_text_at_the_border_is_complete(box: list[float]) -> None:
    usual, image = ((plotted(corners, [0]) == 0).all(axis=2).sum() for corners in ([100, 100, 140, 160], box))
    assert image > 0.9 * usual > 0


def test_texts_do_not_cover_each_other_and_lie_in_the_image() -> None:
    sides = np.random.default_rng(0).integers(0, 80, (60, 4))
    taken = np.zeros((0, 4), np.int64)
    without_place = 0
    for x, y, width, height in sides.tolist():
        place = free_place((x, y, x + width, y + height), (20, 6), (90, 90), taken)
        if place is None:
            without_place += 1
            continue
        assert ((place >= 0) & (place <= 90)).all()
        is_apart = (place[:2] >= taken[:, 2:]).any(axis=1) | (place[2:] <= taken[:, :2]).any(axis=1)
        assert is_apart.all()
        taken = np.vstack([taken, place])
    assert 0 < without_place < 60
    assert free_place((10, 50, 40, 60), (20, 6), (90, 90), np.zeros((0, 4), np.int64)).tolist() == [10, 44, 30, 50]


def test_a_box_without_room_for_its_text_has_the_shorter_one_or_none() -> None:
    image = np.zeros((40, 100, 3), np.uint8)
    boxes = np.array([[0, 0, 100, 40]] * 9, np.float32)
    texts = [("wider than the image", "0.9")] * 9
    written = [with_boxes(image, boxes[:count], [0] * count, texts[:count]) for count in (0, 1, 8, 9)]
    assert not np.array_equal(written[0], written[1])
    assert np.array_equal(written[2], written[3])


def test_picture_is_saved_in_the_format_of_the_suffix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = result_of(np.zeros((50, 400, 3), np.uint8))
    result.save(tmp_path / "new" / "a.png")
    assert np.array_equal(cv2.imread(str(tmp_path / "new" / "a.png"), cv2.IMREAD_COLOR_RGB), result.plot())
    with pytest.raises(ValueError, match=r"path must end in an image format such as \.jpg or \.png, got .*a\.xyz"):
        result.save(str(tmp_path / "a.xyz"))
    monkeypatch.setattr("PIL.ImageShow._viewers", [])
    with pytest.raises(ValueError, match=r"this system has no image viewer; save\(path\) writes the picture"):
        result.show()


def test_table_and_normalized_boxes(monkeypatch: pytest.MonkeyPatch) -> None:
    result = result_of(np.zeros((50, 400, 3), np.uint8))
    assert result.normalized_boxes.tolist() == [pytest.approx([0.0025, 0.04, 0.075, 0.8]), pytest.approx([0, 0, 1, 1])]
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=dict))
    columns: Any = result.to_pandas()
    assert list(columns) == ["name", "label", "score", "x1", "y1", "x2", "y2"]
    assert (columns["name"], columns["x2"].tolist()) == (["c", "a"], [30, 400])
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ValueError, match="to_pandas needs the package pandas: pip install pandas"):
        result.to_pandas()


def result_of(image: npt.NDArray[np.uint8]) -> DetectionResult:
    boxes = np.array([[1, 2, 30, 40], [0, 0, 400, 50]], np.float32)
    return DetectionResult(image, boxes, np.array([0.9, 0.5], np.float32), np.array([2, 0]), NAMES)


def test_original_frame_is_cut_out_of_the_letterboxed_image() -> None:
    frame = original_frame(frame_batch(7, 9), 1)
    assert frame.dtype == np.uint8
    assert set(np.unique(frame)) == {9}


@pytest.mark.parametrize(("height", "width"), [(288, 384), (384, 288), (64, 64), (37, 91), (300, 2)])
def test_original_frame_has_the_shape_of_the_frame(height: int, width: int) -> None:
    placement = Letterbox.fit(height, width, ImageSize(64, 64))
    source_batch: Any = frame_batch(1)
    batch = Batch(
        source_batch.images,
        source_batch.boxes,
        source_batch.labels,
        source_batch.sample_index,
        source_batch.image_ids,
        ((height, width),),
        (placement,),
        (True,),
    )
    assert original_frame(batch, 0).shape == (height, width)
