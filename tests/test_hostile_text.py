"""Names from untrusted files in a terminal, a picture, a log and a message contain no control characters."""

import io
import json
import logging
import os
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from yolo_lightning.challenge.check import check_submission
from yolo_lightning.challenge.truth import read_truth
from yolo_lightning.commands.monitor.read_run import read_run
from yolo_lightning.commands.monitor.screen import screen
from yolo_lightning.commands.report.figures import class_curves_figure
from yolo_lightning.commands.report.metrics_curves import read_metrics
from yolo_lightning.data.batch import Prediction, Target
from yolo_lightning.data.formats.annotations import distinct_names
from yolo_lightning.data.formats.coco import image_folders
from yolo_lightning.data.formats.ltdv2 import read_annotations
from yolo_lightning.data.formats.yolo import YoloSplit
from yolo_lightning.data.formats.yolo_description import read_description
from yolo_lightning.evaluation.detection_result import DetectionResult
from yolo_lightning.evaluation.drift import drift_scores
from yolo_lightning.evaluation.matching import match
from yolo_lightning.evaluation.record import EvaluationRecord
from yolo_lightning.evaluation.score_table import class_table, score_table
from yolo_lightning.evaluation.ultralytics_matching import match_as_ultralytics
from yolo_lightning.evaluation.ultralytics_metrics import threshold_curves, ultralytics_scores
from yolo_lightning.supervision.fallback_levels import FallbackState
from yolo_lightning.supervision.run_status import SupervisorState, SupervisorStatus
from yolo_lightning.utils.json_record import read_record
from yolo_lightning.utils.message_filters import is_printed

ESCAPE = "\x1b]0;owned\x07\x1b[2J"
NAMES = ("$\\frac$", f"[red]{ESCAPE}[/nothing]")


def has_control(text: str) -> bool:
    return any((character < " " and character != "\n") or "\x7f" <= character < "\xa0" for character in text)


@pytest.fixture
def record() -> EvaluationRecord:
    box = torch.tensor([[1.0, 1.0, 9.0, 9.0]])
    predictions = [Prediction("$\\frac$", box, torch.tensor([0.5]), torch.tensor([label])) for label in (0, 1)]
    truth = [Target("$\\frac$", box, torch.tensor([label]), 202005) for label in (0, 1)]
    return EvaluationRecord(
        "val", NAMES, ("$\\frac$", "b"), match(predictions, truth, 2), match_as_ultralytics(predictions, truth, 2)
    )


def test_curves_and_pictures_of_any_class_name(record: EvaluationRecord) -> None:
    curves = class_curves_figure("val", NAMES, threshold_curves(record.matches), drift_scores(record.matches).overall)
    assert curves is not None
    assert not has_control(curves)
    numbers = np.array([[1, 1, 9, 9]] * 2, np.float32), np.array([0.9] * 2, np.float32), np.arange(2)
    assert DetectionResult(np.zeros((24, 32, 3), np.uint8), *numbers, NAMES).plot().any()


def test_tables_of_scores_show_names_literally(record: EvaluationRecord) -> None:
    drift = drift_scores(record.matches)
    console = Console(file=io.StringIO(), width=400)
    curves = (threshold_curves(record.matches), ultralytics_scores(record.ultralytics))
    console.print(score_table(drift, NAMES), class_table(drift, *curves, NAMES))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert not has_control(text)
    assert "[red]" in text
    assert "[/nothing]" in text


def test_class_names_are_one_printable_line() -> None:
    assert distinct_names({1: "a\nb", 2: ESCAPE, 3: "a b"}) == {
        1: "a b (1)",
        2: r"\x1b]0;owned\x07\x1b[2J",
        3: "a b (3)",
    }


def test_monitor_shows_no_escape_sequences(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / f"{ESCAPE}.ckpt").touch()
    incident = {"time": "2026-11-21T09:55:27+0000", "class": ESCAPE, "sentence": ESCAPE, "outcome": ESCAPE}
    (tmp_path / "incidents" / "1").mkdir(parents=True)
    (tmp_path / "incidents" / "1" / "incident.json").write_text(json.dumps(incident))
    standing = SupervisorStatus(SupervisorState.GAVE_UP, 1.8e9, 1, 0, ESCAPE, ESCAPE, fallback_level=ESCAPE)
    (tmp_path / "supervisor.json").write_text(json.dumps(asdict(standing)))
    console = Console(file=io.StringIO(), width=200)
    console.print(screen(read_run(tmp_path)))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "owned" in text
    assert not has_control(text)


@pytest.mark.parametrize("value", ["x", [], {}, None, -1.5, True, 1 << 70, "1"])
@pytest.mark.parametrize("key", ["loader", "attempts", "suspicions", "quarantined", "suspicious_epoch"])
def test_supervision_file_of_other_types_is_as_none(key: str, value: object, tmp_path: Path) -> None:
    content = asdict(FallbackState(restarts=2)) | {key: value}
    path = tmp_path / "supervision.json"
    path.write_text(json.dumps(content))
    state = FallbackState.read(path)
    is_valid = (key, value) in (("loader", {}), ("suspicions", {}), ("quarantined", []))
    assert state == (FallbackState(restarts=2) if is_valid else FallbackState())


@pytest.mark.parametrize("text", ["[" * 100_000, '{"level": ' * 50_000, "\xff", "", "[]", "1e999"])
def test_damaged_record_is_as_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    assert read_record(tmp_path / "a.json", FallbackState) is None


def test_log_has_neither_escape_sequences_nor_credentials() -> None:
    record = logging.LogRecord("a", 20, "b", 1, "%s to s3://key:SECRET@bucket", (ESCAPE,), None)
    assert is_printed(record)
    assert record.getMessage() == r"\x1b]0;owned\x07\x1b[2J to s3://***@bucket"


