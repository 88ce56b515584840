"""Box formats and the letterbox geometry."""

import numpy as np
import pytest
import torch

from yolo_lightning.data.array_types import Float32Array
from yolo_lightning.data.boxes import (
    Letterbox,
    clip_boxes,
    clip_to_frame,
    corners_to_centres,
    frame_to_input,
    input_to_frame,
    scaled_shape,
    xywh_to_xyxy,
)
from yolo_lightning.data.image_size import ImageSize

SHAPES = [(288, 384), (384, 288), (512, 640), (640, 640), (333, 77), (7, 1000), (1, 1)]
SIZES = [32, 160, 640]


def random_boxes(height: int, width: int, count: int = 20) -> Float32Array:
    corners = np.random.default_rng(0).uniform(0, 1, (count, 2, 2)) * (width, height)
    return np.concatenate((corners.min(axis=1), corners.max(axis=1)), axis=1).astype(np.float32)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("height", "width"), SHAPES)
def test_letterbox_there_and_back_is_the_identity(height: int, width: int, size: int) -> None:
    boxes = random_boxes(height, width)
    placement = Letterbox.fit(height, width, ImageSize(size, size))
    there = frame_to_input(boxes, placement)
    back = input_to_frame(torch.from_numpy(there), placement)
    np.testing.assert_allclose(back.numpy(), boxes, rtol=0, atol=1e-3)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("height", "width"), SHAPES)
def test_letterbox_fills_the_longer_side_and_centres_the_other(height: int, width: int, size: int) -> None:
    placement = Letterbox.fit(height, width, ImageSize(size, size))
    scaled_height, scaled_width = scaled_shape(height, width, placement.gain)
    assert max(scaled_height, scaled_width) == size
    assert size - scaled_height - 2 * placement.top in (0, 1)
    assert size - scaled_width - 2 * placement.left in (0, 1)


def test_known_placement_of_an_ltdv2_frame() -> None:
    assert Letterbox.fit(288, 384, ImageSize(640, 640)) == Letterbox(640 / 384, left=0, top=80)


@pytest.mark.parametrize(("height", "width", "size"), [(512, 640, 416), (757, 1000, 320), (288, 384, 640)])
def test_box_of_the_whole_frame_covers_the_whole_pixels_of_the_scaled_frame(height: int, width: int, size: int) -> None:
    """A side of 332.8 pixels is drawn with 333: boxes that are scaled by the gain alone would lie 0.3 pixels off."""
    placement = Letterbox.fit(height, width, ImageSize(size, size))
    rows, columns = scaled_shape(height, width, placement.gain)
    (box,) = frame_to_input(np.array([[0, 0, width, height]], np.float32), placement)
    x = placement.left
    y = placement.top
    assert box.tolist() == pytest.approx([x, y, x + columns, y + rows], abs=1e-4)


def test_boxes_in_the_padding_lie_outside_the_frame_until_they_are_clipped() -> None:
    placement = Letterbox.fit(288, 384, ImageSize(640, 640))
    whole_input = torch.tensor([[0.0, 0.0, 640.0, 640.0], [-50.0, 100.0, 700.0, 110.0]])
    unclipped = input_to_frame(whole_input, placement)
    assert unclipped[0].tolist() == [0, -48, 384, 336]
    clipped = clip_to_frame(unclipped, (288, 384))
    assert clipped[0].tolist() == [0, 0, 384, 288]
    assert clipped[1, [0, 2]].tolist() == [0, 384]


def test_clip_boxes_cuts_each_side_at_its_own_limit() -> None:
    boxes = np.array([[-5, -6, 500, 400], [1, 2, 3, 4]], dtype=np.float32)
    assert clip_boxes(boxes, height=288, width=384).tolist() == [[0, 0, 384, 288], [1, 2, 3, 4]]


def test_corners_to_centres_is_undone_by_xywh_to_xyxy() -> None:
    boxes = random_boxes(288, 384)
    there = corners_to_centres(boxes)
    np.testing.assert_allclose(xywh_to_xyxy(torch.from_numpy(there)).numpy(), boxes, rtol=0, atol=1e-4)
