"""Links of detections over time, what a split teaches, and rescoring of other clips."""

from dataclasses import replace

import numpy as np
import pytest

from yolo_lightning.challenge.content import Content
from yolo_lightning.challenge.rescoring import (
    LabelledDetections,
    in_first_half,
    logistic,
    overlaps_with_better,
    real_detections,
    rescore,
)
from yolo_lightning.challenge.score import match_submission
from yolo_lightning.challenge.tracks import link, places_in_time
from yolo_lightning.evaluation.drift import CHALLENGE_MONTHS, drift_scores

SIZE = (384, 288)


def ids(month: int, clip: int, seconds: list[int]) -> list[str]:
    return [f"{month}{clip:03d}0114{second // 60:02d}{second % 60:02d}" for second in seconds]


def content_of(image_ids: list[str], rows: list[tuple[int, list[float], float, int]]) -> Content:
    """Detections as frame, box, score and label, in order of frames."""
    rows = sorted(rows, key=lambda row: row[0])
    owners, boxes, scores, labels = map(np.array, zip(*rows, strict=True))
    return Content(tuple(image_ids), owners, boxes, scores, labels.astype(float))


def test_frames_of_a_clip_are_consecutive_and_pauses_and_clips_are_not() -> None:
    names = [*ids(202005, 1, [2, 0, 1, 3, 20]), *ids(202005, 2, [21]), "other"]
    places = places_in_time(tuple(names))
    assert (places[[1, 2, 0, 3]] - places[1]).tolist() == [0, 1, 2, 3]
    assert np.diff(np.sort(np.delete(places, [0, 1, 2]))).min() > 1


def test_a_moving_object_is_linked_to_itself_and_to_no_other_class_or_place() -> None:
    image_ids = ids(202005, 1, [0, 1, 2, 3])
    walking = [(frame, [10.0 + 14 * frame, 50, 24 + 14 * frame, 90], 0.5, 1) for frame in range(4)]
    parked = [(frame, [60.0, 52, 84, 92], 0.4, 2) for frame in range(4)]
    elsewhere = [(2, [300.0, 50, 314, 90], 0.9, 1)]
    content = content_of(image_ids, walking + parked + elsewhere)
    links = link(content, places_in_time(content.image_ids))
    for label in (1, 2):
        rows = [int(at) for at in np.flatnonzero(content.labels == label) if content.boxes[at, 0] < 290]
        assert links.after[rows].tolist() == [*rows[1:], -1]
        assert links.before[rows].tolist() == [-1, *rows[:-1]]
        assert links.has_next[rows].tolist() == [True, True, True, False]
        assert links.has_previous[rows].tolist() == [False, True, True, True]
    alone = int(np.flatnonzero(content.boxes[:, 0] == 300)[0])
    assert links.after[alone] == links.before[alone] == -1


def test_of_two_boxes_of_an_object_the_better_one_is_linked() -> None:
    rows = [(frame, [50.0, 50, 70, 90], 0.6, 1) for frame in range(2)] + [(0, [53.0, 53, 73, 93], 0.1, 1)]
    content = content_of(ids(202005, 1, [0, 1]), rows)
    links = link(content, places_in_time(content.image_ids))
    assert links.after[content.scores == 0.1].tolist() == [-1]
    assert (links.after >= 0).sum() == 1


def test_logistic_regression_finds_the_weights_of_its_model() -> None:
    rng = np.random.default_rng(0)
    features = np.column_stack((np.ones(20_000), rng.normal(size=(20_000, 2))))
    weights = np.array([-1.0, 2.0, 0.5])
    outcome = rng.random(20_000) < 1 / (1 + np.exp(-features @ weights))
    assert logistic(features, outcome) == pytest.approx(weights, abs=0.1)


def watched(seed: int, steps: int = 12) -> tuple[Content, Content]:
    """Detections and objects of 16 clips: objects that stay and move, passing false alarms, and an ever warm lamp."""
    rng = np.random.default_rng(seed)
    image_ids = []
    detections = []
    objects = []
    for month in CHALLENGE_MONTHS.values():
        for clip in (1, 2):
            start = len(image_ids)
            image_ids += ids(month, clip, list(range(steps)))
            for _ in range(3):
                x_min = rng.uniform(20, 250)
                y_min = rng.uniform(150, 200)
                speed = rng.uniform(-4, 4)
                label = int(rng.choice([1, 4]))
                for frame in range(steps):
                    box = [x_min + speed * frame, y_min, x_min + speed * frame + 20, y_min + 40]
                    objects.append((start + frame, box, 1.0, label))
                    detections.append((start + frame, [*box], float(rng.uniform(0.05, 0.6)), label))
            for frame in range(steps):
                detections.append((start + frame, [340, 60, 360, 100], float(rng.uniform(0.2, 0.6)), 1))
                for _ in range(3):
                    x_min = rng.uniform(0, 350)
                    y_min = rng.uniform(100, 240)
                    box = [x_min, y_min, x_min + 20, y_min + 40]
                    detections.append((start + frame, box, float(rng.uniform(0.05, 0.6)), int(rng.choice([1, 4]))))
    return content_of(image_ids, detections), content_of(image_ids, objects)


