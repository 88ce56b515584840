import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from lightning.pytorch import Callback

from tests.callbacks.tiny_detection import HIT, MISS, DetectionModule, Frames, frame_batch, prediction, target
from tests.callbacks.tiny_training import loader, tiny_trainer
from yolo_lightning.callbacks import FrameGallery
from yolo_lightning.data.batch import Prediction, Target
from yolo_lightning.evaluation.drawing import GAP, encode, enlargement, side_by_side
from yolo_lightning.evaluation.gallery import frame_scores, shown_detections
from yolo_lightning.utils.run_files import FRAMES


def right(number: int) -> tuple[Prediction, Target]:
    """One object, found."""
    return prediction(f"id-{number}"), target(f"id-{number}")


def wrong(number: int) -> tuple[Prediction, Target]:
    """One object, missed, and a false alarm."""
    return prediction(f"id-{number}", MISS), target(f"id-{number}")


def half(number: int) -> tuple[Prediction, Target]:
    """Two objects, one of them found: F1 2/3."""
    return prediction(f"id-{number}"), target(f"id-{number}", HIT + MISS)


def empty(number: int) -> tuple[Prediction, Target]:
    """Neither an object nor a detection that counts."""
    return prediction(f"id-{number}", scores=(0.1,)), target(f"id-{number}", [])


def answers(*frames: tuple[Prediction, Target]) -> Any:
    return [([detections], [truth]) for detections, truth in frames]


def run(folder: Path, gallery: FrameGallery, *frames: tuple[Prediction, Target], stage: str = "validate") -> Any:
    """Evaluates frames numbered from 0, one to a batch; returns the list that was written, None where there is none."""
    module, data = DetectionModule(answers(*frames)), Frames([frame_batch(number) for number in range(len(frames))])
    trainer = tiny_trainer(folder, gallery)
    getattr(trainer, stage)(module, datamodule=data, verbose=False)
    return listed(folder, "test" if stage == "test" else "val")


def listed(folder: Path, stage: str = "val") -> Any:
    path = folder / FRAMES / f"{stage}.json"
    return json.loads(path.read_text()) if path.is_file() else None


def ids(content: Any, group: str) -> list[str]:
    return [frame["image_id"] for frame in content["frames"] if frame["group"] == group]


@pytest.mark.parametrize("stage", ["validate", "test"])
def test_best_and_worst_frames_are_listed_and_drawn(tmp_path: Path, stage: str) -> None:
    content = run(tmp_path, FrameGallery(1, 1), half(0), right(1), wrong(2), stage=stage)
    assert (ids(content, "best"), ids(content, "worst")) == (["id-1"], ["id-2"])
    worst = content["frames"][1]
    assert (worst["score"], worst["objects"], worst["misses"], worst["false_alarms"]) == (0, 1, 1, 1)
    picture = cv2.imread(str(tmp_path / FRAMES / worst["file"]))
    assert picture is not None
    assert picture.shape == (480, 2 * 640 + GAP, 3)


def test_frames_with_nothing_in_them_count_neither_way(tmp_path: Path) -> None:
    content = run(tmp_path, FrameGallery(), empty(0), right(1), empty(2))
    assert [frame["image_id"] for frame in content["frames"]] == ["id-1"]


def test_one_frame_of_a_clip_is_shown_in_each_group(tmp_path: Path) -> None:
    """The better frame of a clip replaces the other one, also when it comes later; the other group is independent."""
    names = [f"202005{clip:03d}1422390{second}" for clip in (1, 2) for second in (0, 1)]
    truth = [target(names[0], HIT + MISS), *map(target, names[1:])]
    content = run(tmp_path, FrameGallery(2, 2), *zip(map(prediction, names), truth, strict=True))
    assert ids(content, "best") == [names[1], names[2]]
    assert ids(content, "worst") == [names[0]]


def test_equals_go_by_id_whatever_the_order_of_the_frames(tmp_path: Path) -> None:
    chosen = []
    for order in ((3, 1, 2, 0), (0, 2, 1, 3)):
        module = DetectionModule(answers(*(right(number) for number in order)))
        data = Frames([frame_batch(number) for number in order])
        tiny_trainer(tmp_path, FrameGallery(2, 2)).validate(module, datamodule=data, verbose=False)
        chosen.append(ids(listed(tmp_path), "best"))
    assert chosen == [["id-0", "id-1"]] * 2


def test_a_frame_is_shown_once_on_the_side_where_it_belongs(tmp_path: Path) -> None:
    content = run(tmp_path, FrameGallery(3, 3), half(0), right(1), wrong(2))
    assert (ids(content, "best"), ids(content, "worst")) == (["id-1", "id-0"], ["id-2"])
    module, data = DetectionModule(answers(wrong(0), wrong(0))), Frames([frame_batch(0), frame_batch(0)])
    tiny_trainer(tmp_path, FrameGallery()).validate(module, datamodule=data, verbose=False)
    assert ids(listed(tmp_path), "worst") == ["id-0"]


