"""Rectangular inputs: letterbox, mosaic and affine map keep boxes on their objects."""

from dataclasses import replace

import numpy as np
import pytest

from tests.data.transforms.test_mosaic import (
    STILL,
    assert_box_is_on_the_object,
    bright_pixels,
    empty_frame,
    frame_of_noise,
    one_object,
)
from yolo_lightning.data.boxes import Letterbox
from yolo_lightning.data.image_size import ImageSize
from yolo_lightning.data.transforms.augmentation_settings import Augmentation
from yolo_lightning.data.transforms.letterbox import PADDING, Labelled, letterbox
from yolo_lightning.data.transforms.mosaic import mosaic, random_affine

SIZE = ImageSize(96, 128)


def test_frame_of_the_shape_of_the_input_needs_no_padding() -> None:
    image = frame_of_noise(96, 128)
    placed, placement = letterbox(Labelled(image, *empty_frame(96, 128)[1:]), SIZE, shrink_by_area=True)
    assert placement == Letterbox(1.0, 0, 0)
    assert np.array_equal(placed.image, image)


@pytest.mark.parametrize(("shape", "expected"), [((48, 128), (1.0, 0, 24)), ((192, 64), (0.5, 48, 0))])
def test_other_shapes_are_centred(shape: tuple[int, int], expected: tuple[float, int, int]) -> None:
    frame = one_object(*shape, (20, 16, 40, 40))
    placed, placement = letterbox(frame, SIZE, shrink_by_area=True)
    assert (placement.gain, placement.left, placement.top) == expected
    assert placed.image.shape == SIZE
    assert_box_is_on_the_object(placed, tolerance=1.5)


def test_mosaic_has_twice_the_sides_of_the_input() -> None:
    levels = (20, 60, 180, 220)
    result = mosaic([empty_frame(192, 256, level) for level in levels], SIZE, np.random.default_rng(0))
    assert (result.image.shape, result.gain) == ((192, 256), 1)
    corners = [result.image[row, column] for row in (90, 110) for column in (120, 140)]
    assert set(result.image.ravel().tolist()) <= {*levels, PADDING}
    assert len(set(corners)) > 1


@pytest.mark.parametrize("degrees", [0, 1e-9], ids=["cut", "warp"])
def test_augmented_mosaic_keeps_the_box_on_its_object(degrees: float) -> None:
    kept = 0
    for seed in range(12):
        generator = np.random.default_rng(seed)
        frames = [one_object(60, 80, (30, 20, 50, 40)), *[empty_frame(80, 60)] * 3]
        result = random_affine(mosaic(frames, SIZE, generator), SIZE, Augmentation(degrees=degrees), generator)
        assert (result.image.shape, result.gain) == (SIZE, 1)
        if len(result.boxes):
            assert_box_is_on_the_object(result, tolerance=3.0)
            kept += 1
        else:
            assert bright_pixels(result.image).mean() < 0.01
    assert kept > 3


def test_shift_is_a_fraction_of_each_side() -> None:
    shifted = replace(STILL, translate=0.4)
    frame = one_object(96, 128, (56, 40, 72, 56))
    results = [random_affine(frame, SIZE, shifted, np.random.default_rng(seed)) for seed in range(60)]
    centres = np.array([(result.boxes[0, :2] + result.boxes[0, 2:]) / 2 for result in results if len(result.boxes)])
    reach = np.abs(centres - (64, 48)).max(axis=0)
    assert 40 < reach[0] < 0.4 * 128 + 1
    assert 30 < reach[1] < 0.4 * 96 + 1
