import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from yolo_lightning.challenge.check import check_submission
from yolo_lightning.challenge.content import Template
from yolo_lightning.challenge.submission_file import build_submission, write_submission
from yolo_lightning.data.batch import Prediction

IDS = ["20200502114223915", "20200502114223916", "20210102000000001"]
"""The first two are one number as float64."""
BOX = torch.tensor([[0.0, 0.0, 9.0, 9.0]])


def prediction(image_id: str, boxes: Any = (), scores: Any = (), labels: Any = ()) -> Prediction:
    return Prediction(
        image_id, torch.tensor(boxes).float().reshape(-1, 4), torch.tensor(scores), torch.tensor(labels).long()
    )


def test_labels_are_category_ids_from_one_and_boxes_corners_in_frame_pixels() -> None:
    boxes = [[1.0, 2.0, 383.5, 287.25], [10.004, 20.006, 30.0, 40.0]]
    content = build_submission([prediction(IDS[0], boxes, [0.9, 0.5], [0, 3])], IDS[:1])
    assert content == {
        IDS[0]: {
            "boxes": [[1.0, 2.0, 383.5, 287.25], [10.0, 20.01, 30.0, 40.0]],
            "scores": [pytest.approx(0.9, abs=1e-5), 0.5],
            "labels": [1, 4],
        }
    }


def test_every_id_is_there_in_the_order_of_the_split_with_empty_lists_without_detections() -> None:
    content = build_submission([prediction(IDS[2]), prediction(IDS[0])], IDS)
    assert list(content) == IDS
    assert list(content.values()) == [{"boxes": [], "scores": [], "labels": []}] * 3


def test_hundred_best_per_class_are_kept_in_their_order() -> None:
    scores = torch.linspace(0.99, 0.10, 250)
    labels = torch.arange(250) % 2
    boxes = torch.arange(250.0).unsqueeze(1) + torch.tensor([0.0, 0.0, 1.0, 1.0])
    content = build_submission([Prediction(IDS[0], boxes, scores, labels)], IDS[:1])
    assert [box[0] for box in content[IDS[0]]["boxes"]] == list(range(200))  # type: ignore[index]
    assert content[IDS[0]]["labels"] == [1, 2] * 100


def test_the_best_are_kept_whatever_their_order() -> None:
    scores = torch.linspace(0.1, 0.9, 150)
    detections = Prediction(IDS[0], BOX.repeat(150, 1), scores, torch.zeros(150).long())
    content = build_submission([detections], IDS[:1])
    assert min(content[IDS[0]]["scores"]) == pytest.approx(float(scores[50]), abs=1e-5)  # type: ignore[type-var]


def test_boxes_that_lose_their_area_by_rounding_are_left_out(tmp_path: Path) -> None:
    boxes = [[1.0, 2.0, 1.004, 9.0], [1.0, 2.0, 1.02, 9.0], [3.0, 9.0, 5.0, 9.0]]
    content = build_submission([prediction(IDS[0], boxes, [0.9, 0.5, 0.4], [0, 1, 2])], IDS[:1])
    assert content[IDS[0]] == {"boxes": [[1.0, 2.0, 1.02, 9.0]], "scores": [0.5], "labels": [2]}


def test_zip_holds_the_same_bytes_under_the_name_of_the_kit(tmp_path: Path) -> None:
    content = build_submission([prediction(IDS[0], [[0, 0, 1, 1]], [0.5], [2])], IDS)
    path, archive = tmp_path / "run/mine.json", tmp_path / "run/mine.zip"
    for target in (path, archive):
        write_submission(content.items(), target)
    assert json.loads(path.read_text()) == content
    assert b'"labels":[3]' in path.read_bytes(), "whole numbers"
    with zipfile.ZipFile(archive) as file:
        assert file.namelist() == ["predictions.json"]
        assert file.read("predictions.json") == path.read_bytes()


def test_what_is_written_passes_the_check(tmp_path: Path) -> None:
    predictions = [prediction(image_id, [[0, 0, 384, 288], [5, 5, 5, 9]], [0.5, 0.4], [3, 0]) for image_id in IDS]
    write_submission(build_submission(predictions, IDS).items(), tmp_path / "predictions.zip")
    assert check_submission(tmp_path / "predictions.zip", Template(tuple(IDS))).problems == ()


@pytest.mark.parametrize("name", ["predictions.json", "predictions.zip"])
def test_a_failed_write_leaves_the_file_that_was_there(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("before")

    def failing() -> Iterator[tuple[str, Any]]:
        yield IDS[0], {"boxes": []}
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_submission(failing(), tmp_path / name)
    assert (tmp_path / name).read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == [name]
