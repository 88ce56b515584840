from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from tests.evaluation.detections import CLASS_NAMES, OBJECT, Frame, prediction, random_frames, target
from yolo_lightning.evaluation.class_colours import class_colour
from yolo_lightning.evaluation.matching import match
from yolo_lightning.evaluation.record import EvaluationRecord
from yolo_lightning.evaluation.score_pictures import (
    confusion_figure,
    draw_evaluation,
    precision_recall_figure,
    score_threshold_figure,
    shares,
)
from yolo_lightning.evaluation.ultralytics_matching import match_as_ultralytics
from yolo_lightning.evaluation.ultralytics_metrics import ultralytics_scores

MATRICES = {"val_confusion_matrix.png", "val_confusion_matrix_normalized.png"}
CURVES = {f"val_{name}_curve.png" for name in ("pr", "f1", "precision", "recall")}


def record_of(frames: list[Frame]) -> EvaluationRecord:
    found, truth = [one for one, _ in frames], [one for _, one in frames]
    classes, ids = len(CLASS_NAMES), tuple(one.image_id for one in truth)
    matches, ultralytics = match(found, truth, classes), match_as_ultralytics(found, truth, classes)
    return EvaluationRecord("val", tuple(CLASS_NAMES), ids, matches, ultralytics)


def drawn(record: EvaluationRecord, folder: Path) -> list[Path]:
    return draw_evaluation(record, ultralytics_scores(record.ultralytics), folder)


def texts(figure: Figure) -> set[str]:
    (axis, *_) = figure.axes
    legend = [text.get_text() for one in figure.legends for text in one.get_texts()]
    return {text.get_text() for text in axis.texts} | set(legend)


def test_all_pictures_are_drawn(tmp_path: Path) -> None:
    paths = drawn(record_of(random_frames(2)), tmp_path / "evaluations")
    assert {path.name for path in paths} == CURVES | MATRICES
    assert set((tmp_path / "evaluations").iterdir()) == set(paths)
    for path in paths:
        assert imread(path).std() > 0.05, "an empty picture"


@pytest.mark.parametrize("frames", [[], [(prediction("a", OBJECT, [0.9], [0]), target("a"))]], ids=["none", "alarms"])
def test_without_ground_truth_there_are_no_curves(tmp_path: Path, frames: list[Frame]) -> None:
    assert {path.name for path in drawn(record_of(frames), tmp_path)} == MATRICES


def test_curves_are_named_with_their_scores() -> None:
    scores = ultralytics_scores(record_of(random_frames(2)).ultralytics)
    at_50 = scores.scalars()["ultralytics_map_50"]
    figure = precision_recall_figure(scores, CLASS_NAMES)
    named = texts(figure)
    assert figure.legends[0].get_title().get_text() == "Ultralytics' mAP50"
    assert f"all {at_50:.3f}" in named
    assert f"person {scores.of_class(0)['ultralytics_map_50']:.3f}" in named
    assert not any(name.startswith("motorcycle") for name in named), "never annotated"
    of_f1 = score_threshold_figure(scores.f1_by_score(), scores, CLASS_NAMES, "F1")
    assert {"person", "bicycle", "vehicle"} < texts(of_f1)


def test_curve_of_a_class_has_the_colour_of_its_boxes() -> None:
    frames = [(prediction("a", OBJECT, [0.9], [2]), target("a", OBJECT, [2]))]
    scores = ultralytics_scores(record_of(frames).ultralytics)
    for figure in (
        precision_recall_figure(scores, CLASS_NAMES),
        score_threshold_figure(scores.precision_by_score, scores, CLASS_NAMES, "Precision"),
    ):
        assert figure.axes[0].lines[0].get_color() == class_colour(2)


def test_cells_of_the_matrix_hold_their_numbers() -> None:
    matrix = np.array([[1234, 5, 0], [0, 7, 8], [9, 0, 0]])
    assert texts(confusion_figure(matrix, ("a", "b"))) == {"1,234", "5", "7", "8", "9"}
    assert texts(confusion_figure(shares(matrix), ("a", "b"))) == {"0.99", "0.01", "0.42", "0.58", "1.00"}


def test_columns_of_shares_add_up_to_one() -> None:
    assert shares(np.array([[3, 0], [1, 0]])).tolist() == [[0.75, 0.0], [0.25, 0.0]]


def test_many_classes_are_neither_numbered_nor_named_in_the_curves() -> None:
    classes = 80
    names = [f"class {number}" for number in range(classes)]
    frames = [(prediction("a", OBJECT, [0.9], [label]), target("a", OBJECT, [label])) for label in range(classes)]
    found, truth = [one for one, _ in frames], [one for _, one in frames]
    matches = match_as_ultralytics(found, truth, classes)
    figure = confusion_figure(matches.confusion(), names)
    assert texts(figure) == set()
    assert [tick.get_text() for tick in figure.axes[0].get_yticklabels()] == [*names, "background"]
    named = texts(precision_recall_figure(ultralytics_scores(matches), names))
    assert named == {"80 classes", "all 0.995"}
