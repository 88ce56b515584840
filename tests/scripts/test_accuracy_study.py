"""The table of `scripts/accuracy_study.py`: paired differences, intervals, conditions of stored outcomes."""

import argparse
import json
from pathlib import Path
from typing import Any

import accuracy_study as study
import pytest

from yolo_lightning.cli import main


def run(arm: str, seed: int, map_50: float, seconds: float = 10.0) -> dict[str, Any]:
    scores = {"map_50": map_50, "map": 0.1, "balanced": map_50 / 2, "map_50/bicycle": 0.2, "map_50/2020-05": 0.9}
    return {"arm": arm, "seed": seed, "scores": scores, "seconds": seconds, "memory_mib": 100.0}


def test_differences_are_paired_by_seed_and_significant_ones_are_bold() -> None:
    base = [run("base", seed, 0.1 * seed) for seed in range(4)]
    better = [run("p2", seed, 0.1 * seed + 0.05 + 0.001 * seed, 20.0) for seed in range(1, 4)]
    lines = study.table([*better, *base]).splitlines()
    assert lines[0].split(" | ")[5:8] == ["mAP50 - base", "balanced - base", "bicycle - base"]
    cells = lines[3].strip("| ").split(" | ")
    assert cells[:3] == ["p2", "3", "0.252"]
    assert cells[5] == "**+0.052 (+0.050 to +0.054)**"
    assert cells[7] == "+0.000 (+0.000 to +0.000)"
    assert cells[-2:] == ["2.00", "1.00"]


def test_interval_of_noise_contains_zero() -> None:
    assert study.interval([0.1, -0.1, 0.05]) == "+0.017 (-0.242 to +0.275)"
    assert study.interval([0.1]) == "+0.100"
    assert study.interval([]) == ""


def test_outcome_of_other_conditions_is_not_used(tmp_path: Path) -> None:
    options = argparse.Namespace(
        epochs=2, image_size=64, batch_size=8, frames=48, few_months=False, root=None, data=None, set=[]
    )
    study.store(tmp_path, "base", 0, {"map_50": 0.5}, {"seconds": 1.0, "memory_mib": 2.0}, options)
    outcome = study.known(tmp_path, options)
    assert outcome is not None
    assert outcome["scores"] == {"map_50": 0.5}
    options.epochs = 3
    assert study.known(tmp_path, options) is None


def test_few_months_are_chosen_by_clips(tmp_path: Path) -> None:
    months = [202005] * 8 + [202006] * 2 + [202101]
    images = [{"id": month * 10**4 + at, "file_name": f"{month}/clip{at}/0.jpg"} for at, month in enumerate(months)]
    boxes = [{"image_id": image["id"]} for image in images]
    (tmp_path / "Train.json").write_text(json.dumps({"images": images, "annotations": boxes}))
    study.write_few_months(tmp_path)
    content = json.loads((tmp_path / study.FEW_MONTHS_FILE).read_text())
    ids = [image["id"] for image in content["images"]]
    assert [image_id // 10**4 for image_id in ids] == [202005] * 2 + [202006] * 2
    assert [box["image_id"] for box in content["annotations"]] == ids


def test_arms_consist_of_options_of_fit(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    options = argparse.Namespace(epochs=4, image_size=64, batch_size=8, work=tmp_path, set=["data.image_size=96"])
    chosen = study.settings(study.Dataset.find(tmp_path, None), options)
    for changes in study.ARMS.values():
        chosen |= changes
    with pytest.raises(SystemExit) as ended:
        main(["fit", *study.words(chosen), "--print_config"])
    assert ended.value.code == 0
    assert f"variant: {chosen['model.variant']}" in capsys.readouterr().out
