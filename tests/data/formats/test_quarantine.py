"""Frames in quarantine: they are never read, and all other samples are unchanged."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.helpers.data_module import cpu_trainer, data_module, set_up
from yolo_lightning.data.batch import Batch
from yolo_lightning.data.datamodule import DetectionDataModule
from yolo_lightning.data.dataset import TrainingDataset
from yolo_lightning.data.labelled_frames import LabelledFrames
from yolo_lightning.data.limit_settings import Limits
from yolo_lightning.data.storage.storage import Storage
from yolo_lightning.data.transforms.augmentation_settings import Augmentation

Split = Callable[..., LabelledFrames]
Make = Callable[..., DetectionDataModule]

FRAMES, LEFT_OUT = 6, 2
MIXED = Augmentation(mosaic=1.0)


class Trap:
    """Storage that fails if a certain frame is read."""

    def __init__(self, source: Storage, name: str) -> None:
        self.source, self.name = source, name

    def read(self, name: str) -> npt.NDArray[Any]:
        assert name != self.name
        return self.source.read(name)

    def missing(self, names: Iterable[str]) -> list[str]:
        return self.source.missing(names)


@pytest.fixture
def frames(split: Split) -> LabelledFrames:
    return split([[[5, 5, 30, 20]]] * FRAMES)


@pytest.fixture
def make(look_alike: Path, index_root: Path) -> Make:
    return lambda **options: set_up(
        "fit", str(look_alike), cpu_trainer(max_epochs=30), index_root=str(index_root), **options
    )


def test_frames_are_found_by_id_and_in_training_by_place(frames: LabelledFrames) -> None:
    suspects = (f"id={frames.index.image_id(4)}", "index=1", "index=99", "id=nobody")
    assert Limits(quarantine=suspects).quarantined(frames.index, "train") == {1, 4}
    assert Limits(quarantine=suspects).quarantined(frames.index, "valid") == {4}
    assert Limits(quarantine=()).quarantined(frames.index, "train") == frozenset()


def test_quarantined_frame_is_never_read_not_even_into_a_mosaic(frames: LabelledFrames) -> None:
    dataset = TrainingDataset(frames, 64, MIXED, seed=0)
    everything = [dataset[0, index] for index in range(FRAMES)]
    name = frames.index.file_name(LEFT_OUT)
    frames.quarantined, frames.storage = frozenset({LEFT_OUT}), Trap(frames.storage, name)
    again = [dataset[0, index] for index in range(FRAMES)]
    assert [sample.readable for sample in again] == [index != LEFT_OUT for index in range(FRAMES)]
    mixed_in = [name in "".join(sample.bad_frames) for sample in again]
    assert sum(mixed_in) > 1  # the frame itself, and mosaics with it
    for before, after, touched in zip(everything, again, mixed_in, strict=True):
        assert np.array_equal(before.image, after.image) == (not touched)
        assert np.array_equal(before.boxes, after.boxes) or touched


def test_order_of_the_others_stays(make: Make) -> None:
    image_id = make().index("train").image_id(3)
    with pytest.warns(UserWarning, match="train: left out because of data.limits.quarantine"):
        batches: list[Batch] = list(make(quarantine=(f"id={image_id}",)).train_dataloader())
    expected: list[Batch] = list(make().train_dataloader())
    assert [batch.image_ids for batch in batches] == [batch.image_ids for batch in expected]
    readable = {
        frame_id: flag for batch in batches for frame_id, flag in zip(batch.image_ids, batch.readable, strict=True)
    }
    assert [frame_id for frame_id, flag in readable.items() if not flag] == [image_id]


def test_quarantined_frames_count_neither_as_missing_nor_against_the_limit(
    make: Make, recwarn: pytest.WarningsRecorder
) -> None:
    data = make(quarantine=("index=0", "index=5"), max_bad_frames=0)
    for batch in data.train_dataloader():
        data.on_before_batch_transfer(batch, 0)
    assert data.bad_frames.names == set()
    (message,) = [str(warning.message) for warning in recwarn]
    index = data.index("train")
    listed = ", ".join(f"{index.image_id(place)} ({index.file_name(place)})" for place in (0, 5))
    assert message == f"train: left out because of data.limits.quarantine: {listed}"


@pytest.mark.filterwarnings("ignore:train")
def test_frames_are_not_looked_at_before_training_either(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    name = make().index("train").file_name(0)  # the first sampled frame
    opened = DetectionDataModule.open

    def trapped(self: DetectionDataModule, split: Any) -> LabelledFrames:
        labelled_frames = opened(self, split)
        labelled_frames.storage = Trap(labelled_frames.storage, name)
        return labelled_frames

    monkeypatch.setattr(DetectionDataModule, "open", trapped)
    make(quarantine=("index=0",))


@pytest.mark.parametrize("suspect", ["", "7", "id=", "index=-1", "index=x", "key=(0, 7)"])
def test_entry_that_names_no_frame_is_refused(suspect: str) -> None:
    with pytest.raises(ValueError, match=r"entries of data\.limits\.quarantine must be id=<image id> or index=.* got"):
        data_module("nowhere", quarantine=(suspect,))
