"""Training, evaluation and prediction on a YOLO dataset from the command line."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY, TINY

YoloSet = Callable[..., Path]
IMAGES = {
    f"{folder}/{number}.jpg": "1 0.5 0.5 0.5 0.5\n0 0.2 0.2 0.3 0.3\n"
    for folder, count in (("train", 6), ("val", 3))
    for number in range(count)
}


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that calls the command line in an empty working folder with configs/yolo.yaml."""
    from yolo_lightning.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["yolo_lightning"])

    def run(subcommand: str, *options: str) -> None:
        small = [
            "--data.storage.index_root",
            "index",
            "--data.loader.num_workers",
            "0",
            "--data.batch_size",
            "2",
            *TINY,
        ]
        config = ["--config", str(REPOSITORY / "configs" / "yolo.yaml"), "--trainer.accelerator", "cpu"]
        main([subcommand, *config, *small, *options])

    return run


@pytest.mark.whole_run
def test_own_dataset_is_trained_on_scored_and_predicted(yolo_set: YoloSet, call: Callable[..., None]) -> None:
    source = ["--data.format", str(yolo_set(IMAGES, names={0: "a cat", 1: "a/b"}))]
    call("fit", *source, "--trainer.max_epochs", "1")
    rows = Path("runs/yolo/metrics.csv").read_text()
    assert "map_50/a cat" in rows
    assert "map_50/a/b" in rows
    call("test", *source)
    call("predict", *source)
    predicted = json.loads(Path("runs/yolo/predictions.json").read_text())
    assert {result["image_id"] for result in predicted} == {f"images/val/{number}" for number in range(3)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("typo", "images/train? Nothing is downloaded"),
        ("class", "labels/train/0.txt, line 1: class must be an integer from 0 to 1, got 2"),
        ("absent", "absent.yaml does not exist"),
        ("yaml", "cannot be read as YAML"),
    ],
)
def test_dataset_that_cannot_be_used_ends_with_one_line(
    yolo_set: YoloSet, call: Callable[..., None], capsys: pytest.CaptureFixture[str], change: str, message: str
) -> None:
    keys = {"train": "images/trian"} if change == "typo" else {}
    labels = IMAGES | ({"train/0.jpg": "2 0.5 0.5 0.1 0.1"} if change == "class" else {})
    file = yolo_set(labels, **keys)
    if change == "yaml":
        file.write_text("train: [images")
    with pytest.raises(SystemExit) as ended:
        call("fit", "--data.format", "absent.yaml" if change == "absent" else str(file))
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said
