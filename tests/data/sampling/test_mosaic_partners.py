"""Partners of mosaics: how often each frame is one, which mosaics share frames, and how many frames workers read."""

from collections import Counter
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from yolo_lightning.data.labelled_frames import LabelledFrames
from yolo_lightning.data.sampling.epoch_order import SampledOrder
from yolo_lightning.data.sampling.mosaic_partners import (
    LARGEST_STRIDE,
    frames_to_cache,
    mosaic_partners,
    stride,
)
from yolo_lightning.data.sampling.resumable_loader import EpochBatchSampler, SampleKey
from yolo_lightning.data.storage.folder_frames import ImageFiles

LENGTH = 4992
LENGTHS = [1, 2, 7, 24, 100, 4608, LENGTH]


class Shuffled(SampledOrder):
    """A random order of `length` frames; some occur twice if `frames` is smaller."""

    def __init__(self, length: int, frames: int | None = None) -> None:
        self.length, self.frames, self.settings = length, frames or length, {}

    def indices(self, epoch: int, cycle: int = 0) -> npt.NDArray[np.int64]:
        return np.random.default_rng(epoch).permutation(self.length) % self.frames


class Storage(ImageFiles):
    """Counts what is read."""

    def __init__(self) -> None:
        self.reads = 0

    def read(self, name: str) -> npt.NDArray[np.uint8]:
        self.reads += 1
        return np.full((2, 2), int(name) % 251, np.uint8)


class Index:
    """An index of `length` frames of 2 x 2 pixels without boxes."""

    boxes = labels = staticmethod(lambda index: None)

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def pixels(self) -> int:
        return 4 * self.length

    def shape(self, index: int) -> tuple[int, int]:
        return 2, 2

    def image_id(self, index: int) -> str:
        return str(index)

    file_name = image_id


def frames_of(length: int, own_window: int, budget: int = 1) -> LabelledFrames:
    """Return frames whose image cache has room for `own_window`, in a split that does not fit."""
    index: Any = Index(length)
    frames = LabelledFrames(index, Storage()).cached(budget, own_window)
    frames.cache.max_frames, frames.cache.keep_partners = own_window, False
    return frames


def read_samples(frames: LabelledFrames, keys: list[SampleKey]) -> None:
    for key in keys:
        for place, index in enumerate((key.frame, *(key.partners or ()))):
            image = frames.read(index, is_partner=place > 0).image
            assert image[0, 0] == index % 251


@pytest.mark.parametrize("length", LENGTHS)
def test_each_frame_is_a_partner_three_times_as_often_as_it_is_sampled(length: int) -> None:
    indices = Shuffled(length, frames=max(1, 3 * length // 4)).indices(0)
    partners = mosaic_partners(indices, slice(None))
    assert partners.shape == (length, 3)
    sampled = Counter(indices.tolist())
    assert Counter(partners.ravel().tolist()) == {frame: 3 * count for frame, count in sampled.items()}


@pytest.mark.parametrize("length", [24, 100, 4608])
def test_two_mosaics_have_at_most_one_frame_in_common(length: int) -> None:
    indices = Shuffled(length).indices(1)
    mosaics = np.column_stack((indices, mosaic_partners(indices, slice(None))))
    pairs = Counter(pair for four in mosaics.tolist() for pair in combinations(sorted(four), 2))
    assert set(pairs.values()) == {1}


@pytest.mark.parametrize("length", [48, 100, 4608])
def test_second_sample_of_mixup_has_other_frames_within_the_window(length: int) -> None:
    order = Shuffled(length)
    place = {frame: position for position, frame in enumerate(order.indices(0).tolist())}
    for batch in EpochBatchSampler(order, 8, has_mixup=True):
        for key in batch:
            assert key.second is not None
            assert len({key.frame, *(key.partners or ()), *key.second}) == 8
            assert {(place[key.frame] - place[frame]) % length for frame in key.second} == {
                distance * stride(length) for distance in (2, 3, 5, 7)
            }
    assert frames_to_cache(length, 1, 0, has_mixup=True) == 7 * stride(length)
    assert frames_to_cache(length, 1, 8, has_mixup=True) == 7 * stride(length) + 8


@pytest.mark.parametrize(
    ("length", "expected"), [(1, 1), (47, 1), (48, 1), (72, 3), (678, 24), (4607, 96), (4608, 192), (329_299, 192)]
)
def test_stride_by_length(length: int, expected: int) -> None:
    assert stride(length) == expected
    assert frames_to_cache(length, 1, 0) == 6 * expected


@pytest.mark.parametrize(("batch_size", "rank", "ranks"), [(1, 0, 1), (7, 0, 1), (8, 1, 2), (4, 2, 3)])
def test_partners_do_not_depend_on_batches_and_ranks(batch_size: int, rank: int, ranks: int) -> None:
    order = Shuffled(50)
    expected = {key.frame: key for key in next(iter(EpochBatchSampler(order, 50, has_mixup=True)))}
    keys = [key for batch in EpochBatchSampler(order, batch_size, rank, ranks, has_mixup=True) for key in batch]
    assert keys == [expected[key.frame] for key in keys]
    resumed = EpochBatchSampler(order, batch_size, rank, ranks, has_mixup=True)
    resumed.start = 20
    assert all(key == expected[key.frame] for batch in resumed for key in batch)


def reads_per_epoch(workers: int, batch_size: int, ranks: int = 1, length: int = LENGTH) -> int:
    own_window = frames_to_cache(length, workers * ranks, batch_size)
    frames = [[frames_of(length, own_window) for _ in range(workers)] for _ in range(ranks)]
    for rank in range(ranks):
        for number, keys in enumerate(EpochBatchSampler(Shuffled(length), batch_size, rank, ranks)):
            read_samples(frames[rank][number % workers], keys)
    assert all(len(worker_frames.cache) <= own_window for of_rank in frames for worker_frames in of_rank)
    return sum(worker_frames.storage.reads for of_rank in frames for worker_frames in of_rank)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("workers", "batch_size", "ranks"), [(1, 8, 1), (4, 8, 1), (6, 16, 1), (2, 8, 3)])
def test_each_frame_is_read_once_after_the_first_window(workers: int, batch_size: int, ranks: int) -> None:
    assert reads_per_epoch(workers, batch_size, ranks) == LENGTH + 11 * LARGEST_STRIDE
