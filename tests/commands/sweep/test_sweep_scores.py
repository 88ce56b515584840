"""Scores of settings, and the choice of the best one."""

import math

import numpy as np
import torch
from hypothesis import given, settings, strategies as st

from tests.evaluation.detections import CLASS_NAMES, Frame, random_frames
from yolo_lightning.commands.sweep.sweep_scores import Setting, SettingScores, best, held_out, score_setting, selected
from yolo_lightning.data.batch import Prediction
from yolo_lightning.evaluation.drift import drift_scores
from yolo_lightning.evaluation.matching import Matches, match

MONTHS = (202101, 202102, 202005, 0)
CLASSES = len(CLASS_NAMES)


def matched(frames: list[Frame]) -> Matches:
    return match([one for one, _ in frames], [other for _, other in frames], CLASSES)


def cut(found: Prediction, score_threshold: float) -> Prediction:
    kept = found.scores > score_threshold
    return Prediction(found.image_id, found.boxes[kept], found.scores[kept], found.labels[kept])


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([0.0, 0.2, 0.55, 0.9, 1.0]), st.integers(1, 3))
def test_cutting_matches_equals_matching_what_is_left(seed: int, score_threshold: float, digits: int) -> None:
    frames = random_frames(seed, months=MONTHS, digits=digits)
    chosen = np.arange(len(frames)) % 3 != 0
    left = [frame for frame, kept in zip(frames, chosen, strict=True) if kept]
    expected = matched([(cut(one, score_threshold), other) for one, other in left])
    found = selected(matched(frames), chosen, score_threshold)
    for name in ("months", "annotated", "counts", "labels", "scores", "ranks", "hits"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name


def test_scores_are_those_of_the_frames_and_detections_left() -> None:
    frames = random_frames(3, months=MONTHS)
    everything = np.ones(len(frames), dtype=np.bool_)
    scored = score_setting(matched(frames), Setting(0.4, 0.7), everything)
    expected = drift_scores(matched([(cut(one, 0.4), other) for one, other in frames]))
    assert scored.map_50 == expected.overall.scalars()["map_50"]
    assert scored.variation == expected.variation()
    assert scored.balanced == expected.balanced()


def scored(score_threshold: float, balanced: float, map_50: float = 0.5) -> SettingScores:
    return SettingScores(Setting(score_threshold, 0.5), map_50, 0.1, balanced)


def test_best_is_the_highest_balanced_score_then_map_50_then_the_first() -> None:
    assert best([scored(0.1, 0.2), scored(0.2, 0.4), scored(0.3, math.nan)]).setting.score_threshold == 0.2
    assert best([scored(0.1, 0.4, 0.5), scored(0.2, 0.4, 0.6)]).setting.score_threshold == 0.2
    assert best([scored(0.1, 0.4), scored(0.2, 0.4)]).setting.score_threshold == 0.1
    assert best([scored(0.1, math.nan), scored(0.2, -1.0)]).setting.score_threshold == 0.2


def test_a_choice_is_scored_on_frames_that_had_no_part_in_it() -> None:
    good, bad = random_frames(1, months=MONTHS), random_frames(2, months=MONTHS)
    by_overlap = {0.5: matched(good + bad), 0.7: matched(bad[::-1] + good[::-1])}
    half = np.arange(24) < 12
    usual = Setting(0.1, 0.7)
    first, second = held_out(by_overlap, (0.1, 0.6), half, usual)
    for (chosen, elsewhere, unchanged), own in ((first, half), (second, ~half)):
        options = [
            score_setting(matches, Setting(score_threshold, iou_threshold), own)
            for iou_threshold, matches in by_overlap.items()
            for score_threshold in (0.1, 0.6)
        ]
        assert chosen == best(options)
        setting = chosen.setting
        assert elsewhere == score_setting(by_overlap[setting.iou_threshold], setting, ~own)
        assert unchanged == score_setting(by_overlap[0.7], usual, ~own)
