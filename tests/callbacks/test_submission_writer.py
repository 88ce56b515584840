import json
import zipfile
from pathlib import Path

import pytest

from tests.callbacks.tiny_detection import HIT, DetectionModule, Frames, numbers, prediction
from tests.callbacks.tiny_training import tiny_trainer
from yolo_lightning.callbacks import SubmissionWriter

IDS = ["20200502114223915", "20200502114223916", "20210102000000001"]


def predict(folder: Path, *batches: list[str]) -> None:
    answers = [([prediction(image_id) for image_id in batch], []) for batch in batches]
    trainer = tiny_trainer(folder, SubmissionWriter())
    frames = Frames(numbers(len(batches)), IDS)
    trainer.predict(DetectionModule(answers), datamodule=frames, return_predictions=False)


def test_predictions_of_all_batches_are_written_under_every_id_of_the_split(tmp_path: Path) -> None:
    predict(tmp_path, [IDS[0]], [IDS[2]])
    content = json.loads((tmp_path / "predictions.json").read_text())
    assert list(content) == IDS
    assert [entry["boxes"] for entry in content.values()] == [HIT, [], HIT]
    assert [entry["labels"] for entry in content.values()] == [[1], [], [1]]
    with zipfile.ZipFile(tmp_path / "predictions.zip") as archive:
        assert archive.read("predictions.json") == (tmp_path / "predictions.json").read_bytes()


def test_a_second_prediction_replaces_the_first(tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path, SubmissionWriter())
    for image_id in IDS[:2]:
        module = DetectionModule([([prediction(image_id)], [])])
        trainer.predict(module, datamodule=Frames(numbers(1), IDS), return_predictions=False)
    content = json.loads((tmp_path / "predictions.json").read_text())
    assert [image_id for image_id, entry in content.items() if entry["boxes"]] == [IDS[1]]


def test_predictions_of_a_call_that_an_error_has_ended_are_forgotten(tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path, SubmissionWriter())
    frames = Frames(numbers(2), IDS)
    answers = [([prediction(image_id)], []) for image_id in IDS[:2]]
    with pytest.raises(IndexError):  # the module has no answer for the second batch
        trainer.predict(DetectionModule(answers[:1]), datamodule=frames, return_predictions=False)
    trainer.predict(DetectionModule(answers), datamodule=frames, return_predictions=False)
    content = json.loads((tmp_path / "predictions.json").read_text())
    assert [len(entry["boxes"]) for entry in content.values()] == [1, 1, 0]


@pytest.mark.parametrize("batches", [[["30000101000000000"]], [[IDS[0]], [IDS[0]]]], ids=["foreign", "repeated"])
def test_wrong_frames_are_an_error_and_nothing_is_written(tmp_path: Path, batches: list[list[str]]) -> None:
    with pytest.raises(ValueError, match=batches[0][0]):
        predict(tmp_path, *batches)
    assert list(tmp_path.iterdir()) == []


def test_other_data_get_cocos_list_of_results_with_their_own_categories(tmp_path: Path) -> None:
    module = DetectionModule([([prediction("7", scores=(0.8,), label=1)], []), ([prediction("12")], [])])
    frames = Frames(numbers(2), ["12", "5", "7"], category_ids=(1, 90))
    tiny_trainer(tmp_path, SubmissionWriter()).predict(module, datamodule=frames, return_predictions=False)
    assert json.loads((tmp_path / "predictions.json").read_text()) == [
        {"image_id": 12, "category_id": 1, "bbox": [10.0, 10.0, 20.0, 40.0], "score": 0.9},
        {"image_id": 7, "category_id": 90, "bbox": [10.0, 10.0, 20.0, 40.0], "score": 0.8},
    ]
    assert not (tmp_path / "predictions.zip").exists()
