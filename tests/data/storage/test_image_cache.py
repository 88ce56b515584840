"""Cache of decoded frames."""

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.data_module import data_module, set_up
from yolo_lightning.data.dataset import TrainingDataset
from yolo_lightning.data.labelled_frames import LabelledFrames
from yolo_lightning.data.sampling.resumable_loader import SampleKey
from yolo_lightning.data.storage.folder_frames import ImageFiles
from yolo_lightning.data.storage.frames import FrameError
from yolo_lightning.data.storage.image_cache import ImageCache
from yolo_lightning.data.transforms.augmentation_settings import Augmentation

PIXELS = 96 * 64
WINDOW = 5


class Counting(ImageFiles):
    """Storage that records the names that are read."""

    def __init__(self, source: Any, torn: str = "") -> None:
        self.source = source
        self.torn = torn
        self.asked: list[str] = []

    def read(self, name: str) -> np.ndarray:
        self.asked.append(name)
        if name == self.torn:
            raise FrameError(f"{name}: torn")
        return self.source.read(name)


@pytest.fixture
def split(look_alike: Path, index_root: Path) -> LabelledFrames:
    """16 frames of 96 x 64 pixels in a folder."""
    return data_module(str(look_alike), index_root=str(index_root), kind="folder").open("train")


@pytest.fixture
def budget_of_16(monkeypatch: pytest.MonkeyPatch) -> None:
    """One MiB has room for all 16 frames."""
    monkeypatch.setattr("yolo_lightning.data.labelled_frames.MIB", 16 * PIXELS)


def test_oldest_frames_are_dropped_beyond_the_limit() -> None:
    cache = ImageCache(max_frames=3, keep_partners=False)
    for index in (0, 1, 2, 0, 3):
        cache.add(index, np.full((2, 2), index, np.uint8))
    assert [cache.get(index) is not None for index in range(4)] == [True, False, True, True]
    assert len(cache) == 3


def test_a_cached_frame_cannot_be_changed(split: LabelledFrames) -> None:
    with pytest.raises(ValueError, match="read-only"):
        split.cached(1, WINDOW).read(0).image[0] = 7


def test_a_worker_is_not_sent_what_was_decoded(split: LabelledFrames) -> None:
    kept = split.cached(1, WINDOW)
    before = len(pickle.dumps(kept))
    kept.read(3)
    assert len(pickle.dumps(kept)) == before
    copy = pickle.loads(pickle.dumps(kept))
    assert (copy.cache.max_frames, copy.cache.keep_partners, len(copy.cache)) == (16, True, 0)
    assert np.array_equal(copy.read(3).image, split.read(3).image)


@pytest.mark.parametrize("budget", [1, 0])
@pytest.mark.parametrize("settings", [Augmentation(photometric=1, mosaic=0.5), Augmentation(photometric=0, scale=0)])
def test_samples_are_the_same_again_and_again(split: LabelledFrames, settings: Augmentation, budget: int) -> None:
    kept = split.cached(budget, WINDOW)
    settings = replace(settings, histogram_match=0.5)
    plain, fast = (TrainingDataset(frames, 96, settings, seed=0) for frames in (split, kept))
    for epoch in (0, 1, 0, 1):  # frames as wide as the input are not scaled by the letterbox
        for index in range(len(split)):
            key = SampleKey(epoch, index, has_mosaic=epoch < 1)
            expected, sample = plain[key], fast[key]
            np.testing.assert_array_equal(sample.image, expected.image)
            np.testing.assert_array_equal(sample.boxes, expected.boxes)


def test_a_split_that_fits_is_decoded_once_and_what_cannot_be_read_each_time(
    split: LabelledFrames, budget_of_16: None
) -> None:
    split.storage = source = Counting(split.storage, torn=split.index.file_name(3))
    split.quarantined = frozenset({5})
    kept = split.cached(1, WINDOW)
    assert kept.quarantined == {5}
    assert kept.cache.max_frames == 16
    for _ in range(2):
        problems = [kept.read(index, is_partner=index % 2 > 0).problem for index in range(16)]
        assert [place for place, problem in enumerate(problems) if problem] == [3, 5]
    assert len(source.asked) == 16
    assert len(set(source.asked)) == 15


def test_otherwise_the_last_samples_are_kept_but_not_their_partners(
    split: LabelledFrames, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("yolo_lightning.data.labelled_frames.MIB", 16 * PIXELS - 1)
    split.storage = source = Counting(split.storage)
    kept = split.cached(1, WINDOW)
    for index in (4, 5, 6, 7, 8, 9):
        kept.read(index)
    kept.read(10, is_partner=True)
    before = len(source.asked)
    for index in (10, 4, 5, 9):
        kept.read(index, is_partner=True)
    assert source.asked[before:] == [split.index.file_name(index) for index in (10, 4)]


def test_frames_of_a_packed_store_are_never_all_kept(split: LabelledFrames, budget_of_16: None) -> None:
    class Packed:
        read = split.storage.read

    stored = LabelledFrames(split.index, Packed(), 1).cached(1, WINDOW)  # type: ignore[arg-type]
    assert (stored.cache.max_frames, stored.cache.keep_partners) == (WINDOW, False)


def test_channels_count(split: LabelledFrames, budget_of_16: None) -> None:
    colour = LabelledFrames(split.index, split.storage, 3).cached(1, 6)
    assert (colour.cache.max_frames, colour.cache.keep_partners) == (5, False)


@pytest.mark.parametrize("budget_mib", [0, 1])
def test_setting_decides_whether_training_keeps_them(look_alike: Path, index_root: Path, budget_mib: int) -> None:
    options = {"kind": "folder", "image_cache_mib": budget_mib}
    data = set_up("fit", str(look_alike), index_root=str(index_root), **options)
    frames = data.train_dataloader().dataset.frames
    frames.read(0)
    assert len(frames.cache) == budget_mib
