"""Best F1 of a class in a month."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.evaluation.detections import CLASS_NAMES, random_frames
from yolo_lightning.commands.sweep.sweep_scores import best_f1, operating_points
from yolo_lightning.evaluation.matching import match


def f1_at(scores: np.ndarray, right: np.ndarray, annotated: int, score_threshold: float) -> float:
    kept = scores > score_threshold
    return 2 * int(right[kept].sum()) / (int(kept.sum()) + annotated)


@given(st.lists(st.tuples(st.integers(2, 20), st.booleans()), min_size=1, max_size=30), st.integers(0, 5))
def test_no_other_threshold_is_better(pairs: list[tuple[int, bool]], missed: int) -> None:
    scores = np.array([score / 20 for score, _ in pairs], dtype=np.float32)
    right = np.array([hit for _, hit in pairs])
    annotated = int(right.sum()) + missed or 1
    score_threshold, f1, precision, recall = best_f1(scores, right, annotated, 0.05)
    assert f1 == pytest.approx(f1_at(scores, right, annotated, score_threshold))
    assert f1 == pytest.approx(max(f1_at(scores, right, annotated, other) for other in (*np.unique(scores), 0.05)))
    if f1:
        assert f1 == pytest.approx(2 * precision * recall / (precision + recall))


def test_confidence_lies_between_what_is_kept_and_what_is_not() -> None:
    scores, right = np.array([0.9, 0.7, 0.3], dtype=np.float32), np.array([True, True, False])
    assert best_f1(scores, right, 2, 0.1) == pytest.approx((0.5, 1.0, 1.0, 1.0))
    assert best_f1(scores[:2], right[:2], 2, 0.1)[0] == pytest.approx(0.4)


def test_nothing_found_is_a_score_of_nothing() -> None:
    assert best_f1(np.zeros(0, np.float32), np.zeros(0, np.bool_), 3, 0.01) == (0.01, 0.0, 0.0, 0.0)


def test_there_is_a_point_for_each_month_and_each_class_annotated_in_it() -> None:
    frames = random_frames(7, months=(202005, 202101, 0))
    matches = match([one for one, _ in frames], [other for _, other in frames], len(CLASS_NAMES))
    points = operating_points(matches, 0.0)
    expected = {
        (month, label): int(matches.annotated.numpy()[matches.months.numpy() == month, label].sum())
        for month in (202005, 202101)
        for label in (0, 1, 3)
    }
    assert {(point.month, point.label): point.annotated for point in points} == expected
