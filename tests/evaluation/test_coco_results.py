"""COCO's results list."""

import json
from pathlib import Path

import pytest
import torch

from yolo_lightning.data.batch import Prediction
from yolo_lightning.evaluation.coco_results import coco_results, write_coco_results


def found(image_id: str, count: int = 1) -> Prediction:
    boxes = torch.tensor([[1.004, 2.0, 11.0, 7.126]] * count).reshape(-1, 4)
    return Prediction(image_id, boxes, torch.full((count,), 0.123456), torch.ones(count, dtype=torch.int64))


def test_a_detection_has_the_files_own_numbers_and_a_corner_with_sides() -> None:
    (result,) = coco_results([found("31")], [30, 31], (3, 44))
    assert result == {"image_id": 31, "category_id": 44, "bbox": [1.0, 2.0, 10.0, 5.13], "score": 0.12346}


@pytest.mark.parametrize("ids", [["0012", "31"], ["7", "8"], [7, "8"], [7, "images/val/9"], [2**60, "\u0669"]])
def test_ids_have_the_type_and_the_characters_of_the_file(ids: list[int | str], tmp_path: Path) -> None:
    results = coco_results([found(str(image_id)) for image_id in ids], ids, (3, 44))
    write_coco_results(results, tmp_path / "predictions.json")
    read = json.loads((tmp_path / "predictions.json").read_text())
    assert [(type(result["image_id"]), result["image_id"]) for result in read] == [
        (type(image_id), image_id) for image_id in ids
    ]


@pytest.mark.parametrize("ids", [["8"], ["1", "1"]], ids=["foreign", "repeated"])
def test_wrong_images_are_an_error(ids: list[str]) -> None:
    with pytest.raises(ValueError, match=f"image id {ids[0]}: unknown id or second prediction"):
        coco_results([found(image_id) for image_id in ids], [1, "2"], (3, 44))


@pytest.mark.parametrize("count", [0, 2])
def test_file_is_json_however_little_was_found(tmp_path: Path, count: int) -> None:
    results = coco_results([found("1", count)], [1], (3, 44))
    write_coco_results(results, tmp_path / "new" / "predictions.json")
    assert json.loads((tmp_path / "new" / "predictions.json").read_text()) == results
    assert len(results) == count
