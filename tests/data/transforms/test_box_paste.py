"""Pasted objects are complete, beside other objects, and have soft borders."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from yolo_lightning.data.transforms.box_paste import Region, object_region, overlap, paste, ramp, random_place
from yolo_lightning.data.transforms.letterbox import Labelled

SHAPE = (96, 128)
OBJECT = [40, 30, 60, 50]


def boxes(*rows: list[float]) -> npt.NDArray[np.float32]:
    return np.array(rows, dtype=np.float32).reshape(-1, 4)


def frame(image: npt.NDArray[Any], *rows: list[float]) -> Labelled:
    return Labelled(image, boxes(*rows), np.arange(len(rows)))


def test_overlap_is_the_share_of_the_smaller_box() -> None:
    all_boxes = boxes([0, 0, 10, 10], [5, 0, 15, 10], [2, 2, 4, 4], [20, 20, 30, 30])
    assert overlap(all_boxes[0], all_boxes).tolist() == [1, 0.5, 1, 0]


def test_region_of_a_single_object_contains_whole_pixels() -> None:
    region = object_region(boxes([40.6, 30.2, 59.1, 49.9], [90, 60, 100, 70]), 0, SHAPE)
    assert region is not None
    assert region[:4] == (40, 30, 20, 20)
    assert region.members.tolist() == [0]


def test_rider_is_cut_with_the_bicycle() -> None:
    region = object_region(boxes([45, 10, 55, 45], OBJECT, [90, 60, 100, 70]), 1, SHAPE)
    assert region is not None
    assert region[:4] == (40, 10, 20, 40)
    assert region.members.tolist() == [0, 1]


@pytest.mark.parametrize(
    "rows",
    [
        [[0, 30, 20, 50]],
        [[100, 30, 128, 50]],
        [OBJECT, [50, 35, 128, 45]],
        [OBJECT, [50, 10, 70, 45], [62, 20, 80, 40]],
        [[40, 30, 42, 50]],
    ],
    ids=["at the left border", "at the right border", "rider at the border", "part of a third object", "too small"],
)
def test_object_that_is_not_complete_is_not_used(rows: list[list[float]]) -> None:
    assert object_region(boxes(*rows), 0, SHAPE) is None


def region_of(row: list[float]) -> Region:
    region = object_region(boxes(row), 0, SHAPE)
    assert region is not None
    return region


def places(target: Labelled, count: int = 400) -> npt.NDArray[np.int64]:
    generator = np.random.default_rng(0)
    drawn = [random_place(region_of(OBJECT), SHAPE, target, generator) for _ in range(count)]
    return np.array([place for place in drawn if place is not None])


def test_object_is_pasted_near_its_place_relative_to_the_size_of_the_frame() -> None:
    assert np.abs(places(frame(np.zeros(SHAPE, np.uint8))) - (40, 30)).max() == 3  # 0.03 x 96 pixels, rounded
    large = places(frame(np.zeros((192, 256), np.uint8)))
    assert np.abs(large - (90, 70)).max() == 6  # centre (50, 40) x 2
    assert not len(places(frame(np.zeros((16, 16), np.uint8))))


def test_object_is_never_pasted_onto_another() -> None:
    target = frame(np.zeros(SHAPE, np.uint8), [20, 20, 35, 60])
    positions = places(target)
    assert 20 < len(positions) < 380
    assert max(overlap(region_of(OBJECT).around(*place), target.boxes).max() for place in positions.tolist()) == 0


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("channels", [(), (1,), (3,), (5,)])
def test_objects_of_every_format_are_pasted_unchanged(dtype: Any, channels: tuple[int, ...]) -> None:
    """Source and target have the same level around the object, so no level is shifted."""
    images = [np.full((*SHAPE, *channels), 100, dtype=dtype) for _ in range(2)]
    content = np.random.default_rng(1).integers(0, 256, (20, 20, *channels)).astype(dtype)
    images[0][30:50, 40:60] = content
    source, target = frame(images[0], OBJECT), frame(images[1], [1, 2, 3, 4])
    kept = [image.copy() for image in images]
    result = paste(target, source, region_of(OBJECT), 70, 60)
    assert result.image.dtype == dtype
    assert np.array_equal(result.image[60:80, 70:90], content)
    outside = np.ones(SHAPE, dtype=np.bool_)
    outside[60:80, 70:90] = False
    assert (result.image[outside] == 100).all()
    assert result.boxes.tolist() == [[1, 2, 3, 4], [70, 60, 90, 80]]
    assert result.labels.tolist() == [0, 0]
    assert all(np.array_equal(image, copy) for image, copy in zip(images, kept, strict=True))


def test_level_of_the_surroundings_is_that_of_the_new_place() -> None:
    image = np.full(SHAPE, 180, dtype=np.uint8)
    image[30:50, 40:60] = 220
    result = paste(frame(np.full(SHAPE, 60, np.uint8)), frame(image, OBJECT), region_of(OBJECT), 40, 30)
    assert (result.image[30:50, 40:60] == 100).all()
    assert (np.delete(result.image, range(30, 50), axis=0) == 60).all()


def test_levels_are_limited_to_the_range_of_the_type() -> None:
    image = np.full(SHAPE, 60, dtype=np.uint8)
    image[30:50, 40:60] = 200
    result = paste(frame(np.full(SHAPE, 180, np.uint8)), frame(image, OBJECT), region_of(OBJECT), 40, 30)
    assert (result.image[30:50, 40:60] == 255).all()


def test_border_is_blended_over_its_width() -> None:
    target = np.tile(np.linspace(0, 120, SHAPE[1]).astype(np.uint8), (SHAPE[0], 1))
    source = frame(np.full(SHAPE, 50, np.uint8), OBJECT)
    region = region_of(OBJECT)
    changed = paste(frame(target), source, region, 70, 60).image != target
    rows, columns = np.flatnonzero(changed.any(axis=1)), np.flatnonzero(changed.any(axis=0))
    assert rows.min() >= 60 - region.feather
    assert rows.max() < 80 + region.feather
    assert columns.min() >= 70 - region.feather
    assert columns.max() < 90 + region.feather
    assert ramp(3, 2, 1).tolist() == [0.25, 0.5, 0.75, 1, 1, 0.5]


@pytest.mark.parametrize("corner", [(0, 0), (108, 0), (0, 76), (108, 76)])
def test_object_in_a_corner_has_no_border_there(corner: tuple[int, int]) -> None:
    image = np.full(SHAPE, 50, np.uint8)
    image[30:50, 40:60] = 90
    result = paste(frame(np.full(SHAPE, 50, np.uint8)), frame(image, OBJECT), region_of(OBJECT), *corner)
    x, y = corner
    assert (result.image == 90).sum() == 400
    assert (result.image[y : y + 20, x : x + 20] == 90).all()
