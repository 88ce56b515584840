"""Training samples with mixup and box paste: reproducible from their key, and the rest of the sample unchanged."""

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.data.test_dataset import same, training
from yolo_lightning.data.labelled_frames import LabelledFrames
from yolo_lightning.data.sampling.resumable_loader import SampleKey
from yolo_lightning.data.transforms.augmentation_settings import Augmentation, BoxPaste

Split = Callable[..., LabelledFrames]

BOXES = [[[10, 10, 8, 6]], [[30, 25, 8, 8]], [[45, 8, 9, 9]], [[20, 30, 7, 12]], [[50, 30, 8, 8]]]
PASTE = BoxPaste(1.0, count=3)
PLAIN = Augmentation(mosaic=0, photometric=0, histogram_match=0)
KEYS = [SampleKey(epoch, frame, occurrence) for epoch in (0, 1) for frame in range(3) for occurrence in (0, 1)]


@pytest.fixture
def frames(split: Split) -> LabelledFrames:
    return split(BOXES)


@pytest.mark.parametrize(
    "augmentation",
    [replace(PLAIN, mixup=1.0), replace(PLAIN, paste=PASTE), Augmentation(mixup=0.5, paste=PASTE)],
    ids=["mixup", "box paste", "both in mosaics"],
)
def test_sample_depends_on_its_key_alone(frames: LabelledFrames, augmentation: Augmentation) -> None:
    first = training(frames, augmentation)
    samples = {key: first[key] for key in KEYS}
    again = pickle.loads(pickle.dumps(training(frames, augmentation)))
    assert all(same(again[key], samples[key]) for key in reversed(KEYS))
    assert len({sample.image.tobytes() for sample in samples.values()}) == len(KEYS)


def test_box_paste_adds_boxes_and_moves_no_other(frames: LabelledFrames) -> None:
    pasting, plain = training(frames, replace(PLAIN, paste=PASTE)), training(frames, PLAIN)
    added = 0
    for key in KEYS:
        sample = pasting[key]
        expected = plain[key]
        count = len(expected.boxes)
        assert np.array_equal(sample.boxes[:count], expected.boxes)
        assert (len(sample.boxes) > count) == (not np.array_equal(sample.image, expected.image))
        added += len(sample.boxes) - count
    assert added > len(KEYS) / 2


def test_mixup_blends_the_sample_with_that_of_the_second_frame(frames: LabelledFrames) -> None:
    still = replace(PLAIN, translate=0, scale=0, flip_horizontal=0, mixup=1.0)
    sample = training(frames, still)[SampleKey(0, 1, 0, (), (3, 0, 0, 0))]
    first, second = (training(frames, replace(still, mixup=0))[0, index] for index in (1, 3))
    assert np.array_equal(sample.boxes, np.concatenate((first.boxes, second.boxes)))
    low, high = np.minimum(first.image, second.image), np.maximum(first.image, second.image)
    assert ((sample.image >= low.astype(int) - 1) & (sample.image <= high)).all()
    mean = (first.image.astype(int) + second.image) / 2
    assert np.abs(sample.image - mean).mean() < 0.5 * np.abs(first.image - mean).mean()
    assert sample.image_id == first.image_id


def test_mixup_occurs_in_its_fraction_of_the_samples(frames: LabelledFrames) -> None:
    dataset, plain = training(frames, replace(PLAIN, mixup=0.3)), training(frames, PLAIN)
    keys = [(epoch, frame) for epoch in range(25) for frame in range(4)]
    mixed = sum(not np.array_equal(dataset[key].image, plain[key].image) for key in keys)
    assert 15 <= mixed <= 45


def test_last_epochs_have_neither_mixup_nor_pasted_objects(frames: LabelledFrames) -> None:
    mixing = training(frames, replace(PLAIN, mixup=1.0, paste=PASTE))
    plain = training(frames, PLAIN)
    keys = [SampleKey(epoch, 0, has_mosaic=epoch < 1) for epoch in range(3)]
    assert [same(mixing[key], plain[key]) for key in keys] == [False, True, True]


def test_unreadable_source_is_reported_and_leaves_the_sample(frames: LabelledFrames, tmp_path: Path) -> None:
    """The second frame of each mixture and the sources of objects are missing."""
    names = [frames.index.file_name(index) for index in range(1, 5)]
    plain = training(frames, PLAIN)[0, 0]
    for name in names:
        (tmp_path / name).unlink()
    sample = training(frames, replace(PLAIN, paste=PASTE))[0, 0]
    assert same(sample, plain)
    assert sample.readable
    assert sample.bad_frames
    mixed = training(frames, replace(PLAIN, mixup=1.0))[SampleKey(0, 0, 0, (), (2, 0, 0, 0))]
    assert mixed.readable
    assert mixed.bad_frames[0].startswith(names[1])
    assert np.array_equal(mixed.boxes, plain.boxes)


def test_unreadable_frame_receives_no_object(frames: LabelledFrames, tmp_path: Path) -> None:
    (tmp_path / frames.index.file_name(2)).unlink()
    sample = training(frames, replace(PLAIN, paste=PASTE))[0, 2]
    assert (len(sample.boxes), sample.readable) == (0, False)
