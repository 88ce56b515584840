import numpy as np

from tests.commands.report.run_folder_maker import CLASS_NAMES, record
from yolo_lightning.commands.report.detections import Confusion, Detections, precision_recall
from yolo_lightning.evaluation.average_precision import RECALLS, average_precision
from yolo_lightning.evaluation.drift import drift_scores
from yolo_lightning.evaluation.matching import Matches


def detections(scores: list[float], right: list[bool], annotated: int) -> Detections:
    matches: Matches = record(CLASS_NAMES).matches
    nothing = Confusion(("a",), np.zeros((2, 2), np.int64), 0.25)
    labels = np.zeros(len(scores), np.int64)
    return Detections(
        ("a",), np.array([annotated]), labels, np.array(scores), np.array(right, bool), drift_scores(matches), nothing
    )


def test_precision_falls_and_recall_rises() -> None:
    recall, precision = precision_recall(detections([0.2, 0.9, 0.5, 0.7], [True, True, False, True], 5), 0)
    assert recall.tolist() == [0.0, 0.2, 0.4, 0.4, 0.6]
    assert precision.tolist() == [1.0, 1.0, 1.0, 0.75, 0.75]


def test_curve_and_average_precision_are_of_one_mind() -> None:
    generator = np.random.default_rng(0)
    right = (generator.random(200) < 0.6).tolist()
    scores = generator.random(200).tolist()
    one = detections(scores, right, 150)
    recall, precision = precision_recall(one, 0)
    at = np.searchsorted(recall[1:], RECALLS)
    area = np.append(precision[1:], 0.0)[at].mean()
    order = np.argsort(-np.array(scores), kind="stable")
    assert area == average_precision(np.flatnonzero(np.array(right)[order]), 150)


def test_class_without_detections_has_a_curve_of_one_point() -> None:
    recall, precision = precision_recall(detections([], [], 3), 0)
    assert (recall.tolist(), precision.tolist()) == ([0.0], [0.0])
