"""Comparison with the trainer of Ultralytics: its datasets and results. Only the slow test trains."""

import importlib
import json
from argparse import Namespace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.conftest import REPOSITORY
from tests.helpers.data_module import data_module


@pytest.fixture(autouse=True)
def scripts_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(REPOSITORY / "scripts"))


def script(name: str) -> ModuleType:
    return importlib.import_module(name)


def coco_folder(root: Path) -> Path:
    (root / "annotations").mkdir(parents=True)
    (root / "annotations" / "train.json").write_text("{}")
    return root


def find(**given: Path) -> Any:
    names = {"train_file": "annotations/train.json", "valid_file": "annotations/val.json"}
    return script("comparison.dataset").Dataset.find(given.get("root"), given.get("data"), **names)


def test_kind_of_dataset_selects_format_and_configuration(tmp_path: Path) -> None:
    ltdv2, yolo, coco = find(root=tmp_path), find(data=tmp_path / "a.yaml"), find(data=coco_folder(tmp_path / "coco"))
    assert [dataset.options["format"] for dataset in (ltdv2, yolo, coco)] == ["ltdv2", str(tmp_path / "a.yaml"), "coco"]
    assert [Path(dataset.config).name for dataset in (ltdv2, yolo, coco)] == ["ltdv2.yaml", "yolo.yaml", "yolo.yaml"]
    assert "--data.files.valid" in coco.words()
    assert all((REPOSITORY / dataset.config).is_file() for dataset in (ltdv2, yolo))


@pytest.mark.parametrize("names", [(), ("root", "data"), ("data",)], ids=["none", "both", "unknown"])
def test_ambiguous_dataset_raises_value_error(tmp_path: Path, names: tuple[str, ...]) -> None:
    with pytest.raises(
        ValueError,
        match="must be given" if len(names) != 1 else "--data must be",
    ):
        find(**dict.fromkeys(names, tmp_path))


def test_converted_dataset_has_the_same_images_boxes_and_classes(
    look_alike: Path, index_root: Path, tmp_path: Path
) -> None:
    dataset = script("comparison.dataset")
    original = data_module(str(look_alike), index_root=str(index_root))
    file = dataset.convert(original, tmp_path / "yolo")
    converted = data_module(format=str(file), index_root=str(index_root))
    assert converted.class_names == original.class_names
    for split in ("train", "valid"):
        original_frames = original.open(split)  # type: ignore[arg-type]
        converted_frames = converted.open(split)  # type: ignore[arg-type]
        assert len(original_frames) == len(converted_frames) > 0
        for number in range(len(original_frames)):
            image = original_frames.read(number)
            copy = converted_frames.read(number)
            assert image.problem is copy.problem is None
            np.testing.assert_array_equal(image.image, copy.image)
            np.testing.assert_allclose(image.boxes, copy.boxes, atol=1e-3)
            np.testing.assert_array_equal(image.labels, copy.labels)


def test_other_data_replace_an_earlier_conversion(look_alike: Path, index_root: Path, tmp_path: Path) -> None:
    dataset = script("comparison.dataset")
    for share, expected in ((1.0, 16), (1.0, 16), (0.5, 8)):
        module = data_module(str(look_alike), index_root=str(index_root), train_fraction=share)
        file = dataset.convert(module, tmp_path / "yolo")
        assert len(list((file.parent / "images" / "train").iterdir())) == expected == len(module.open("train"))


def test_short_list_is_spread_over_the_training_split(look_alike: Path, index_root: Path, tmp_path: Path) -> None:
    dataset = script("comparison.dataset")
    module = data_module(str(look_alike), index_root=str(index_root))
    file = dataset.short_list(dataset.convert(module, tmp_path / "yolo"), module.class_names, 4)
    short = data_module(format=str(file), index_root=str(index_root))
    names = [Path(name).stem for name in short.open("train").index.file_names()]
    assert names == ["000000", "000004", "000008", "000012"]


def test_runs_of_other_settings_do_not_share_a_folder(tmp_path: Path) -> None:
    names = ["root", "data", "config", "image_size", "batch_size", "nominal_batch", "device", "options"]
    same: dict[str, Any] = dict.fromkeys([*names, "processor_min", "ultralytics_options"])
    same["arms"] = ["native"]
    remember = script("compare_ultralytics").remember_settings
    remember(Namespace(work=tmp_path, epochs=3, **same))
    remember(Namespace(work=tmp_path, epochs=0, **same))  # trains nothing
    with pytest.raises(ValueError, match=r"--epochs must be 3 like in the runs in .*, got 4"):
        remember(Namespace(work=tmp_path, epochs=4, **same))


