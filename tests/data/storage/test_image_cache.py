"""Cache of decoded frames."""

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from lightning.pytorch import Trainer

from yolo_lightning.data.datamodule import DetectionDataModule
from yolo_lightning.data.dataset import ImageCache, LabelledFrames, TrainingDataset, cache_images
from yolo_lightning.data.loader import LoaderSettings
from yolo_lightning.data.storage.frames import FrameError
from yolo_lightning.data.transforms.augmentation_settings import Augmentation

PIXELS_OF_16 = 16 * 96 * 64


class Counting:
    """Storage that records the names that are read."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def read(self, name: str) -> np.ndarray:
        self.asked.append(name)
        if name == "torn":
            raise FrameError("torn")
        return np.full((2, 2), len(self.asked), np.uint8)

    def missing(self, names: object) -> list[str]:
        return ["torn"]


@pytest.fixture
def split(look_alike: Path, index_root: Path) -> LabelledFrames:
    """16 frames of 96 x 64 pixels in a folder."""
    return DetectionDataModule(str(look_alike), index_root=str(index_root), storage="folder").open("train")


def test_a_frame_is_decoded_once_and_what_cannot_be_read_each_time() -> None:
    source = Counting()
    kept = ImageCache(source)
    assert [int(kept.read(name)[0, 0]) for name in ("a", "b", "a", "b")] == [1, 2, 1, 2]
    for _ in range(2):
        with pytest.raises(FrameError):
            kept.read("torn")
    assert source.asked == ["a", "b", "torn", "torn"]
    assert kept.missing(["a"]) == ["torn"]


def test_a_kept_frame_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="read-only"):
        ImageCache(Counting()).read("a")[0] = 7


def test_a_worker_is_not_sent_what_was_decoded(split: LabelledFrames) -> None:
    kept = cache_images(split, 1)
    before = len(pickle.dumps(kept))
    kept.read(3)
    assert len(pickle.dumps(kept)) == before
    copy = pickle.loads(pickle.dumps(kept))
    assert np.array_equal(copy.read(3)[0].image, split.read(3)[0].image)


@pytest.mark.parametrize("settings", [Augmentation(photometric=1, mosaic=0.5), Augmentation(photometric=0, scale=0)])
def test_samples_are_the_same_again_and_again(split: LabelledFrames, settings: Augmentation) -> None:
    kept = cache_images(split, 1)
    assert kept is not split
    settings = replace(settings, histogram_match=0.5)
    plain, fast = (TrainingDataset(frames, 96, settings, 1, seed=0) for frames in (split, kept))
    for epoch in (0, 1, 0, 1):  # frames as wide as the input are not scaled by the letterbox
        for index in range(len(split)):
            expected, sample = plain[epoch, index], fast[epoch, index]
            np.testing.assert_array_equal(sample.image, expected.image)
            np.testing.assert_array_equal(sample.boxes, expected.boxes)


def test_all_frames_are_kept_or_none(split: LabelledFrames, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("yolo_lightning.data.dataset.MIB", PIXELS_OF_16)
    split.quarantined = frozenset({5})
    assert cache_images(split, 0) is split
    assert cache_images(split, 1).quarantined == {5}
    monkeypatch.setattr("yolo_lightning.data.dataset.MIB", PIXELS_OF_16 - 1)
    assert cache_images(split, 1) is split


def test_channels_count(look_alike: Path, index_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    split = DetectionDataModule(str(look_alike), index_root=str(index_root), storage="folder").open("train")
    monkeypatch.setattr("yolo_lightning.data.dataset.MIB", PIXELS_OF_16)
    assert cache_images(LabelledFrames(split.index, split.storage, 3), 2).storage is split.storage


def test_part_of_a_split_counts_its_own_pixels(look_alike: Path, index_root: Path) -> None:
    data = DetectionDataModule(str(look_alike), index_root=str(index_root), train_fraction=0.5)
    assert data.open("train").index.pixels() == PIXELS_OF_16 // 2


def test_frames_of_another_kind_are_left_where_they_are(split: LabelledFrames) -> None:
    stored = LabelledFrames(split.index, Counting(), 1)
    assert cache_images(stored, 1) is stored


@pytest.mark.parametrize("budget_mib", [0, 1])
def test_setting_decides_whether_training_keeps_them(look_alike: Path, index_root: Path, budget_mib: int) -> None:
    options = {"storage": "folder", "loader": LoaderSettings(num_workers=0), "image_cache_mib": budget_mib}
    data = DetectionDataModule(str(look_alike), index_root=str(index_root), **options)
    data.trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, max_epochs=1)
    data.setup("fit")
    assert isinstance(data.train_dataloader().dataset.frames.storage, ImageCache) == bool(budget_mib)
