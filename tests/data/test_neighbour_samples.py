"""Samples whose channels are neighbouring frames: storages, cache, bad frames, augmentation, loaders."""

import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.archives import write_zip
from tests.helpers.data_module import data_module
from yolo_lightning.commands.prepare.command import prepare
from yolo_lightning.data.datamodule import DetectionDataModule
from yolo_lightning.data.dataset import EvaluationDataset, TrainingDataset
from yolo_lightning.data.labelled_frames import LabelledFrames
from yolo_lightning.data.storage.folder_frames import FolderFrames
from yolo_lightning.data.synthetic import draw_dataset
from yolo_lightning.data.transforms.augmentation_settings import Augmentation
from yolo_lightning.data.transforms.photometric import random_photometry

OFFSETS = (-1, 0, 1)
PIXELS = 96 * 64
FRAMES = 28
STRONG = Augmentation(photometric=1, histogram_match=0.3, inversion=0.3, degrees=5, pixel_transforms=())


@pytest.fixture(scope="module")
def root(index_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A drawn dataset with clips of up to three frames, in a folder, an archive and a packed store."""
    made = tmp_path_factory.mktemp("stored") / "data"
    draw_dataset(made, train_frames=FRAMES, valid_frames=4, test_frames=4, width=96, height=64)
    write_zip(made / "frames.zip", {str(path.relative_to(made)): path.read_bytes() for path in made.rglob("*.jpg")})
    prepare(str(made), index_root=str(index_root), workers=1)
    return made


def module(root: Path, index_root: Path, **changed: Any) -> DetectionDataModule:
    options: dict[str, Any] = {"image_size": 96, "neighbours": OFFSETS, "kind": "folder", "batch_size": 4}
    return data_module(str(root), index_root=str(index_root), **options | changed)


@pytest.fixture
def frames(root: Path, index_root: Path) -> LabelledFrames:
    return module(root, index_root).open("train")


def samples(frames: LabelledFrames, settings: Augmentation = STRONG) -> list[np.ndarray]:
    training = TrainingDataset(frames, 96, settings, mosaic_epochs=1, seed=3)
    return [training[epoch, index].image for epoch in (0, 1) for index in range(len(training))]


def assert_equal(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))


def test_channels_are_the_frames_of_the_clip(frames: LabelledFrames) -> None:
    index, plain = frames.index, LabelledFrames(frames.index, frames.storage)
    order = np.lexsort((index.positions_in_clip(), index.clips())).tolist()
    edges = 0
    for place, position in enumerate(order):
        around = [order[min(max(place + offset, 0), len(order) - 1)] for offset in OFFSETS]
        same_clip = [other if index.clips()[other] == index.clips()[position] else position for other in around]
        edges += same_clip != around
        expected = np.stack([plain.read(other).image for other in same_clip], axis=-1)
        read = frames.read(position)
        assert read.problem is None
        assert np.array_equal(read.image, expected)
        assert np.array_equal(read.boxes, plain.read(position).boxes)
    assert 0 < edges < len(order)


@pytest.mark.parametrize("storage", ["zip", "packed"])
def test_storages_give_the_same_samples(storage: str, root: Path, index_root: Path, frames: LabelledFrames) -> None:
    other = module(root, index_root, kind=storage).open("train")
    assert type(other.storage) is not type(frames.storage)
    assert_equal(samples(other), samples(frames))
    evaluated = (EvaluationDataset(one, 96) for one in (frames, other))
    assert_equal(*([dataset[index].image for index in range(len(dataset))] for dataset in evaluated))


@pytest.mark.parametrize("budget", [9, FRAMES], ids=["frames of the window", "all frames"])
def test_cache_changes_no_sample(frames: LabelledFrames, monkeypatch: pytest.MonkeyPatch, budget: int) -> None:
    expected = samples(frames)
    monkeypatch.setattr("yolo_lightning.data.labelled_frames.MIB", budget * PIXELS)
    cached = frames.cached(1, window=3)
    assert (cached.cache.max_frames, cached.cache.keep_partners) == ((9, False) if budget == 9 else (FRAMES, True))
    assert_equal(samples(cached), expected)
    assert 0 < len(cached.cache) <= cached.cache.max_frames
    assert_equal(samples(pickle.loads(pickle.dumps(cached))), expected)


def test_cached_neighbours_are_not_read_again(frames: LabelledFrames, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    read = FolderFrames.read
    monkeypatch.setattr(FolderFrames, "read", lambda self, name: asked.append(name) or read(self, name))
    for cached in (frames.cached(1, window=FRAMES), frames.cached_in_order(1)):
        asked.clear()
        for index in range(len(cached)):
            cached.read(index)
        assert sorted(asked) == sorted(frames.index.file_names())
    assert len(cached.cache) == len(OFFSETS)


def test_bad_neighbour_is_replaced_and_named(root: Path, index_root: Path, tmp_path: Path) -> None:
    copy = tmp_path / "data"
    shutil.copytree(root, copy)
    frames = module(copy, tmp_path / "index").open("train")
    assert frames.neighbours is not None
    index = next(position for position in range(FRAMES) if len(set(frames.neighbours.positions(position))) == 3)
    _, own, after = frames.neighbours.positions(index)
    (copy / frames.index.file_name(after)).write_bytes(b"torn")
    expected = LabelledFrames(frames.index, frames.storage).read(own).image
    sample = EvaluationDataset(frames, 96)[index]
    problems: list[str] = []
    read = frames.read(index, problems=problems)
    assert read.problem is None
    assert np.array_equal(read.image[..., 2], expected)
    assert not np.array_equal(read.image[..., 0], expected)
    assert sample.readable
    assert sample.bad_frames == tuple(problems)
    assert problems[0].startswith(f"{frames.index.file_name(after)}: ")
    unreadable = EvaluationDataset(frames, 96)[after]
    assert (unreadable.readable, unreadable.image.shape, set(unreadable.image.ravel())) == (False, (96, 96, 3), {114})
    frames.quarantined = frozenset({own})
    assert "data.limits.quarantine" in EvaluationDataset(frames, 96)[own].bad_frames[0]


@pytest.mark.parametrize("offsets", [(-1, 0), (-2, -1, 0, 1, 2)])
def test_any_number_of_channels_is_augmented(root: Path, index_root: Path, offsets: tuple[int, ...]) -> None:
    data = module(root, index_root, neighbours=offsets)
    assert data.input_channels == len(offsets)
    assert {image.shape for image in samples(data.open("train"))} == {(96, 96, len(offsets))}


CLAHE = ({"name": "CLAHE", "p": 1.0}, {"name": "GaussNoise", "p": 1.0})


@pytest.mark.parametrize(
    "settings", [replace(STRONG, noise=0), Augmentation(photometric=0, pixel_transforms=CLAHE)], ids=["drift", "CLAHE"]
)
def test_equal_frames_are_changed_equally(settings: Augmentation) -> None:
    image = np.random.default_rng(0).integers(0, 256, (32, 48, 1), dtype=np.uint8)
    changed = 0
    for seed in range(30):
        single, found = (
            random_photometry(one, settings, np.random.default_rng(seed), image[..., 0], is_gray=True)
            for one in (image[..., 0], image.repeat(5, axis=2))
        )
        assert (found == found[..., :1]).all()
        assert np.abs(found[..., 0].astype(int) - single).max() <= 3  # rounding of the histograms
        changed += not np.array_equal(single, image[..., 0])
    assert changed


def test_formats_without_clips_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"^data\.input\.neighbours must be \[\] with data\.format coco, whose images do not"
    ):
        data_module(str(tmp_path), format="coco", neighbours=OFFSETS)