def test_finished_runs_of_a_folder_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = script("comparison.results")
    scores = (("native", 1, 0.5), ("native", 0, 0.25), ("ultralytics", 0, 0.125), ("ultralytics", 1, 0.25))
    for arm, seed, score in scores:
        folder = tmp_path / f"{arm}-{seed}"
        folder.mkdir()
        content = {"arm": arm, "seed": seed, "map_50": score, "map": 0.0625, "epoch_s": 2, "peak_memory_mib": 900}
        content |= {"images_per_wall_s": 4, "images_per_processor_s": 5}
        content |= {"map_50/person": 0.5} if arm == "ultralytics" else {}  # earlier results lack classes
        (folder / results.RESULT).write_text(json.dumps(content))
    (tmp_path / "gemm-0").mkdir()  # still in training
    finished = results.finished(tmp_path)
    runs = [("ultralytics", 0), ("ultralytics", 1), ("native", 0), ("native", 1)]
    assert [(result["arm"], result["seed"]) for result in finished] == runs
    results.show(finished, {"native": [content, content | {"images_per_wall_s": 6}]})
    printed = capsys.readouterr().out
    assert "0.375 ± 1.588" in printed  # 12.706 x 0.125
    assert "2 turns, native: median 5.00 images/s (4.00 to 6.00)" in printed
    assert "GPU" not in printed
    assert "native and ultralytics, 2 seeds: difference +0.188 ± 0.794, ratio 2.00 (2.00 to 2.00)" in printed


def test_scores_of_epochs_are_stored_and_drawn_over_processor_time(tmp_path: Path) -> None:
    curves = script("comparison.curves")
    for seed in (0, 1):
        epochs = [
            {"elapsed_processor_s": 60 * minutes, "map_50": minutes / 10 + seed / 10} for minutes in (1.5, 2.5, 3.5)
        ]
        epochs.insert(1, {"elapsed_processor_s": 120.0})  # an epoch without validation
        folder = tmp_path / f"default-{seed}"
        folder.mkdir()
        (folder / "clock.json").write_text(json.dumps({"epochs": epochs}))
    curves.write_curves(tmp_path, [{"arm": "default", "seed": 0}, {"arm": "default", "seed": 1}])
    assert (tmp_path / "curves.csv").read_text().splitlines()[:3] == [
        "trainer,seed,epoch,processor_min,map_50",
        "default,0,1,1.500,0.1500",
        "default,0,3,2.500,0.2500",
    ]
    by_arm = curves.read_curves(tmp_path / "curves.csv")
    np.testing.assert_allclose(by_arm["default"].minutes, [[1.5, 2.5, 3.5]] * 2)
    np.testing.assert_allclose(by_arm["default"].scores[1], [0.25, 0.35, 0.45])
    drawing = curves.draw_curves({"drawn frames": by_arm})
    assert drawing.startswith("<?xml")
    assert "this project, defaults" in drawing


def test_epochs_follow_from_the_processor_time_of_two_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = script("comparison.training")
    fields = {"data": "", "words": [], "epochs": 9, "image_size": 64, "batch_size": 4, "nominal_batch": 4, "workers": 0}
    fields |= {"threads": 1, "device": "cpu", "options": []}
    run = training.Training("ultralytics", 0, str(tmp_path / "ultralytics-0"), **fields)

    def train(trial: Any) -> None:
        assert trial.epochs == 2
        folder = Path(trial.folder)
        folder.mkdir(parents=True)
        epochs = [{"elapsed_processor_s": 50.0}, {"elapsed_processor_s": 70.0}]
        (folder / "clock.json").write_text(json.dumps({"epochs": epochs}))
        (folder / "usage.json").write_text(json.dumps({"seconds": 80.0}))

    monkeypatch.setattr(training, "train", train)
    assert training.epochs_in_time(run, 3.1) == 7  # 40 s for start and end + 7 * 20 s = 180 s
    monkeypatch.setattr(training, "train", None)
    assert training.epochs_in_time(run, 0.1) == 1


def test_speed_ignores_the_first_of_several_epochs(tmp_path: Path) -> None:
    results = script("comparison.results")
    epochs = [{"images": 8, "wall_s": wall_s, "processor_s": 1} for wall_s in (8, 4, 2, 1)]
    for count, expected in ((1, 1), (4, 4)):
        content = {"epochs": epochs[:count], "peak_memory_mib": 7}
        (tmp_path / "clock.json").write_text(json.dumps(content))
        assert results.speed(tmp_path) == {
            "peak_memory_mib": 7,
            "images_per_wall_s": expected,
            "images_per_processor_s": 8,
            "processor_min": count / 60,
        }


@pytest.mark.slow
def test_both_trainers_take_turns_and_are_compared(
    look_alike: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--root", str(look_alike), "--work", str(tmp_path), "--epochs", "2", "--image_size", "64", "--seeds", "1"]
    words += ["--batch_size", "4", "--arms", "ultralytics", "native", "best", "--turns", "1", "--turn_images", "8"]
    best = "--model.variant yolov8n --data.image_size [64,96] --data.sampling.frame_interval 1 --trainer.max_epochs 3"
    words += ["--best_options", best]
    monkeypatch.setattr("sys.argv", ["compare_ultralytics.py", *words])
    script("compare_ultralytics").main()
    results = json.loads((tmp_path / "results.json").read_text())
    assert [result["arm"] for result in results] == ["ultralytics", "native", "best"]
    for result in results:
        assert result["images_per_wall_s"] > 0
        assert result["peak_memory_mib"] > 100
    assert "1 turns, native" in capsys.readouterr().out