def test_objects_that_stay_rise_above_passing_false_alarms_and_a_fixed_one() -> None:
    content, truth = watched(0)
    half = in_first_half(content.image_ids)
    assert half.mean() == 0.5
    before, after = (
        drift_scores(match_submission(detections, truth))
        for detections in (content, LabelledDetections(content, truth, SIZE).cross_rescored(half))
    )
    assert after.overall.scalars()["map_50"] > before.overall.scalars()["map_50"] + 0.2
    assert after.ranking().balanced > before.ranking().balanced + 0.2


def test_models_apply_to_clips_that_did_not_teach_them() -> None:
    content, truth = watched(0)
    models = LabelledDetections(content, truth, SIZE).learn(np.ones(len(truth.image_ids), np.bool_))
    assert models.keys() == {1, 4}
    unseen, objects = watched(1)
    result = rescore(unseen, models, SIZE)
    is_real = real_detections(unseen, objects)
    lamp = unseen.boxes[:, 0] == 340
    assert result.scores[is_real].mean() > 0.8
    assert result.scores[lamp].mean() < 0.1
    assert result.boxes is unseen.boxes
    assert ((result.scores >= 0) & (result.scores <= 1)).all()


def test_classes_and_frames_that_teach_nothing_keep_their_scores() -> None:
    content, truth = watched(0)
    labelled = LabelledDetections(content, truth, SIZE)
    nothing = labelled.learn(np.zeros(len(truth.image_ids), np.bool_))
    assert nothing == {}
    assert rescore(content, nothing, SIZE).scores.tolist() == content.scores.tolist()
    empty = content.take(np.zeros(len(content.scores), np.bool_))
    assert len(rescore(empty, labelled.learn(np.ones(len(truth.image_ids), bool)), SIZE).scores) == 0


def test_frames_without_time_have_no_links() -> None:
    content, _ = watched(0)
    content = replace(content, image_ids=tuple(f"frame{at}" for at in range(len(content.image_ids))))
    links = link(content, places_in_time(content.image_ids))
    assert (links.after < 0).all()
    assert not links.has_next.any()


def test_overlaps_are_those_with_better_detections_of_the_frame() -> None:
    box, half, far = [10.0, 10, 30, 30], [10.0, 10, 20, 30], [100.0, 10, 120, 30]
    rows = [
        (0, half, 0.3, 1),
        (0, box, 0.5, 1),
        (0, box, 0.4, 2),
        (0, far, 0.1, 1),
        (1, box, 0.2, 1),
        (1, [5.0, 5, 5, 5], 0.1, 1),
    ]
    content = content_of(ids(202005, 1, [0, 1]), rows)
    assert overlaps_with_better(content).tolist() == [[0.5, 0.5], [0, 0], [0, 1], [0, 0], [0, 0], [0, 0]]


def test_duplicates_and_confused_classes_lose_their_scores() -> None:
    rng = np.random.default_rng(0)
    detections = []
    objects = []
    image_ids = [image_id for clip in (1, 2, 3, 4) for image_id in ids(202005, clip, list(range(0, 400, 10)))]
    for frame in range(len(image_ids)):
        columns, top = rng.permutation([0, 200]), rng.uniform(0, 200)
        first_x, apart = (float(column) for column in columns + rng.uniform(0, 130, 2))
        objects += [(frame, [x, top, x + 40, top + 40], 1.0, 1) for x in (first_x, apart)]
        detections += [(frame, [x, top, x + 40, top + 40], score, 1) for x, score in ((first_x, 0.6), (apart, 0.4))]
        detections.append((frame, [first_x + 8, top, first_x + 48, top + 40], 0.4, 1))
    content, truth = content_of(image_ids, detections), content_of(image_ids, objects)
    result = LabelledDetections(content, truth, SIZE).cross_rescored(in_first_half(content.image_ids))
    is_real = real_detections(content, truth)
    assert result.scores[is_real].min() > result.scores[~is_real].max()
