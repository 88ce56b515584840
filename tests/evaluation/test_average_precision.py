from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from tests.evaluation.detections import (
    CLASS_NAMES,
    OBJECT,
    SCALARS,
    Frame,
    drawn_frames,
    prediction,
    random_frames,
    reference,
    target,
)
from yolo_lightning.evaluation.average_precision import PartScores, RankedDetections
from yolo_lightning.evaluation.matching import match

CLASSES = len(CLASS_NAMES)


def score(frames: Sequence[Frame], part: Sequence[bool] | None = None) -> PartScores:
    matches = match([detections for detections, _ in frames], [truth for _, truth in frames], CLASSES)
    ranked = RankedDetections.of(matches)
    return (ranked if part is None else ranked.part(np.array(part))).scores()


def assert_as_reference(frames: Sequence[Frame], scores: PartScores) -> None:
    expected = reference(frames)
    assert scores.scalars() == pytest.approx({name: float(expected[name]) for name in SCALARS}, abs=1e-6)
    assert expected["map_per_class"].numel() == expected["classes"].numel()
    per_class = zip(
        expected["classes"].reshape(-1).tolist(), expected["map_per_class"].reshape(-1).tolist(), strict=True
    )
    for label, value in per_class:
        assert scores.of_class(label)["map"] == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize("digits", [9, 1], ids=["distinct", "ties"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_scores_are_those_of_torchmetrics(seed: int, digits: int) -> None:
    frames = random_frames(seed, digits=digits)
    scores = score(frames)
    assert 0.1 < scores.scalars()["map"] < 0.9, "the case is too easy"
    assert_as_reference(frames, scores)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(frames=drawn_frames())
def test_scores_of_any_frames_are_those_of_torchmetrics(frames: list[Frame]) -> None:
    if any(len(labelled.labels) for pair in frames for labelled in pair):  # torchmetrics fails without any label
        assert_as_reference(frames, score(frames))


@pytest.mark.parametrize("digits", [9, 1], ids=["distinct", "ties"])
def test_part_of_the_frames_scores_as_if_it_were_all(digits: int) -> None:
    frames = random_frames(5, digits=digits)
    part = [number % 3 != 1 for number in range(len(frames))]
    chosen = [frame for frame, is_chosen in zip(frames, part, strict=True) if is_chosen]
    scores = score(frames, part)
    assert scores.frames == len(chosen)
    assert_as_reference(chosen, scores)


def test_hand_computed_case() -> None:
    """One object is found with IoU 0.72, ranked after a false alarm.

    At thresholds 0.50, 0.55, 0.60, 0.65, 0.70 precision is 1/2 at every recall, at the other five 0.
    """
    detections = prediction("a", [[0, 0, 72, 100], [200, 200, 260, 260]], [0.6, 0.9], [0, 0])
    scores = score([(detections, target("a", OBJECT, [0]))])
    expected = {"map": 0.25, "map_50": 0.5, "map_75": 0.0, "mar_1": 0.0, "mar_10": 0.5, "mar_100": 0.5}
    assert scores.scalars() == pytest.approx(expected)
    assert scores.of_class(0) == pytest.approx({"map": 0.25, "map_50": 0.5})
    assert scores.of_class(1) == {"map": -1, "map_50": -1}
    assert scores.observed.tolist() == [True, False, False, False]


def test_precision_is_read_at_recalls_rounded_as_torchmetrics_rounds_them() -> None:
    """7 of 25 objects are found, then a false alarm, then all: recall 0.28 lies just below the rounded 0.28."""
    boxes = torch.cat([OBJECT + 200 * number for number in range(25)])
    detected_boxes = torch.cat([boxes[:7], OBJECT - 500, boxes[7:]])
    frames = [(prediction("a", detected_boxes, torch.linspace(0.9, 0.1, 26), [0] * 26), target("a", boxes, [0] * 25))]
    scores = score(frames)
    assert scores.scalars()["map_50"] == pytest.approx((28 + 73 * 25 / 26) / 101, abs=1e-9)
    assert_as_reference(frames, scores)


def test_sides_are_rounded_as_torchmetrics_rounds_them() -> None:
    """The IoU is 0.5 with float32 sides, and less with exact sides."""
    detections = prediction("a", [[0.1, 0, 3.95, 10]], [0.5], [0])
    frames = [(detections, target("a", [[0.1, 0, 7.8, 10]], [0]))]
    scores = score(frames)
    assert scores.scalars()["map_50"] == 1
    assert_as_reference(frames, scores)


@pytest.mark.parametrize("frames", [[], [(prediction("a", OBJECT, [0.9], [0]), target("a"))]], ids=["none", "alarms"])
def test_nothing_annotated_is_minus_one(frames: list[Frame]) -> None:
    assert score(frames).scalars() == dict.fromkeys(SCALARS, -1.0)


def test_of_equal_scores_the_earlier_frame_ranks_first() -> None:
    hit = (prediction("a", OBJECT, [0.5], [0]), target("a", OBJECT, [0]))
    alarm = (prediction("b", OBJECT, [0.5], [0]), target("b"))
    assert score([hit, alarm]).scalars()["map_50"] == 1
    assert score([alarm, hit]).scalars()["map_50"] == 0.5
