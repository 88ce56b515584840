"""Transforms of albumentations that a configuration names."""

from typing import Any

import numpy as np
import pytest

from yolo_lightning.data.transforms.augmentation_settings import Augmentation, apply_pixel_transforms
from yolo_lightning.data.transforms.photometric import random_photometry

NOISY = ({"name": "GaussNoise", "std_range": [0.1, 0.1], "p": 1.0},)
IMAGE = np.full((48, 64), 100, dtype=np.uint8)


def apply(seed: int, transforms: tuple[dict[str, Any], ...] = NOISY) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.asarray(apply_pixel_transforms(IMAGE, transforms, np.random.default_rng(seed)), dtype=np.uint8)


def test_transform_is_seeded_by_the_sample_alone() -> None:
    first, other = apply(0), apply(1)
    assert np.array_equal(apply(0), first)
    assert not np.array_equal(first, other)
    assert (first.shape, first.dtype) == (IMAGE.shape, np.uint8)


def test_transforms_run_in_order() -> None:
    inverted, shifted = {"name": "InvertImg", "p": 1.0}, {"name": "Posterize", "num_bits": 1, "p": 1.0}
    assert (apply(0, (inverted, shifted)) == 128).all()
    assert (apply(0, (shifted, inverted)) == 255).all()


def test_photometry_ends_with_the_transforms_in_every_sample() -> None:
    settings = Augmentation(photometric=0, pixel_transforms=({"name": "InvertImg", "p": 1.0},))
    assert all((random_photometry(IMAGE, settings, np.random.default_rng(seed)) == 155).all() for seed in range(5))


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        ({}, "name must be a pixel-level .* got None"),
        ({"name": "Rotate"}, "name must be a pixel-level .* got 'Rotate'"),
        ({"name": "random"}, "name must be a pixel-level .* got 'random'"),
        ({"name": "CLAHE", "clip": 3}, "CLAHE rejects .*'clip'"),
        ({"name": "CLAHE", "clip_limit": "high"}, "CLAHE rejects .*'high'"),
        ({"name": "ISONoise"}, "ISONoise rejects"),
        ({"name": "ToRGB"}, "ToRGB does not turn a gray image into a gray image"),
    ],
)
def test_transform_that_cannot_work_is_refused(transform: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Augmentation(pixel_transforms=(transform,))