BOMB = "a: &a [x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{BOMB}train: *i\nnames: [a]\n", "more than 16 aliases"),
        ("train: .\nnc: 99999999999\n", "'nc' must be an integer from 1 to 32767, got 99999999999"),
        (f"train: .\nnc: {'9' * 400}\n", "'nc' must be an integer from 1 to 32767"),
        (f"train: {'[' * 5000}\n", "cannot be read as YAML"),
        ("train: .\nnames: {.inf: a}\n", "the keys of 'names' must be 0 to 0, got"),
        ("train: .\nnames: [a]\nkpt_shape: [1000000000, 1000000000]\n", "'kpt_shape' must be"),
        ("channels: 2020-99-99\n", "must have the key 'train' or 'val'"),
        ("train: .\nnames: [a\nb: c\n", "cannot be read as YAML: line 3, column 2: did not find expected"),
        ("train: !!python/object:os.system a\n", "cannot be read as YAML"),
        (f"path: {'x' * 300}\ntrain: .\nnames: [a]\n", "is not a folder"),
    ],
)
def test_hostile_data_yaml_is_refused_in_one_line(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "data.yaml").write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        read_description(tmp_path)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 1500


def test_long_names_are_missing_files(tmp_path: Path) -> None:
    (tmp_path / "data.yaml").write_text(f"train: {'x' * 300}\nnames: [a]\n")
    with pytest.raises(ValueError, match="which does not exist"):
        read_description(tmp_path).places("train")
    with pytest.raises(ValueError, match="found none of its images"):
        image_folders(tmp_path / "a.json", tmp_path, (), ["x" * 300])


def test_data_yaml_and_lists_are_regular_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "data.yaml")
    with pytest.raises(ValueError, match="not a regular file"):
        read_description(tmp_path)
    (tmp_path / "data.yaml").unlink()
    (tmp_path / "data.yaml").write_text("train: list.txt\nnames: [a]\n")
    (tmp_path / "list.txt").symlink_to("/dev/zero")
    with pytest.raises(ValueError, match=r"image list .* cannot be read.*not a regular file"):
        YoloSplit(read_description(tmp_path), "train")
    (tmp_path / "list.txt").unlink()
    secret = tmp_path.with_name(f"{tmp_path.name}-secret.jpg")
    (tmp_path / "list.txt").write_text(f"{secret}\n")
    with pytest.raises(ValueError, match=r"outside of the dataset folder .*; the file does not exist"):
        YoloSplit(read_description(tmp_path), "train")
    secret.touch()
    with pytest.raises(ValueError, match=r"outside of the dataset folder .*set data\.limits\.allow_outside_root true"):
        YoloSplit(read_description(tmp_path), "train")
    (tmp_path / "list.txt").write_text(f"{secret}\n", "utf-16")
    with pytest.raises(ValueError, match=r"list\.txt cannot be read: not UTF-8 text at byte 0: it is UTF-16 text"):
        YoloSplit(read_description(tmp_path), "train")


def test_yolo_images_once_and_regular(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "labels").mkdir()
    (tmp_path / "images" / "a.jpg").touch()
    (tmp_path / "images" / "loop").symlink_to(tmp_path / "images")
    os.mkfifo(tmp_path / "images" / "pipe.jpg")
    os.mkfifo(tmp_path / "labels" / "a.txt")
    (tmp_path / "data.yaml").write_text("train: images\nnames: [a]\n")
    split = YoloSplit(read_description(tmp_path), "train")
    assert split.files.images == [str(tmp_path / "images" / "a.jpg")]
    with pytest.raises(ValueError, match=r"a\.txt: cannot be read: not a regular file"):
        split.read()


@pytest.mark.parametrize("text", ['{"images": ' + "[" * 100_000, '{"images": [{"id": 1, "meta": ' + "[" * 100_000])
def test_deep_annotations_are_refused_in_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match=r"a\.json is not") as error:
        read_annotations(tmp_path / "a.json")
    assert "\n" not in str(error.value)
    assert check_submission(tmp_path / "a.json").content is None


def test_long_name_does_not_widen_the_array_of_names(tmp_path: Path) -> None:
    images = [{"id": 1, "file_name": "x" * 5000, "width": 1, "height": 1}]
    (tmp_path / "a.json").write_text(json.dumps({"images": images, "categories": [], "annotations": []}))
    with pytest.raises(ValueError, match=r"images\[0\] .*: Expected `str` of length <= 1024"):
        read_annotations(tmp_path / "a.json")


HUGE = {"boxes": [[1, 2, 3, 4]], "labels": [10**400]}


@pytest.mark.parametrize("image_id", ["a\nb", "x" * 50_000, ESCAPE])
def test_ids_in_ground_truth_are_shown_in_one_line(image_id: str, tmp_path: Path) -> None:
    for entry in (
        {"boxes": [[1, 2, 3, 4]], "labels": []},
        {"boxes": [[1, 2, 3, 4]], "labels": [9]},
        {"boxes": 1},
        HUGE,
    ):
        (tmp_path / "a.json").write_text(json.dumps({image_id: entry}))
        with pytest.raises(ValueError, match=r"a\.json") as error:
            read_truth(tmp_path / "a.json")
        assert not has_control(str(error.value))
        assert "\n" not in str(error.value)
        assert len(str(error.value)) < 3000


def test_long_cell_of_metrics_is_an_unreadable_line(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text(f"epoch,step,time_s\n0,1,1.0\n0,{'2' * 200_000},1.0\n")
    metrics = read_metrics(tmp_path / "metrics.csv")
    assert (len(metrics.columns["step"]), metrics.unreadable) == (1, 1)
