"""Samples: reproducible from (seed, epoch, index), and the replacement of unusable frames."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest

from yolo_lightning.data.batch import Sample
from yolo_lightning.data.boxes import Letterbox
from yolo_lightning.data.dataset import EvaluationDataset, TrainingDataset
from yolo_lightning.data.image_size import ImageSize, Resize
from yolo_lightning.data.labelled_frames import LabelledFrames
from yolo_lightning.data.sampling.resumable_loader import SampleKey
from yolo_lightning.data.storage.storage import Storage
from yolo_lightning.data.transforms.augmentation_settings import Augmentation
from yolo_lightning.data.transforms.letterbox import PADDING, letterbox

Split = Callable[..., LabelledFrames]

BOXES = [
    [[10, 10, 30, 20], [40, 5, 10, 30]],
    [],
    [[0, 0, 64, 48]],
    [[30, 20, 20, 20]],
    [[5, 5, 20, 30]],
    [[8, 8, 40, 9]],
]
TORN = 3
KEYS = [(epoch, index) for epoch in range(2) for index in range(len(BOXES))]
DEFAULT = Augmentation()
STILL = Augmentation(mosaic=0, translate=0, scale=0, flip_horizontal=0, photometric=0)


class CountingSource:
    """Passes on to another source and keeps the names that were read."""

    def __init__(self, source: Storage) -> None:
        self.source = source
        self.names: list[str] = []

    def read(self, name: str) -> npt.NDArray[Any]:
        self.names.append(name)
        return self.source.read(name)

    def missing(self, names: Iterable[str]) -> list[str]:
        return self.source.missing(names)


@pytest.fixture
def frames(split: Split) -> LabelledFrames:
    return split(BOXES)


@pytest.fixture
def torn_frames(split: Split, tmp_path: Path) -> LabelledFrames:
    frames = split(BOXES)
    path = tmp_path / frames.index.file_name(TORN)
    path.write_bytes(path.read_bytes()[:-100])
    return frames


def training(frames: LabelledFrames, augmentation: Augmentation = DEFAULT, seed: int = 0) -> TrainingDataset:
    return TrainingDataset(frames, 64, augmentation, seed)


def same(first: Sample, second: Sample) -> bool:
    return (
        np.array_equal(first.image, second.image)
        and np.array_equal(first.boxes, second.boxes)
        and np.array_equal(first.labels, second.labels)
        and first.image_id == second.image_id
    )


def test_random_numbers_of_a_sample_come_from_its_key(frames: LabelledFrames, monkeypatch: pytest.MonkeyPatch) -> None:
    default_rng, asked = np.random.default_rng, []
    monkeypatch.setattr(np.random, "default_rng", lambda seed: asked.append(seed) or default_rng(seed))
    dataset = training(frames, STILL, seed=9)
    for key in ((4, 5), SampleKey(4, 5, 0), SampleKey(4, 5, 1)):
        dataset[key]
    assert asked == [(2, 9, 4, 5), (2, 9, 4, 5), (2, 9, 4, 5, 1)]


def test_training_sample_has_the_documented_content(frames: LabelledFrames) -> None:
    sample = training(frames)[0, 2]
    assert (sample.image_id, sample.frame_shape) == ("20200502114223917", (48, 64))
    assert (sample.readable, sample.bad_frames) == (True, ())
    assert (sample.image.shape, sample.image.dtype) == ((64, 64), np.uint8)
    assert (sample.boxes.dtype, sample.labels.dtype) == (np.float32, np.int64)
    assert sample.image.flags.c_contiguous


@pytest.mark.parametrize(("has_mosaic", "reads"), [(True, 4), (False, 1)])
def test_key_enables_mosaic(frames: LabelledFrames, has_mosaic: bool, reads: int) -> None:
    source = CountingSource(frames.storage)
    training(LabelledFrames(frames.index, source))[SampleKey(2, 0, has_mosaic=has_mosaic)]
    assert len(source.names) == reads
    assert source.names[0] == frames.index.file_name(0)


def test_mosaic_is_made_in_its_share_of_samples(frames: LabelledFrames) -> None:
    source = CountingSource(frames.storage)
    dataset = training(LabelledFrames(frames.index, source), Augmentation(mosaic=0.5))
    for epoch in range(60):
        dataset[epoch, 0]
    assert 20 <= (len(source.names) - 60) / 3 <= 40


def test_without_augmentation_a_training_sample_is_the_letterboxed_frame(frames: LabelledFrames) -> None:
    sample = training(frames, STILL)[0, 0]
    plain = EvaluationDataset(frames, 64)[0]
    assert np.array_equal(sample.image, plain.image)
    assert np.array_equal(sample.boxes, plain.boxes)
    assert sample.labels.tolist() == [0, 1]


def test_torn_frame_gives_an_unreadable_sample_without_boxes(torn_frames: LabelledFrames) -> None:
    sample = training(torn_frames, STILL)[0, TORN]
    assert not sample.readable
    assert len(sample.bad_frames) == 1
    assert sample.bad_frames[0].startswith(torn_frames.index.file_name(TORN) + ": ")
    assert (sample.image == PADDING).all()
    assert (len(sample.boxes), len(sample.labels)) == (0, 0)
    assert sample.image_id == torn_frames.index.image_id(TORN)


def test_torn_frame_in_a_mosaic_is_named_but_the_sample_stays_readable(torn_frames: LabelledFrames) -> None:
    torn_name = torn_frames.index.file_name(TORN)
    source = CountingSource(torn_frames.storage)
    dataset = training(LabelledFrames(torn_frames.index, source))
    named = 0
    for epoch in range(10):
        source.names.clear()
        sample = dataset[epoch, 0]
        assert sample.readable
        assert len(sample.bad_frames) == source.names.count(torn_name)
        assert all(problem.startswith(torn_name) for problem in sample.bad_frames)
        named += len(sample.bad_frames)
    assert named > 0


@pytest.mark.parametrize("problem", ["torn", "missing", "other-size"])
def test_evaluation_sample_of_a_bad_frame_is_unreadable(frames: LabelledFrames, tmp_path: Path, problem: str) -> None:
    path = tmp_path / frames.index.file_name(TORN)
    if problem == "torn":
        path.write_bytes(path.read_bytes()[:-100])
    elif problem == "missing":
        path.unlink()
    else:
        cv2.imwrite(str(path), np.zeros((64, 48), np.uint8))
    samples = [EvaluationDataset(frames, 64)[index] for index in range(len(BOXES))]
    assert [sample.readable for sample in samples] == [index != TORN for index in range(len(BOXES))]
    assert [len(sample.bad_frames) for sample in samples] == [int(index == TORN) for index in range(len(BOXES))]
    assert (samples[TORN].image.shape, len(samples[TORN].boxes)) == ((64, 64), 0)


def test_frame_of_other_size_is_named_with_both_sizes(frames: LabelledFrames, tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / frames.index.file_name(1)), np.zeros((64, 48), np.uint8))
    (problem,) = EvaluationDataset(frames, 64)[1].bad_frames
    assert problem == (
        f"{frames.index.file_name(1)}: the file has 48 x 64 pixels, "
        "the annotation of image 20200502114223916 has 64 x 48; width and height are exchanged"
    )


def test_evaluation_sample_is_the_letterboxed_frame_with_its_boxes(frames: LabelledFrames) -> None:
    sample = EvaluationDataset(frames, 128)[0]
    assert sample.letterbox == Letterbox(2.0, 0, 16)
    assert sample.boxes.tolist() == [[20, 36, 80, 76], [80, 26, 100, 86]]
    assert (sample.image[:16] == PADDING).all()
    assert sample.image_id == "20200502114223915"
    assert sample.month == 202005


@pytest.mark.parametrize("resize", ["area", "linear"])
def test_frames_larger_than_the_input_are_reduced_as_configured(frames: LabelledFrames, resize: Resize) -> None:
    frames.resize = resize
    image = EvaluationDataset(frames, 24)[0].image
    linear, _ = letterbox(frames.read(0), ImageSize(24, 24), shrink_by_area=False)
    assert np.array_equal(image, linear.image) == (resize == "linear")


def test_error_that_nobody_expects_names_the_image(frames: LabelledFrames, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> npt.NDArray[np.uint8]:
        raise RuntimeError(f"broken codec at {name}")

    monkeypatch.setattr(frames.storage, "read", fail)
    with pytest.raises(RuntimeError) as caught:
        frames.read(2)
    assert caught.value.__notes__ == [f"while reading image id={frames.index.image_id(2)}"]