class StopAfter(Callback):
    """Ends the fit after a number of steps, as `trainer.max_time`."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        trainer.should_stop = trainer.global_step == self.steps


@pytest.mark.parametrize(
    ("epochs", "max_steps", "stop"),
    [(2, -1, 9), (9, 4, 9), (9, -1, 3)],
    ids=["max_epochs", "max_steps", "max_time"],
)
def test_fit_keeps_those_of_the_last_epoch_alone(tmp_path: Path, epochs: int, max_steps: int, stop: int) -> None:
    seen: list[bool] = []

    class Look(FrameGallery):
        def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            super().on_validation_epoch_end(trainer, pl_module)
            seen.append(listed(tmp_path) is not None)

    class Module(DetectionModule):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.layers(batch).mean()

    trainer = tiny_trainer(tmp_path, Look(), StopAfter(stop), epochs=epochs, max_steps=max_steps)
    trainer.fit(Module(answers(right(0))), loader(2), Frames([frame_batch(0)]).val_dataloader())
    assert seen == [False, True]


def test_each_validation_of_a_fit_has_a_sheet_and_old_sheets_are_thinned_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Module(DetectionModule):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.layers(batch).mean()

    monkeypatch.setattr("yolo_lightning.callbacks.frame_gallery.MOST_SHEETS", 3)
    trainer = tiny_trainer(tmp_path, FrameGallery(sheet_frames=2), epochs=4)
    module = Module(answers(right(0), empty(1), wrong(2), right(3)))
    trainer.fit(module, loader(2), Frames([frame_batch(number) for number in range(4)]).val_dataloader())
    sheets = sorted((tmp_path / FRAMES / "epochs").iterdir())
    assert [path.name[: len("epoch-0000")] for path in sheets] == ["epoch-0001", "epoch-0003", "epoch-0004"]
    picture = cv2.imread(str(sheets[0]))
    assert picture is not None
    assert picture.shape == (2 * 240 + GAP, 2 * 320 + GAP, 3)


def test_frames_that_are_not_there_any_more_leave_no_picture(tmp_path: Path) -> None:
    run(tmp_path, FrameGallery(), wrong(0), wrong(1))
    run(tmp_path, FrameGallery(), wrong(0))
    assert [path.name for path in (tmp_path / FRAMES).glob("*.jpg")] == ["val-worst-1.jpg"]


def test_disk_that_is_full_does_not_end_the_run(tmp_path: Path) -> None:
    (tmp_path / "evaluations").write_text("a file where the folder belongs")
    with pytest.warns(UserWarning, match="could not write pictures"):
        assert run(tmp_path, FrameGallery(), right(0)) is None


def test_colour_and_gray_frames_are_drawn_on_both_sides() -> None:
    truth = target("a")
    detections = prediction("a", MISS)
    for frame in (np.full((60, 80), 100, np.uint8), np.full((60, 80, 3), (10, 20, 200), np.uint8)):
        picture = side_by_side(frame, truth, detections, ("cat",))
        left_side = picture[:, :640]
        other = picture[:, 640 + GAP :]
        background = frame[0, 0][::-1] if frame.ndim == 3 else np.full(3, 100)
        np.testing.assert_array_equal(left_side[5, 5], background)
        changed = [np.argwhere((side != background).any(axis=2)) for side in (left_side, other)]
        assert changed[0][:, 1].min() == pytest.approx(8 * 10, abs=3)
        assert changed[1][:, 1].max() == pytest.approx(8 * 70, abs=3)


@pytest.mark.parametrize(("width", "gain"), [(80, 8), (384, 1), (320, 2), (640, 1), (1280, 0.5)])
def test_small_frames_grow_by_whole_factors(width: int, gain: float) -> None:
    assert enlargement(width) == gain


def test_pictures_of_high_frames_can_be_stored() -> None:
    high = side_by_side(np.zeros((5000, 4), np.uint8), target("a"), prediction("a"), ("cat",))
    assert encode(high)
    assert len(high) == 8192


def test_a_box_of_two_classes_is_shown_with_the_better_one() -> None:
    boxes = torch.tensor(HIT + HIT + MISS + MISS)
    detections = Prediction("a", boxes, torch.tensor([0.9, 0.8, 0.7, 0.1]), torch.tensor([1, 0, 0, 1]))
    shown = shown_detections(detections, 0.25)
    assert (shown.boxes.tolist(), shown.labels.tolist()) == (HIT + MISS, [1, 0])


def test_each_object_is_found_once_at_most() -> None:
    detections = prediction("a", HIT + HIT + MISS, (0.9, 0.8, 0.7))
    (score,) = frame_scores([detections], [target("a")], 2)
    assert score is not None
    assert (score.score, score.misses, score.false_alarms) == (2 / 4, 0, 2)
