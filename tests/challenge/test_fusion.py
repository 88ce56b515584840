"""Weighted boxes fusion: the numbers of ensemble-boxes, scores, and the choice of weights."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from yolo_lightning.challenge.content import Content
from yolo_lightning.challenge.fusion import fuse
from yolo_lightning.challenge.fusion_weights import choose_weights, first_half, normalised, search
from yolo_lightning.challenge.score import score_submission

CASES = json.loads((Path(__file__).parent / "weighted_boxes_fusion.json").read_text())
"""Random boxes of one frame, and the result of `weighted_boxes_fusion` of ensemble-boxes 1.0.9, 4 and 7 digits."""

BOX = [10.0, 20.0, 50.0, 80.0]


def content(entries: dict[str, dict[str, list[Any]]]) -> Content:
    owners = [number for number, entry in enumerate(entries.values()) for _ in entry["scores"]]
    parts = [[one for entry in entries.values() for one in entry[name]] for name in ("boxes", "scores", "labels")]
    boxes, scores, labels = (np.array(part, dtype=np.float64) for part in parts)
    return Content(tuple(entries), np.array(owners, dtype=np.int64), boxes.reshape(-1, 4), scores, labels)


def one(boxes: list[list[float]], scores: list[float], image_id: str = "a") -> Content:
    return content({image_id: {"boxes": boxes, "scores": scores, "labels": [1] * len(scores)}})


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_numbers_are_those_of_ensemble_boxes(case: dict[str, Any]) -> None:
    files = [content({"empty": {"boxes": [], "scores": [], "labels": []}, "a": entry}) for entry in case["files"]]
    ours = fuse(files, np.divide(case["weights"], sum(case["weights"])), case["iou_threshold"], case["score_threshold"])
    theirs = case["fused"]
    assert set(ours.owners.tolist()) == {1}
    order = np.argsort(-ours.scores, kind="stable")
    np.testing.assert_allclose(ours.scores[order], theirs["scores"], atol=6e-6)
    np.testing.assert_array_equal(ours.labels[order], theirs["labels"])
    np.testing.assert_allclose(ours.boxes[order], theirs["boxes"], atol=0.0051)


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


def months(image_ids: tuple[str, ...], scores: dict[str, list[float]], shift: float = 0.0) -> Content:
    """An object per frame, found with the first score, and a false alarm with the second."""
    boxes = [[BOX[0] + shift, BOX[1], BOX[2] + shift, BOX[3]], [200.0, 100.0, 230.0, 140.0]]
    entries = {image_id: {"boxes": boxes, "scores": scores[image_id], "labels": [1, 1]} for image_id in image_ids}
    return content(entries)


IDS = tuple(f"{month}00{clip}14120000" for month in (202101, 202102) for clip in range(1, 5))


def test_a_better_file_gets_a_larger_weight() -> None:
    truth = content({image_id: {"boxes": [BOX], "scores": [1.0], "labels": [1]} for image_id in IDS})
    good = months(IDS, {image_id: [0.9, 0.5] for image_id in IDS})
    bad = months(IDS, {image_id: [0.1, 0.99] for image_id in IDS}, shift=300.0)
    choice = choose_weights([good, bad], truth, 0.55)
    assert choice.weights[0] > choice.weights[1]
    assert len(choice.halves) == 2
    assert choice.balanced > choice.equal
    assert score_submission(fuse([good, bad], choice.weights, 0.55), truth).balanced() == choice.balanced


def test_weights_that_do_not_win_on_both_halves_are_not_used() -> None:
    truth = content({image_id: {"boxes": [BOX], "scores": [1.0], "labels": [1]} for image_id in IDS})
    first = first_half(IDS)
    assert first.tolist().count(True) == 4
    ranks = {image_id: [0.9, 0.5] if is_first else [0.1, 0.99] for image_id, is_first in zip(IDS, first, strict=True)}
    others = {image_id: [0.1, 0.99] if is_first else [0.9, 0.5] for image_id, is_first in zip(IDS, first, strict=True)}
    choice = choose_weights([months(IDS, ranks), months(IDS, others, shift=300.0)], truth, 0.55)
    assert choice.weights == (0.5, 0.5)


def test_search_stops_at_a_maximum() -> None:
    found = search(normalised((1, 1)), lambda weights: -abs(weights[0] - 0.8))
    assert found == normalised((4, 1))
    assert search(normalised((1, 1)), lambda weights: 1.0) == (0.5, 0.5)
