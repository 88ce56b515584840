"""Scores and curves against Ultralytics' `ap_per_class`."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from ultralytics.utils.metrics import ap_per_class

from tests.evaluation.detections import CLASS_NAMES, OBJECT, Frame, drawn_frames, prediction, random_frames, target
from yolo_lightning.data.batch import Prediction
from yolo_lightning.evaluation.matching import match
from yolo_lightning.evaluation.ultralytics_matching import UltralyticsMatches, match_as_ultralytics
from yolo_lightning.evaluation.ultralytics_metrics import (
    GRID,
    UltralyticsScores,
    threshold_curves,
    ultralytics_scores,
)

NAMES = {f"ultralytics_{name}" for name in ("precision", "recall", "f1", "map_50", "map")}


def matched(frames: Sequence[Frame]) -> UltralyticsMatches:
    return match_as_ultralytics(
        [detections for detections, _ in frames], [truth for _, truth in frames], len(CLASS_NAMES)
    )


def theirs(matches: UltralyticsMatches) -> tuple[Any, ...]:
    annotated = matches.annotated.sum(axis=0)
    right = (matches.hits[:, None] >> np.arange(10)) & 1
    result: tuple[Any, ...] = ap_per_class(
        right.astype(bool),
        matches.scores,
        matches.labels.astype(float),
        np.repeat(np.arange(len(annotated)), annotated).astype(float),
    )
    return result


def assert_as_theirs(matches: UltralyticsMatches) -> UltralyticsScores:
    scores = ultralytics_scores(matches)
    _, _, precision, recall, f1, ap, labels, p_curve, r_curve, f1_curve, grid, by_recall = theirs(matches)
    close = partial(np.testing.assert_allclose, rtol=0, atol=1e-9)
    assert scores.labels.tolist() == labels.tolist()
    close(GRID, grid)
    close(scores.average_precision, ap)
    close(scores.precision_by_score, p_curve)
    close(scores.recall_by_score, r_curve)
    close(scores.f1_by_score(), f1_curve)
    if len(labels):
        close(scores.precision_by_recall, by_recall)
    for row, label in enumerate(labels.tolist()):
        expected = [precision[row], recall[row], f1[row], ap[row, 0], ap[row].mean()]
        close(list(scores.of_class(label).values()), expected)
    return scores


@pytest.mark.parametrize("seed", range(4))
def test_numbers_and_curves_are_theirs(seed: int) -> None:
    scores = assert_as_theirs(matched(random_frames(seed, frames=20)))
    assert 0.1 < scores.scalars()["ultralytics_map"] < 0.9, "the case is too easy"
    assert 0.1 < scores.scalars()["ultralytics_f1"] < 0.95


@settings(max_examples=100, deadline=None, derandomize=True)
@given(frames=drawn_frames())
def test_numbers_of_any_frames_are_theirs(frames: list[Frame]) -> None:
    """Many scores are equal; Ultralytics' sort leaves their order undefined."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np, "argsort", partial(np.argsort, kind="stable"))
        assert_as_theirs(matched(frames))


def test_scalars_are_means_of_the_annotated_classes() -> None:
    scores = ultralytics_scores(matched(random_frames(2)))
    of_classes = [scores.of_class(label) for label in scores.labels.tolist()]
    assert scores.scalars() == pytest.approx(
        {name: np.mean([of_class[name] for of_class in of_classes]) for name in NAMES}
    )
    assert 2 not in scores.labels  # predicted, never annotated


def test_precision_recall_and_f1_belong_to_the_matching_of_map_50() -> None:
    """The clipped box is correct, the box before clipping is not: Ultralytics' scores are 0, all others 1."""
    box = torch.tensor([[0.0, 0.0, 40.0, 30.0]])
    overhanging = torch.tensor([[-100.0, -100.0, 40.0, 30.0]])
    detections = Prediction("a", box, torch.tensor([0.9]), torch.tensor([0]), unclipped=overhanging)
    truth = target("a", box.tolist(), [0])
    assert threshold_curves(match([detections], [truth], 1)).scalars() == {"precision": 1.0, "recall": 1.0, "f1": 1.0}
    assert ultralytics_scores(match_as_ultralytics([detections], [truth], 1)).scalars()["ultralytics_recall"] == 0


def test_nothing_annotated_is_minus_one() -> None:
    scores = ultralytics_scores(matched([(prediction("a", OBJECT, [0.9], [0]), target("a"))]))
    assert scores.scalars() == dict.fromkeys(NAMES, -1.0)
