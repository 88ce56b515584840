"""Parts of the drift study: training frames, scores, repeated calls. Trains nothing."""

import importlib
import json
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.conftest import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "scripts"))

SETTINGS = {"epochs": 1, "frames": 256, "test_frames": 64, "width": 96, "image_size": 64, "batch_size": 4}


@pytest.fixture(scope="module")
def study() -> ModuleType:
    return importlib.import_module("drift_study")


@pytest.fixture
def options(tmp_path: Path) -> Namespace:
    return Namespace(work=tmp_path, seeds=[0, 1], jobs=1, **SETTINGS)


def test_training_lacks_winter_and_the_test_split_does_not(study: ModuleType, options: Namespace) -> None:
    study.draw(options.work / "data", options)
    months: dict[str, list[int]] = {}
    for name in (study.TRAIN_FILE, study.TEST_FILE):
        content = json.loads((options.work / "data" / name).read_text())
        months[name] = [study.month_of(image) for image in content["images"]]
        kept = {image["id"] for image in content["images"]}
        assert {one["image_id"] for one in content["annotations"]} <= kept
    assert set(months[study.TRAIN_FILE]) == {202004 + number for number in (1, 2, 3, 4)} | {202104}
    assert months[study.TRAIN_FILE].count(202104) < months[study.TRAIN_FILE].count(202005)
    assert months[study.TRAIN_FILE].count(202005) < months[study.TRAIN_FILE].count(202007)
    assert len(set(months[study.TEST_FILE])) == 8


def test_scores_are_those_of_the_last_validation(study: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    header = "step,val/map_50,val/cov,val/map_50/2020-06,val/map_50/2021-01,val/map_50/2021-02,val/map_50/person"
    path.write_text(f"{header}\n1,0.1,0.9,0.1,0.1,0.1,0.1\n2,0.5,nan,0.8,0.2,0.4,0.7\n3,,,,,,\n")
    scores = study.last_scores(path)
    assert scores["map_50"] == 0.5
    assert "cov" not in scores
    assert (scores["seen"], scores["unseen"]) == pytest.approx((0.8, 0.3))
    assert study.by_month(scores) == {"2020-06": 0.8, "2021-01": 0.2, "2021-02": 0.4}


def test_a_finished_arm_is_trained_again_only_under_other_options(
    study: ModuleType, options: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[Any] = []
    monkeypatch.setattr(study, "last_scores", lambda path: {"map_50": 0.5})

    def train(arm: Any, data: Path, given: Namespace) -> None:
        arm.folder(given.work).mkdir(exist_ok=True)
        trained.append(arm)

    monkeypatch.setattr(study, "train", train)
    arm = study.Arm(True, False, 3)
    first = study.outcome(arm, options.work, options)
    assert study.outcome(arm, options.work, options) == first
    assert len(trained) == 1
    study.outcome(arm, options.work, Namespace(**(vars(options) | {"epochs": 2})))
    assert len(trained) == 2
    (arm.folder(options.work) / study.OUTCOME).write_text("{torn")
    study.outcome(arm, options.work, options)
    assert len(trained) == 3


def test_table_has_a_row_per_arm_with_mean_and_range(study: ModuleType, options: Namespace) -> None:
    outcomes = [
        {"name": name, "scores": {"map_50": value, "cov": 0.1, "balanced": 0.4, "map_50/2020-06": value}}
        for name in ("a", "b")
        for value in (0.25, 0.75)
    ]
    text = study.markdown(outcomes, options)
    assert text.count("| a | 0.500 (0.250 to 0.750) | 0.100 (0.100 to 0.100) |") == 1
    assert "| b | 0.50 |" in text
