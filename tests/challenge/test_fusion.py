"""Weighted boxes fusion: the numbers of ensemble-boxes, scores, and the choice of weights."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from yolo_lightning.challenge.content import Content
from yolo_lightning.challenge.fusion import fuse

CASES = json.loads((Path(__file__).parent / "weighted_boxes_fusion.json").read_text())
"""Random boxes of one frame, and the result of `weighted_boxes_fusion` of ensemble-boxes 1.0.9, 4 and 7 digits."""

BOX = [10.0, 20.0, 50.0, 80.0]


def content(entries: dict[str, dict[str, list[Any]]]) -> Content:
    owners = [number for number, entry in enumerate(entries.values()) for _ in entry["scores"]]
    parts = [[value for entry in entries.values() for value in entry[name]] for name in ("boxes", "scores", "labels")]
    boxes, scores, labels = (np.array(part, dtype=np.float64) for part in parts)
    return Content(tuple(entries), np.array(owners, dtype=np.int64), boxes.reshape(-1, 4), scores, labels)


def one(boxes: list[list[float]], scores: list[float], image_id: str = "a") -> Content:
    return content({image_id: {"boxes": boxes, "scores": scores, "labels": [1] * len(scores)}})


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_numbers_are_those_of_ensemble_boxes(case: dict[str, Any]) -> None:
    files = [content({"empty": {"boxes": [], "scores": [], "labels": []}, "a": entry}) for entry in case["files"]]
    actual = fuse(
        files, np.divide(case["weights"], sum(case["weights"])), case["iou_threshold"], case["score_threshold"]
    )
    expected = case["fused"]
    assert set(actual.owners.tolist()) == {1}
    order = np.argsort(-actual.scores, kind="stable")
    np.testing.assert_allclose(actual.scores[order], expected["scores"], atol=6e-6)
    np.testing.assert_array_equal(actual.labels[order], expected["labels"])
    np.testing.assert_allclose(actual.boxes[order], expected["boxes"], atol=0.0051)


def test_scores_of_agreement_and_of_a_single_file() -> None:
    both = fuse([one([BOX], [0.8]), one([BOX], [0.4])], [0.5, 0.5], 0.55)
    assert both.scores.tolist() == [0.6]
    alone = fuse([one([BOX], [0.8]), one([], [])], [0.75, 0.25], 0.55)
    assert alone.scores.tolist() == [0.6]
    same_file = fuse([one([BOX, BOX], [0.9, 0.9]), one([], [])], [0.9, 0.1], 0.55)
    assert same_file.scores.tolist() == [1.0]


def test_frames_are_matched_by_their_ids_and_at_most_100_remain() -> None:
    many = [[3.0 * number, 0.0, 3.0 * number + 2, 5.0] for number in range(120)]
    scores = [0.001 * (number + 1) for number in range(120)]
    entries = {name: {"boxes": [], "scores": [], "labels": []} for name in ("a", "b")}
    entries["b"] = {"boxes": many, "scores": scores, "labels": [2] * 120}
    turned = dict(reversed(entries.items()))
    fused = fuse([content(entries), content(turned)], [0.5, 0.5], 0.55)
    assert fused.image_ids == ("a", "b")
    assert (set(fused.owners.tolist()), len(fused.scores)) == ({1}, 100)
    assert fused.scores.min() == pytest.approx(0.021)
