"""Frames in colour: jitter like Ultralytics', geometry channel by channel, samples and batches of three channels."""

from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

from yolo_lightning.data.batch import collate
from yolo_lightning.data.dataset import EvaluationDataset, TrainingDataset
from yolo_lightning.data.formats.yolo import YoloSplit
from yolo_lightning.data.formats.yolo_description import read_description
from yolo_lightning.data.image_size import ImageSize
from yolo_lightning.data.index.split_index import open_packed
from yolo_lightning.data.input_settings import Channels
from yolo_lightning.data.labelled_frames import LabelledFrames
from yolo_lightning.data.storage.folder_frames import ImageFiles
from yolo_lightning.data.transforms.augmentation_settings import Augmentation
from yolo_lightning.data.transforms.letterbox import PADDING, Labelled, letterbox
from yolo_lightning.data.transforms.mosaic import mosaic, random_affine, random_flip
from yolo_lightning.data.transforms.photometric import random_colour, random_photometry

YoloSet = Callable[..., Path]
STILL = Augmentation(mosaic=0, translate=0, scale=0, flip_horizontal=0, hsv_hue=0, hsv_saturation=0, hsv_value=0)
NAMES = [f"train/{number}.png" for number in range(6)]
LABEL = "0 0.5 0.5 0.5 0.5\n1 0.25 0.5 0.25 0.75\n"


def noise(seed: int, height: int = 40, width: int = 60) -> np.ndarray:
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    return cv2.resize(coarse, (width, height))


def frames(file: Path, channels: Channels) -> LabelledFrames:
    split = YoloSplit(read_description(file), "train")
    index = open_packed("train", split.state(), split.read, file.parent / "index")
    return LabelledFrames(index, ImageFiles(file.parent, channels), channels)


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("seed", range(5))
def test_jitter_is_that_of_ultralytics(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from ultralytics.data.augment import RandomHSV

    settings = Augmentation(hsv_hue=0.3, hsv_saturation=0.7, hsv_value=0.4)
    image = noise(seed)
    monkeypatch.setattr(np.random, "uniform", lambda low, high, size: generator(seed).uniform(low, high, size))
    labels = {"img": np.ascontiguousarray(image[..., ::-1])}
    expected = RandomHSV(settings.hsv_hue, settings.hsv_saturation, settings.hsv_value).apply_image(labels)
    expected = labels["img"] if expected is None else expected["img"]
    assert np.array_equal(random_colour(image, settings, generator(seed)), expected[..., ::-1])
    assert not np.array_equal(expected[..., ::-1], image)


def test_jitter_leaves_its_input_and_what_has_no_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    image = noise(0)
    before = image.copy()
    random_colour(image, Augmentation(), generator())
    assert np.array_equal(image, before)
    gray = np.repeat(noise(1)[..., :1], 3, axis=2)
    changed = random_colour(gray, Augmentation(hsv_value=0), generator())
    assert np.array_equal(changed, gray)


def test_no_jitter_draws_nothing() -> None:
    source = generator()
    assert random_colour(noise(0), STILL, source) is not None
    assert source.random() == generator().random()


def test_thermal_drift_is_for_gray_frames_and_jitter_for_the_others() -> None:
    drift = Augmentation(photometric=1, hsv_hue=0, hsv_saturation=0, hsv_value=0, inversion=1)
    jitter = Augmentation(photometric=0, inversion=0)
    image = noise(0)
    assert np.array_equal(random_photometry(image, drift, generator()), image)
    assert not np.array_equal(random_photometry(image, jitter, generator()), image)
    assert not np.array_equal(random_photometry(image[..., 0], drift, generator()), image[..., 0])
    assert np.array_equal(random_photometry(image[..., 0], jitter, generator()), image[..., 0])


def test_pixel_transforms_see_colour() -> None:
    settings = Augmentation(hsv_hue=0, hsv_saturation=0, hsv_value=0, pixel_transforms=({"name": "InvertImg", "p": 1},))
    assert np.array_equal(random_photometry(noise(0), settings, generator()), 255 - noise(0))


@pytest.mark.parametrize("settings", [Augmentation(), Augmentation(degrees=20, shear=5), Augmentation(scale=0.9)])
@pytest.mark.parametrize("mosaicked", [False, True])
def test_each_channel_goes_where_a_gray_frame_would(settings: Augmentation, mosaicked: bool) -> None:
    boxes, labels = np.array([[5, 5, 30, 20]], np.float32), np.zeros(1, np.int64)

    def arranged(channel: int | slice) -> Labelled:
        source = generator(3)
        parts = [Labelled(noise(seed, 40 + seed, 60 - seed)[..., channel], boxes, labels) for seed in range(4)]
        first = (
            mosaic(parts, ImageSize(64, 64), source)
            if mosaicked
            else letterbox(parts[0], ImageSize(64, 64), shrink_by_area=False)[0]
        )
        return random_flip(random_affine(first, ImageSize(64, 64), settings, source), settings, source)

    whole = arranged(slice(None))
    assert whole.image.shape == (64, 64, 3)
    for channel in range(3):
        alone = arranged(channel)
        assert np.array_equal(whole.image[..., channel], alone.image)
        assert np.array_equal(whole.boxes, alone.boxes)


def test_batch_is_red_green_blue_planes(yolo_set: YoloSet) -> None:
    file = yolo_set(dict.fromkeys(NAMES, LABEL))
    for position, colour in enumerate(((255, 0, 0), (0, 255, 0), (0, 0, 255))):
        bgr = np.full((64, 64, 3), colour[::-1], np.uint8)
        cv2.imwrite(str(file.parent / "images" / NAMES[position]), bgr)
    dataset = EvaluationDataset(frames(file, 3), 64)
    images = collate([dataset[index] for index in range(3)]).images
    assert images.shape == (3, 3, 64, 64)
    assert images.is_contiguous()
    for position in range(3):
        means = images[position].float().mean(dim=(1, 2)).tolist()
        assert means == [255 * float(channel == position) for channel in range(3)]


def test_image_that_cannot_be_read_is_empty_gray_on_three_channels(yolo_set: YoloSet) -> None:
    file = yolo_set(dict.fromkeys(NAMES, LABEL))
    (file.parent / "images" / NAMES[0]).write_bytes(b"torn")
    sample = TrainingDataset(frames(file, 3), 64, STILL, seed=0)[0, 0]
    assert (sample.readable, sample.image.shape, len(sample.boxes)) == (False, (64, 64, 3), 0)
    assert (sample.image == PADDING).all()


def test_colour_frames_lend_no_histogram(yolo_set: YoloSet, monkeypatch: pytest.MonkeyPatch) -> None:
    lending = Augmentation(mosaic=0, histogram_match=1)
    file = yolo_set(dict.fromkeys(NAMES, LABEL))
    reads: list[str] = []
    read = ImageFiles.read
    monkeypatch.setattr(ImageFiles, "read", lambda self, name: reads.append(name) or read(self, name))
    TrainingDataset(frames(file, 3), 64, lending, seed=0)[0, 0]
    assert len(reads) == 1
    TrainingDataset(frames(file, 1), 64, lending, seed=0)[0, 0]
    assert len(reads) == 3
