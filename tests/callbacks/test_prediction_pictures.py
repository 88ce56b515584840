from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from tests.callbacks.tiny_detection import HEIGHT, WIDTH, DetectionModule, Frames, frame_batch, prediction, target
from tests.callbacks.tiny_training import tiny_trainer
from yolo_lightning.callbacks import PredictionPictures
from yolo_lightning.callbacks.prediction_pictures import original_frame
from yolo_lightning.data.batch import Batch
from yolo_lightning.data.boxes import Letterbox
from yolo_lightning.data.image_size import ImageSize
from yolo_lightning.evaluation.plots import LabelledImage


class Drawn:
    """Stands in for draw_pictures and keeps what it is given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pictures: list[LabelledImage] = []
        monkeypatch.setattr("yolo_lightning.callbacks.prediction_pictures.draw_pictures", self)

    def __call__(self, pictures: list[LabelledImage], class_names: list[str], path: Path) -> None:
        self.pictures = list(pictures)

    def ids(self) -> list[str]:
        return [picture.prediction.image_id for picture in self.pictures]


def run(folder: Path, batches: list[Batch], frames: int, stage: str = "test") -> None:
    answers = []
    for batch in batches:
        readable = [batch.image_ids[position] for position in batch.readable_positions()]
        answers.append(([prediction(one) for one in readable], [target(one) for one in readable]))
    trainer = tiny_trainer(folder, PredictionPictures(frames))
    module, data = DetectionModule(answers), Frames(batches)
    if stage == "test":
        trainer.test(module, datamodule=data, verbose=False)
    else:
        trainer.predict(module, datamodule=data, return_predictions=False)


@pytest.mark.parametrize("stage", ["test", "predict"])
def test_picture_is_written_into_the_run_folder(tmp_path: Path, stage: str) -> None:
    run(tmp_path / "run", [frame_batch(0, 1)], 2, stage)
    drawn = cv2.imread(str(tmp_path / "run" / f"{stage}.png"))
    assert drawn is not None
    assert drawn.shape[1] == 2 * 4.2 * 120


def test_frames_are_spread_over_the_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = Drawn(monkeypatch)
    run(tmp_path, [frame_batch(*range(start, start + 4)) for start in range(0, 24, 4)], 3)
    thirds = [int(name.removeprefix("id-")) // 8 for name in drawn.ids()]
    assert thirds == [0, 1, 2]


@pytest.mark.parametrize(("frames", "count"), [(1, 1), (5, 5), (6, 6), (20, 6)])
def test_number_of_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, frames: int, count: int) -> None:
    drawn = Drawn(monkeypatch)
    run(tmp_path, [frame_batch(0, 1), frame_batch(2, 3), frame_batch(4, 5)], frames)
    assert len(drawn.ids()) == count
    assert len(set(drawn.ids())) == count


def test_each_frame_goes_with_its_own_boxes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = Drawn(monkeypatch)
    run(tmp_path, [frame_batch(10, 20, 30, unreadable=[20]), frame_batch(40, 50, unreadable=[40])], 5)
    assert drawn.ids() == ["id-10", "id-30", "id-50"]
    assert [int(picture.frame.mean()) for picture in drawn.pictures] == [10, 30, 50]
    assert [picture.target.image_id for picture in drawn.pictures if picture.target] == drawn.ids()


def test_predict_knows_no_targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = Drawn(monkeypatch)
    run(tmp_path, [frame_batch(0, 1)], 2, "predict")
    assert [picture.target for picture in drawn.pictures] == [None, None]


def test_nothing_is_drawn_where_no_frame_could_be_read(tmp_path: Path) -> None:
    run(tmp_path, [frame_batch(0, 1, unreadable=[0, 1])], 2)
    assert not (tmp_path / "test.png").exists()


def test_original_frame_is_cut_out_of_the_letterboxed_image() -> None:
    frame = original_frame(frame_batch(7, 9), 1)
    assert frame.shape == (HEIGHT, WIDTH)
    assert frame.dtype == np.uint8
    assert set(np.unique(frame)) == {9}


@pytest.mark.parametrize(("height", "width"), [(288, 384), (384, 288), (64, 64), (37, 91), (300, 2)])
def test_original_frame_has_the_shape_of_the_frame(height: int, width: int) -> None:
    placement = Letterbox.fit(height, width, ImageSize(64, 64))
    one: Any = frame_batch(1)
    batch = Batch(
        one.images, one.boxes, one.labels, one.sample_index, one.image_ids, ((height, width),), (placement,), (True,)
    )
    assert original_frame(batch, 0).shape == (height, width)


def test_no_frames_is_refused() -> None:
    with pytest.raises(ValueError, match="frames must be >= 1, got 0"):
        PredictionPictures(0)


def test_picture_that_cannot_be_written_does_not_end_the_test(tmp_path: Path) -> None:
    (tmp_path / "test.png").mkdir()
    with pytest.warns(UserWarning, match="could not write .*test.png"):
        run(tmp_path, [frame_batch(0, 1)], 2)
