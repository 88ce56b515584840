from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.evaluation.detections import CLASS_NAMES, OBJECT, prediction, random_frames, target
from yolo_lightning.data.batch import Prediction, Target
from yolo_lightning.evaluation.matching import IOU_THRESHOLDS, Matches, match

ALL = (1 << len(IOU_THRESHOLDS)) - 1
AT_50 = 1


def matched(detections: Prediction, truth: Target) -> Matches:
    """Return the matches without the bits of error types."""
    matches = match([detections], [truth], len(CLASS_NAMES))
    return replace(matches, hits=matches.hits & ALL)


def hits_at_50(detections: Prediction, truth: Target) -> list[bool]:
    return [bool(bits & AT_50) for bits in matched(detections, truth).hits.tolist()]


def test_overlap_decides_at_which_thresholds_a_detection_is_right() -> None:
    matches = matched(prediction("a", [[0, 0, 72, 100]], [0.6], [0]), target("a", OBJECT, [0]))
    assert matches.hits.tolist() == [0b11111]  # 0.50 to 0.70


@pytest.mark.parametrize(("width", "right"), [(50, True), (49, False)])
def test_the_threshold_itself_counts(width: int, right: bool) -> None:
    assert hits_at_50(prediction("a", [[0, 0, width, 100]], [0.6], [0]), target("a", OBJECT, [0])) == [right]


def test_thresholds_are_rounded_as_torchmetrics_rounds_them() -> None:
    """0.55 rounded to float32 is greater than 0.55."""
    matches = matched(prediction("a", [[0, 0, 55, 100]], [0.6], [0]), target("a", OBJECT, [0]))
    assert matches.hits.tolist() == [0b1]


def test_a_detection_takes_what_it_overlaps_most() -> None:
    """The better detection takes the far object; the other one overlaps the near object only and takes that."""
    objects = [[0, 0, 100, 100], [20, 0, 120, 100]]
    detections = prediction("a", [[18, 0, 118, 100], [-20, 0, 80, 100]], [0.9, 0.5], [0, 0])
    assert hits_at_50(detections, target("a", objects, [0, 0])) == [True, True]


def test_of_equal_overlaps_the_last_object_is_taken() -> None:
    """The first detection has equal IoUs; the other detection is correct only if the first takes the second object."""
    objects = [[0, 0, 100, 100], [20, 0, 120, 100]]
    detections = prediction("a", [[10, 0, 110, 100], [-30, 0, 70, 100]], [0.9, 0.5], [0, 0])
    assert hits_at_50(detections, target("a", objects, [0, 0])) == [True, True]
    assert hits_at_50(detections, target("a", objects[::-1], [0, 0])) == [True, False]


def test_an_object_taken_at_a_low_threshold_is_free_at_a_higher_one() -> None:
    detections = prediction("a", [[0, 0, 62, 100], [0, 0, 95, 100]], [0.9, 0.5], [0, 0])
    assert matched(detections, target("a", OBJECT, [0])).hits.tolist() == [0b111, ALL & ~0b111]


def test_detections_go_by_frame_class_and_rank() -> None:
    predictions = [
        prediction("a", OBJECT.repeat(3, 1), [0.1, 0.3, 0.2], [3, 0, 3]),
        prediction("b", OBJECT, [0.9], [0]),
    ]
    matches = match(predictions, [target("a"), target("b")], len(CLASS_NAMES))
    assert matches.counts.tolist() == [3, 1]
    assert matches.labels.tolist() == [0, 3, 3, 0]
    assert matches.ranks.tolist() == [0, 0, 1, 0]
    assert matches.scores.tolist() == pytest.approx([0.3, 0.2, 0.1, 0.9])


@pytest.mark.parametrize(("labels", "counted"), [([0] * 101, 100), ([1] * 100 + [0], 101)])
def test_a_hundred_detections_per_class_count_not_per_frame(labels: list[int], counted: int) -> None:
    alarms = torch.cat([OBJECT + 200 + number for number in range(100)])
    detections = prediction("a", torch.cat([alarms, OBJECT]), [0.9] * 100 + [0.5], labels)
    matches = matched(detections, target("a", OBJECT, [0]))
    assert len(matches.hits) == counted
    assert bool((matches.hits & AT_50).any()) == (counted == 101)


def test_boxes_of_negative_area_are_neither_detections_nor_objects() -> None:
    inverted = OBJECT[:, [2, 1, 0, 3]]
    matches = matched(
        prediction("a", torch.cat([inverted, OBJECT]), [0.9, 0.5], [0, 0]),
        target("a", torch.cat([inverted, OBJECT]), [0, 0]),
    )
    assert matches.annotated.tolist() == [[1, 0, 0, 0]]
    assert (matches.ranks.tolist(), matches.hits.tolist()) == ([1], [ALL])


def test_boxes_without_area_touch_nothing() -> None:
    assert hits_at_50(prediction("a", [[5, 5, 5, 5]], [0.5], [0]), target("a", [[5, 5, 5, 5]], [0])) == [False]


def test_frames_matched_together_or_apart_are_the_same() -> None:
    frames = random_frames(3, months=(202101, 202005))
    predictions = [detections for detections, _ in frames]
    truth = [objects for _, objects in frames]
    together = match(predictions, truth, 4)
    apart = Matches.join([match(predictions[at : at + 5], truth[at : at + 5], 4) for at in range(0, len(frames), 5)])
    assert together.months.tolist() == [202101, 202005] * 6
    for name in Matches.names():
        np.testing.assert_array_equal(getattr(apart, name), getattr(together, name), strict=True)
