"""Bootstrap over clips: samples score like repeated frames, intervals cover the clips, and the seed decides."""

from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from tests.evaluation.detections import CLASS_NAMES, OBJECT, Frame, prediction, random_frames, target
from yolo_lightning.evaluation.average_precision import AT_50, RankedDetections
from yolo_lightning.evaluation.drift import drift_scores
from yolo_lightning.evaluation.matching import Matches, match
from yolo_lightning.evaluation.score_intervals import bootstrap, limits, precision_of_classes

CLASSES = len(CLASS_NAMES)
MONTHS = (202101, 202102, 202006)


def matched(frames: list[Frame]) -> Matches:
    return match([detections for detections, _ in frames], [truth for _, truth in frames], CLASSES)


def split(clips: int, right: list[float]) -> tuple[Matches, list[str]]:
    """Return 3 months of clips with 4 frames; in month i the share `right[i]` of the clips is detected."""
    frames, ids = [], []
    for month, share in zip(MONTHS, right, strict=True):
        for clip in range(clips):
            for second in range(4):
                image_id = f"{month}{clip:03d}141200{second:02d}"
                boxes = OBJECT if clip < share * clips else OBJECT + 500
                frames.append((prediction(image_id, boxes, [0.5], [0]), target(image_id, OBJECT, [0], month)))
                ids.append(image_id)
    return matched(frames), ids


@pytest.mark.parametrize(("digits", "most"), [(9, 4), (1, 2)], ids=["repeated", "ties, at most once"])
def test_repeated_frames_score_as_in_a_split_that_contains_them_repeatedly(digits: int, most: int) -> None:
    frames = random_frames(3, digits=digits)
    counts = np.random.default_rng(0).integers(0, most, len(frames))
    repeated = [frame for frame, count in zip(frames, counts, strict=True) for _ in range(count)]
    renamed = [
        (structs.replace(detections, image_id=str(at)), replace(truth, image_id=str(at)))
        for at, (detections, truth) in enumerate(repeated)
    ]
    expected = drift_scores(matched(renamed)).overall.precision[AT_50]
    matches = matched(frames)
    precisions = [precision(counts) for precision in precision_of_classes(RankedDetections.of(matches))]
    np.testing.assert_allclose(np.nan_to_num(precisions, nan=-1), expected, atol=1e-9)


def test_clips_without_differences_give_intervals_without_width() -> None:
    matches, ids = split(5, [1.0, 1.0, 1.0])
    resampled = bootstrap(matches, ids, 20)
    months = {f"map_50/{month}": (1, 1, 1) for month in ("2020-06", "2021-01", "2021-02")}
    assert resampled.intervals() == {"map_50": (1, 1, 1), "cov": (0, 0, 0), "balanced": (1, 1, 1)} | months
    assert resampled.single_clips == ()


def test_interval_contains_the_score_of_the_month_and_narrows_with_more_clips() -> None:
    widths = []
    for clips in (4, 40):
        matches, ids = split(clips, [0.5, 0.75, 1.0])
        intervals = bootstrap(matches, ids, 200).intervals()
        low, _, high = intervals["map_50/2021-01"]
        measured = drift_scores(matches).monthly[202101].scalars()["map_50"]
        assert low <= measured <= high
        widths.append(high - low)
    assert widths[1] < 0.6 * widths[0]


def test_seed_decides_and_a_larger_confidence_is_wider() -> None:
    matches, ids = split(6, [0.5, 0.5, 1.0])
    first, same, other = (bootstrap(matches, ids, 100, seed) for seed in (3, 3, 4))
    assert all(np.array_equal(first.values[name], same.values[name]) for name in first.values)
    assert not np.array_equal(first.values["balanced"], other.values["balanced"])
    low, median, high = first.intervals(0.5)["balanced"]
    lowest, _, highest = first.intervals(0.99)["balanced"]
    assert lowest < low <= median <= high < highest
    named = limits(first)
    assert named["balanced_low"] < named["balanced_high"]
    assert {"map_50_low", "map_50_low/2021-01", "cov_high"} <= named.keys()


def test_a_month_with_one_clip_is_reported_and_frames_of_other_datasets_are_clips() -> None:
    matches, ids = split(1, [1.0, 1.0, 1.0])
    assert bootstrap(matches, ids, 3).single_clips == (202006, 202101, 202102)
    frames = [
        (prediction(str(at), OBJECT + 500 * (at % 2), [0.5], [0]), target(str(at), OBJECT, [0], 0)) for at in range(8)
    ]
    resampled = bootstrap(matched(frames), [str(at) for at in range(8)], 50)
    assert set(resampled.values) == {"map_50", "cov", "balanced"}
    assert np.isnan(resampled.values["cov"]).all()
    assert resampled.values["map_50"].std() > 0
    assert "cov_low" not in limits(resampled)


def test_no_objects_give_no_interval() -> None:
    resampled = bootstrap(matched([(prediction("a", OBJECT, [0.5], [0]), target("a"))]), ["a"], 3)
    assert np.isnan(resampled.values["map_50"]).all()
    assert limits(resampled) == {}
    assert bootstrap(matched([]), [], 2).values["map_50"].shape == (2,)
