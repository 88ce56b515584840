"""The command `sweep` against the scores of `test` with the same settings."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import data_options
from tests.helpers.networks import lively_checkpoint
from yolo_lightning.checkpoints.checkpoint_file import write_checkpoint
from yolo_lightning.cli import main
from yolo_lightning.detector import Detector

SETTING = {"score_threshold": 0.002, "iou_threshold": 0.6, "max_detections": 40}


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network with detections in all frames."""
    return lively_checkpoint(tmp_path_factory.mktemp("weights"), "detections", **SETTING)


@pytest.fixture(scope="module")
def root(weights: Path, look_alike: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Synthetic frames, annotated with some of the network's detections, so that scores are between 0 and 1."""
    folder = tmp_path_factory.mktemp("found")
    (folder / "frames").symlink_to(look_alike / "frames")
    content = json.loads((look_alike / "Valid.json").read_text())
    detector = Detector(weights, image_size=64, score_threshold=0.002, max_detections=9, device="cpu")
    content["annotations"] = []
    for image in content["images"]:
        found = detector(folder / image["file_name"])
        for rank in range(0, len(found.boxes), 2):
            left, top, right, bottom = found.boxes[rank].tolist()
            box = [left, top, right - left, bottom - top]
            label = int(found.labels[rank]) + 1
            number = len(content["annotations"])
            content["annotations"].append({"id": number, "image_id": image["id"], "category_id": label, "bbox": box})
    (folder / "Valid.json").write_text(json.dumps(content))
    return folder


@pytest.fixture
def sweep(
    root: Path, index_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., dict[str, Any]]:
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> dict[str, Any]:
        data = data_options(root, index_root)
        size = ["--data.image_size", "64", "--device", "cpu"]
        main(["sweep", *data, *size, "--json", "sweep.json", *words])
        result: dict[str, Any] = json.loads(Path("sweep.json").read_text())
        return result

    return call


@pytest.mark.whole_run
def test_scores_are_those_of_validate(
    weights: Path,
    root: Path,
    sweep: Callable[..., dict[str, Any]],
    run: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = sweep("--checkpoint", str(weights), "--score_thresholds", "[0.3]", "--iou_thresholds", "[0.4]")
    assert found["checkpoint"] == {name: SETTING[name] for name in ("score_threshold", "iou_threshold")}
    places = [(one["score_threshold"], one["iou_threshold"]) for one in found["settings"]]
    assert sorted(places) == [(0.002, 0.4), (0.002, 0.6), (0.3, 0.4), (0.3, 0.6)]
    text = capsys.readouterr().out
    best = found["best"]
    names = ("score_threshold", "iou_threshold")
    thresholds = " ".join(f"--model.detections.{name} {best[name]:g}" for name in names)
    assert f"--ckpt_path {weights} {thresholds}" in text
    one = found["settings"][-1]
    setting = [f"--model.detections.{name}={one[name]}" for name in names]
    words = ["--ckpt_path", str(weights), "--trainer.default_root_dir", str(weights.parent / "run")]
    run("test", *words, *setting, "--data.root", str(root))
    scores = json.loads((weights.parent / "run" / "test_scores.json").read_text())
    assert 0 < scores["test/map_50"] < 1
    assert one["map_50"] == pytest.approx(scores["test/map_50"], abs=1e-9)
    assert one["balanced"] == pytest.approx(scores["test/balanced"], abs=1e-9)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--score_thresholds", "[1.5]"], "--score_thresholds must contain one or more numbers from 0 to 1, got [1.5]"),
        (["--iou_thresholds", "[]"], "--iou_thresholds must contain one or more numbers from 0 to 1, got []"),
        (["--checkpoint", "gone.ckpt"], "checkpoint gone.ckpt cannot be used: it does not exist"),
    ],
)
def test_what_is_not_allowed_is_said(
    words: list[str],
    message: str,
    weights: Path,
    sweep: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        sweep("--checkpoint", str(weights), *words)
    assert message in capsys.readouterr().err


def test_other_classes_are_refused(
    weights: Path, sweep: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = torch.load(weights, weights_only=True)
    changed["hyper_parameters"]["class_names"] = ["a", "b", "c", "d"]
    write_checkpoint(changed, tmp_path / "other.ckpt")
    with pytest.raises(SystemExit):
        sweep("--checkpoint", str(tmp_path / "other.ckpt"))
    assert "The classes of the data must be ['a', 'b', 'c', 'd'], as in checkpoint" in capsys.readouterr().err


@pytest.mark.whole_run
def test_frames_are_shown_in_the_size_of_the_training(
    weights: Path,
    root: Path,
    index_root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    content = torch.load(weights, weights_only=True) | {"input": {"image_size": 64, "channels": 1}}
    write_checkpoint(content, tmp_path / "trained.ckpt")
    (tmp_path / "data.yaml").write_text("data:\n  image_size: 128\n")
    data = data_options(root, index_root)
    words = ["sweep", "--config", "data.yaml", *data, "--device", "cpu", "--checkpoint", "trained.ckpt"]
    found = {}
    for name, typed in (("recorded", []), ("64", ["--data.image_size", "64"]), ("96", ["--data.image_size", "96"])):
        main([*words, "--json", f"{name}.json", *typed])
        found[name] = json.loads(Path(f"{name}.json").read_text())
    assert found["recorded"] == found["64"] != found["96"]
    assert "taken from the checkpoint: data.image_size [64, 64] (instead of 128)" in caplog.messages
    assert "changed since the checkpoint: data.image_size was [64, 64], now 96 (used)" in caplog.messages
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    (tmp_path / "trained.ckpt").rename("run/checkpoints/best.ckpt")
    Path("run/config.yaml").write_text(
        f"data: {{root: {root}, image_size: 128, loader: {{num_workers: 0}}}}\nmodel: 1\n"
    )
    main(["sweep", "run", "--data.storage.index_root", str(index_root), "--device", "cpu", "--json", "run.json"])
    assert json.loads(Path("run.json").read_text())["best"] == found["recorded"]["best"]
    first, _, last, _ = [line for line in capsys.readouterr().out.splitlines() if line.startswith("best:")]
    assert "image_size" not in first
    assert last.endswith("--data.image_size '[64, 96]'")
