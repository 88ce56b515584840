import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.evaluation.detections import (
    CLASS_NAMES,
    OBJECT,
    SCALARS,
    Frame,
    prediction,
    random_frames,
    reference,
    target,
)
from yolo_lightning.data.formats.image_ids import month_of_id
from yolo_lightning.evaluation.drift import (
    CHALLENGE_MONTHS,
    DriftScores,
    drift_scores,
    month_name,
    named_scores,
    organisers_scores,
)
from yolo_lightning.evaluation.matching import match

EIGHT = list(CHALLENGE_MONTHS.values())
SEPTEMBER = 202009


def score(frames: Sequence[Frame]) -> DriftScores:
    return drift_scores(
        match([detections for detections, _ in frames], [truth for _, truth in frames], len(CLASS_NAMES))
    )


def month_of(frames: Sequence[Frame], month: int) -> list[Frame]:
    return [frame for frame in frames if frame[1].month == month]


def as_the_organisers(frames: Sequence[Frame]) -> dict[str, Any]:
    """Reproduce the organisers' script: torchmetrics for all frames and for each month."""
    parts = {"global": frames} | {name: month_of(frames, month) for name, month in CHALLENGE_MONTHS.items()}
    values: dict[str, Any] = {}
    for name, part in parts.items():
        result = reference(part)
        values |= {f"{name}_{key}": float(result[key]) for key in SCALARS}
        if "map_per_class" in result:
            values[f"{name}_map_per_class"] = result["map_per_class"].numpy().reshape(-1).astype(float).tolist()
    monthly = [values[f"{name}_map_50"] for name in CHALLENGE_MONTHS]
    values["global_map_con"] = float(np.std(monthly, ddof=1) / np.mean(monthly))
    values["global_map_bal"] = (1 - values["global_map_con"]) * values["global_map_50"]
    return values


def perfect_share(month: int, right: int, wrong: int) -> list[Frame]:
    """Frames of a month, `right` with a correct detection and `wrong` without one."""
    frames = []
    for number in range(right + wrong):
        name = f"{month}-{number}"
        detections = prediction(name, OBJECT, [0.9], [0]) if number < right else prediction(name)
        frames.append((detections, target(name, OBJECT, [0], month)))
    return frames


@pytest.mark.parametrize("digits", [9, 1], ids=["distinct", "ties"])
@pytest.mark.parametrize("months", [[*EIGHT, SEPTEMBER], EIGHT[:3]], ids=["all", "some"])
def test_scores_are_what_the_organisers_script_computes(months: list[int], digits: int) -> None:
    frames = random_frames(7, frames=36, months=months, digits=digits)
    scores = organisers_scores(score(frames))
    expected = as_the_organisers(frames)
    assert list(scores) == list(expected)
    for name, value in expected.items():
        assert scores[name] == pytest.approx(value, abs=1e-6), name


def test_a_month_with_frames_but_without_labels_is_as_in_the_organisers_script() -> None:
    frames = [*random_frames(7, months=EIGHT[:2]), (prediction("x", OBJECT, [0.5], [1]), target("x", month=EIGHT[2]))]
    scores = organisers_scores(score(frames))
    expected = as_the_organisers(frames)
    assert scores["mar_map_per_class"] == expected["mar_map_per_class"] == [-1]
    assert scores["mar_map_50"] == -1
    assert scores["global_map_con"] == pytest.approx(expected["global_map_con"], abs=1e-6)


def test_hand_computed_variation_and_balance() -> None:
    """Months at 1 and 51/101: mean 76/101, sample standard deviation 50/101 / sqrt(2)."""
    scores = score([*perfect_share(202101, 2, 0), *perfect_share(202005, 1, 1)])
    variation = 50 / math.sqrt(2) / 76
    assert scores.compared() == pytest.approx({202005: 51 / 101, 202101: 1.0})
    assert scores.ranking().variation == pytest.approx(variation)
    assert scores.ranking().balanced == pytest.approx(
        (1 - variation) * 76 / 101
    )  # 3 of 4 found: 0 to 0.75 of 101 recalls


def test_variation_around_nothing_is_undefined() -> None:
    scores = score([*perfect_share(202101, 0, 2), *perfect_share(202005, 0, 2)])
    assert math.isnan(scores.ranking().balanced)
    assert organisers_scores(scores)["global_map_con"] is not None  # its six other months count as -1


def test_undefined_is_null_in_the_organisers_file() -> None:
    scores = organisers_scores(score([frame for month in EIGHT for frame in perfect_share(month, 0, 1)]))
    assert (scores["global_map_con"], scores["global_map_bal"]) == (None, None)


def test_september_counts_in_the_global_score_alone() -> None:
    frames = [*perfect_share(202101, 2, 0), *perfect_share(202005, 1, 1)]
    plain, scores = score(frames), score([*frames, *perfect_share(SEPTEMBER, 0, 4)])
    assert scores.ranking().variation == plain.ranking().variation
    assert scores.overall.scalars()["map_50"] < plain.overall.scalars()["map_50"]
    assert SEPTEMBER in scores.monthly


def test_a_month_without_ground_truth_is_not_compared() -> None:
    frames = [*perfect_share(202101, 2, 0), *perfect_share(202005, 1, 1)]
    empty = (prediction("x", OBJECT, [0.1], [0]), target("x", month=202102))
    scores = score([*frames, empty])
    assert set(scores.compared()) == {202101, 202005}
    assert not any("2021-02" in name for name in named_scores(scores, CLASS_NAMES))


@pytest.mark.parametrize("month", [0, 202101, SEPTEMBER], ids=["unknown", "one", "another"])
def test_without_two_months_to_compare_the_balanced_score_is_that_of_all_frames(month: int) -> None:
    scores = score(perfect_share(month, 1, 1))
    assert scores.ranking().variation is None
    assert scores.ranking().balanced == scores.overall.scalars()["map_50"] == pytest.approx(51 / 101)
    assert list(scores.monthly) == [month] * bool(month)
    of_month = {f"{name}/{month_name(month)}" for name in ("map", "map_50", "map_50")} if month else set()
    of_month |= {f"map_50/{month_name(month)}/person"} if month else set()
    named = {*SCALARS, "balanced", "map/person", "map_50/person"} | of_month
    assert set(named_scores(scores, CLASS_NAMES)) == named


def test_names_in_the_log() -> None:
    two_classes = [
        (prediction("a", OBJECT, [0.9], [0]), target("a", OBJECT, [0], 202101)),
        (prediction("b", OBJECT, [0.9], [3]), target("b", OBJECT.repeat(2, 1), [0, 3], 202005)),
    ]
    values = named_scores(score(two_classes), CLASS_NAMES)
    by_class = {"map/person", "map_50/person", "map/vehicle", "map_50/vehicle"}
    by_month = {f"{name}/{month}" for name in ("map", "map_50") for month in ("2021-01", "2020-05")}
    both = {"map_50/2021-01/person", "map_50/2020-05/person", "map_50/2020-05/vehicle"}
    assert set(values) == {*SCALARS, "balanced", "cov", *by_class, *by_month, *both}
    assert values["map_50/2020-05"] == 0.5
    assert values["map_50/2020-05/person"] == 0
    assert values["map_50/2020-05/vehicle"] == 1


@pytest.mark.parametrize(
    ("image_id", "month"),
    [("20200502114223915", 202005), ("20201302114223915", 0), ("000000000139", 0), ("frame-1", 0)],
)
def test_month_stands_in_the_id(image_id: str, month: int) -> None:
    assert month_of_id(image_id) == month
