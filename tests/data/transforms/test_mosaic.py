"""Geometry keeps boxes on their objects."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings, strategies as st

from yolo_lightning.data.array_types import Float32Array
from yolo_lightning.data.dataset import MIXUP_BETA
from yolo_lightning.data.image_size import ImageSize
from yolo_lightning.data.transforms.augmentation_settings import Augmentation
from yolo_lightning.data.transforms.letterbox import PADDING, Labelled, letterbox, resize_frame
from yolo_lightning.data.transforms.mosaic import (
    Image,
    cut,
    map_boxes,
    mixup,
    mosaic,
    random_affine,
    random_flip,
    still_visible,
)

BRIGHT = 255
STILL = Augmentation(translate=0, scale=0, flip_horizontal=0, flip_vertical=0, photometric=0)
"""Settings that move nothing."""


def one_object(height: int, width: int, box: tuple[int, int, int, int], label: int = 0) -> Labelled:
    """A dark frame with one bright rectangle, which is the box."""
    image = np.zeros((height, width), dtype=np.uint8)
    x1, y1, x2, y2 = box
    image[y1:y2, x1:x2] = BRIGHT
    return Labelled(image, np.array([box], dtype=np.float32), np.array([label]))


def empty_frame(height: int, width: int, level: int = 0) -> Labelled:
    image = np.full((height, width), level, dtype=np.uint8)
    return Labelled(image, np.zeros((0, 4), np.float32), np.zeros(0, np.int64))


def outline(chosen: npt.NDArray[np.bool_]) -> list[int]:
    """The xyxy box around the chosen pixels."""
    rows, columns = np.nonzero(chosen)
    return [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]


def bright_pixels(image: Image) -> npt.NDArray[np.bool_]:
    """Pixels of the object and the brighter half of its edge; the padding is just darker than that."""
    return image > 127


def assert_box_is_on_the_object(labelled: Labelled, tolerance: float = 2.0) -> None:
    assert len(labelled.boxes) == 1
    np.testing.assert_allclose(labelled.boxes[0], outline(bright_pixels(labelled.image)), rtol=0, atol=tolerance)


@pytest.mark.parametrize("shrink_by_area", [False, True])
@pytest.mark.parametrize("size", [32, 64, 160])
@pytest.mark.parametrize(("height", "width"), [(48, 64), (64, 48), (50, 50), (33, 127)])
def test_letterbox_keeps_the_box_on_its_object(height: int, width: int, size: int, shrink_by_area: bool) -> None:
    frame = one_object(height, width, (width // 4, height // 4, 3 * width // 4, 3 * height // 4))
    assert_box_is_on_the_object(
        letterbox(frame, ImageSize(size, size), shrink_by_area=shrink_by_area)[0], tolerance=1.5
    )


def test_letterbox_pads_with_gray_outside_the_frame_only() -> None:
    labelled, placement = letterbox(empty_frame(48, 64), ImageSize(64, 64), shrink_by_area=True)
    assert (placement.left, placement.top) == (0, 8)
    assert (labelled.image[:8] == PADDING).all()
    assert (labelled.image[-8:] == PADDING).all()
    assert (labelled.image[8:-8] == 0).all()


def test_shrinking_by_area_averages() -> None:
    stripes = np.tile(np.array([0, 0, 0, 200], dtype=np.uint8), (32, 8))
    assert (resize_frame(stripes, 0.25, shrink_by_area=True) == 50).all()


@pytest.mark.parametrize("seed", range(8))
def test_mosaic_sets_four_frames_around_one_point(seed: int) -> None:
    levels = (20, 60, 180, 240)
    canvas = mosaic(
        [empty_frame(32, 32, level) for level in levels], ImageSize(32, 32), np.random.default_rng(seed)
    ).image
    assert canvas.shape == (64, 64)
    top_left, top_right, bottom_left, bottom_right = (outline(canvas == level) for level in levels)
    centre = top_left[2:]
    assert [top_right[0], top_right[3]] == centre
    assert [bottom_left[2], bottom_left[1]] == centre
    assert bottom_right[:2] == centre
    assert all(16 <= side < 48 for side in centre)


@pytest.mark.parametrize("shape", [(48, 64), (32, 24), (128, 96)], ids=["same", "enlarged", "shrunk"])
@pytest.mark.parametrize("corner", range(4))
def test_mosaic_keeps_the_box_on_its_object(corner: int, shape: tuple[int, int]) -> None:
    height, width = shape
    frames = [empty_frame(64, 64), empty_frame(40, 64), empty_frame(64, 50), empty_frame(30, 30)]
    frames[corner] = one_object(height, width, (width // 4, height // 4, 3 * width // 4, 3 * height // 4), label=corner)
    kept = 0
    for seed in range(12):
        result = mosaic(frames, ImageSize(64, 64), np.random.default_rng(seed))
        if bright_pixels(result.image).any():
            assert_box_is_on_the_object(result)
            assert result.labels.tolist() == [corner]
            kept += 1
        else:
            assert len(result.boxes) == 0
    assert kept >= 6


def test_mosaic_drops_boxes_that_fall_off_the_canvas() -> None:
    corners = (0, 0, 2, 2), (62, 0, 64, 2), (0, 62, 2, 64), (62, 62, 64, 64)
    frames = [one_object(64, 64, box, label) for label, box in enumerate(corners)]
    results = [mosaic(frames, ImageSize(64, 64), np.random.default_rng(seed)) for seed in range(12)]
    for result in results:
        centre = outline(result.image != PADDING)
        assert len(result.boxes) < 4 or centre[0] == centre[1] == 0
        assert (result.boxes >= 0).all()
        assert (result.boxes <= 128).all()
    assert any(len(result.boxes) < 4 for result in results)


@pytest.mark.parametrize(
    "changed",
    [
        {"translate": 0.2},
        {"scale": 0.5},
        {"degrees": 30},
        {"degrees": 180},
        {"shear": 10},
        {"degrees": 20, "translate": 0.1, "scale": 0.4},
    ],
    ids=lambda changed: "-".join(changed),
)
@pytest.mark.parametrize("seed", range(6))
def test_affine_keeps_the_box_on_its_object(changed: dict[str, Any], seed: int) -> None:
    frame = one_object(192, 192, (84, 88, 108, 104))
    result = random_affine(frame, ImageSize(160, 160), replace(STILL, **changed), np.random.default_rng(seed))
    assert result.image.shape == (160, 160)
    assert_box_is_on_the_object(result)


@pytest.mark.parametrize("name", ["translate", "scale", "degrees", "shear"])
def test_each_affine_setting_moves_the_picture(name: str) -> None:
    frame = one_object(64, 64, (20, 24, 44, 40))
    settings = replace(STILL, **{name: 0.3 if name in ("translate", "scale") else 15})
    still, moved = (
        random_affine(frame, ImageSize(64, 64), each, np.random.default_rng(0)).image for each in (STILL, settings)
    )
    assert not np.array_equal(still, moved)


def test_affine_that_moves_nothing_crops_the_middle() -> None:
    frame = one_object(128, 128, (50, 60, 90, 80))
    result = random_affine(frame, ImageSize(64, 64), STILL, np.random.default_rng(0))
    assert np.array_equal(result.image, frame.image[32:96, 32:96])
    assert result.boxes.tolist() == [[18, 28, 58, 48]]


def test_affine_paints_the_outside_gray() -> None:
    result = random_affine(empty_frame(32, 32), ImageSize(64, 64), STILL, np.random.default_rng(0))
    assert outline(result.image < PADDING) == [16, 16, 48, 48]
    assert result.image.max() == PADDING


@pytest.mark.parametrize(
    ("box", "kept"),
    [
        ((40, 40, 60, 60), True),
        ((20, 40, 40, 60), True),
        ((13, 40, 34, 60), False),
        ((40, 30, 60, 34), False),
        ((0, 0, 20, 20), False),
        ((40, 40, 42, 60), False),
        ((40, 40, 43, 60), True),
    ],
    ids=["inside", "half-cut", "tenth-left", "two-rows-left", "outside", "two-wide", "three-wide"],
)
def test_affine_drops_boxes_that_are_cut_too_small(box: tuple[int, int, int, int], kept: bool) -> None:
    result = random_affine(one_object(128, 128, box), ImageSize(64, 64), STILL, np.random.default_rng(0))
    assert len(result.boxes) == len(result.labels) == kept


def test_affine_cuts_kept_boxes_at_the_edge() -> None:
    result = random_affine(one_object(128, 128, (20, 40, 40, 60)), ImageSize(64, 64), STILL, np.random.default_rng(0))
    assert result.boxes.tolist() == [[0, 8, 8, 28]]


def test_share_of_a_box_is_measured_at_the_same_scale() -> None:
    settings = replace(STILL, scale=0.9)
    frame = one_object(160, 160, (60, 60, 100, 100))
    results = [random_affine(frame, ImageSize(160, 160), settings, np.random.default_rng(seed)) for seed in range(60)]
    widths = [result.boxes[0, 2] - result.boxes[0, 0] for result in results]
    assert min(widths) < 40 * 0.3


def test_boxes_too_elongated_are_dropped() -> None:
    before = np.array([[0, 0, 300, 3], [0, 0, 302, 3]], dtype=np.float32)
    after = np.array([[0, 0, 300, 3.1], [0, 0, 310, 3.05]], dtype=np.float32)
    assert still_visible(before, after).tolist() == [True, False]


def test_map_boxes_is_the_upright_box_around_a_rotated_one() -> None:
    quarter_turn = np.array([[0.0, -1.0, 100.0], [1.0, 0.0, 0.0]])
    box: Float32Array = np.array([[10, 20, 40, 30]], dtype=np.float32)
    assert map_boxes(box, quarter_turn).tolist() == [[70, 10, 80, 40]]


@pytest.mark.parametrize(
    "transform",
    [
        lambda frame: letterbox(frame, ImageSize(64, 64), shrink_by_area=True)[0],
        lambda frame: mosaic([frame] * 4, ImageSize(64, 64), np.random.default_rng(0)),
        lambda frame: random_affine(
            frame, ImageSize(64, 64), Augmentation(degrees=10, shear=5), np.random.default_rng(0)
        ),
        lambda frame: random_flip(frame, Augmentation(flip_horizontal=1, flip_vertical=1), np.random.default_rng(0)),
    ],
    ids=["letterbox", "mosaic", "affine", "flip"],
)
def test_frame_without_boxes_passes(transform: Callable[[Labelled], Labelled]) -> None:
    result = transform(empty_frame(48, 64))
    assert (result.boxes.shape, result.labels.shape) == ((0, 4), (0,))


@pytest.mark.parametrize(
    ("horizontal", "vertical", "expected"),
    [(0, 0, [10, 8, 30, 20]), (1, 0, [34, 8, 54, 20]), (0, 1, [10, 28, 30, 40]), (1, 1, [34, 28, 54, 40])],
)
def test_flip_keeps_the_box_on_its_object(horizontal: float, vertical: float, expected: list[float]) -> None:
    settings = replace(STILL, flip_horizontal=horizontal, flip_vertical=vertical)
    result = random_flip(one_object(48, 64, (10, 8, 30, 20)), settings, np.random.default_rng(0))
    assert result.boxes.tolist() == [expected]
    assert_box_is_on_the_object(result, tolerance=0)


def test_flips_happen_in_their_share_of_samples() -> None:
    frame = one_object(48, 64, (0, 0, 10, 10))
    settings = replace(STILL, flip_horizontal=0.5)
    mirrored = sum(random_flip(frame, settings, np.random.default_rng(seed)).boxes[0, 0] > 0 for seed in range(200))
    assert 75 <= mirrored <= 125


def test_flip_leaves_the_given_image_as_it_is() -> None:
    frame = one_object(48, 64, (10, 8, 30, 20))
    before = frame.image.copy()
    random_flip(frame, replace(STILL, flip_horizontal=1, flip_vertical=1), np.random.default_rng(0))
    assert np.array_equal(frame.image, before)


def test_mosaic_of_small_frames_keeps_their_pixels() -> None:
    frames = [one_object(30, 40, (10, 8, 30, 20), label) for label in range(4)]
    result = mosaic(frames, ImageSize(160, 160), np.random.default_rng(1))
    assert result.image.shape == (80, 80)
    assert result.gain == 4
    assert set(np.unique(result.image)) <= {0, PADDING, BRIGHT}


def test_mosaic_does_not_take_more_pixels_than_the_input_needs() -> None:
    result = mosaic([empty_frame(300, 400)] * 4, ImageSize(64, 64), np.random.default_rng(0))
    assert (result.image.shape, result.gain) == ((128, 128), 1)


def frame_of_noise(height: int, width: int) -> Image:
    return np.random.default_rng(0).integers(0, 256, (height, width), dtype=np.uint8)


@given(
    scale=st.floats(0, 0.5),
    translate=st.floats(0, 0.5),
    shape=st.tuples(st.integers(20, 90), st.integers(20, 90)),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=60, deadline=None)
def test_cut_and_warp_show_the_same_place(scale: float, translate: float, shape: tuple[int, int], seed: int) -> None:
    """A trace of shear takes the other road; the two agree up to their rounding to whole pixels."""
    height, width = shape
    frame = one_object(height, width, (width // 4, height // 4, 3 * width // 4, 3 * height // 4))
    chosen = replace(STILL, scale=scale, translate=translate)
    by_cut = random_affine(frame, ImageSize(96, 96), chosen, np.random.default_rng(seed))
    by_warp = random_affine(frame, ImageSize(96, 96), replace(chosen, shear=1e-9), np.random.default_rng(seed))
    rounded = 1.5 + 96 * 0.5 / (96 / 1.5)
    if len(by_cut.boxes) == len(by_warp.boxes) == 1:
        np.testing.assert_allclose(by_cut.boxes, by_warp.boxes, rtol=0, atol=rounded)
    assert abs(bright_pixels(by_cut.image).sum() - bright_pixels(by_warp.image).sum()) < 8 * 96 * rounded / 2


def test_cut_and_warp_agree_where_nothing_needs_rounding() -> None:
    frame = Labelled(frame_of_noise(90, 90), *empty_frame(90, 90)[1:])
    by_cut = random_affine(frame, ImageSize(64, 64), STILL, np.random.default_rng(0))
    by_warp = random_affine(frame, ImageSize(64, 64), replace(STILL, shear=1e-9), np.random.default_rng(0))
    assert np.array_equal(by_cut.image, by_warp.image)


def test_strong_shrinking_takes_no_square_larger_than_the_image_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    import yolo_lightning.data.transforms.mosaic as geometry

    sides: list[int] = []
    monkeypatch.setattr(geometry, "cut", lambda image, x, y, size: sides.append(max(size)) or cut(image, x, y, size))
    frame = one_object(64, 64, (0, 0, 64, 64))
    for seed in range(60):
        result = random_affine(frame, ImageSize(64, 64), replace(STILL, scale=0.9), np.random.default_rng(seed))
        assert_box_is_on_the_object(result)
    assert 0 < len(sides) < 60
    assert max(sides) <= 128


@pytest.mark.parametrize(("x", "y", "side"), [(2, 3, 4), (-2, -1, 4), (6, 5, 4), (-3, -3, 20), (50, 0, 4), (0, -40, 4)])
def test_cut_square_holds_the_image_where_they_meet(x: int, y: int, side: int) -> None:
    image = frame_of_noise(8, 10)
    wide = np.pad(image, 64, constant_values=PADDING)
    assert np.array_equal(cut(image, x, y, ImageSize(side, side)), wide[64 + y : 64 + y + side, 64 + x : 64 + x + side])


@pytest.mark.parametrize("seed", range(20))
def test_boxes_follow_the_rounded_cut_to_the_pixel(seed: int) -> None:
    bright = np.full((24, 24), BRIGHT, dtype=np.uint8)
    frame = Labelled(bright, np.array([[0, 0, 24, 24]], np.float32), np.array([0]), gain=4)
    result = random_affine(
        frame, ImageSize(96, 96), replace(STILL, scale=0.5, translate=0.1), np.random.default_rng(seed)
    )
    edges = outline(result.image > (PADDING + BRIGHT) / 2)
    np.testing.assert_allclose(result.boxes[0], edges, rtol=0, atol=0.75)


@pytest.mark.parametrize("shape", [(48, 64), (48, 64, 3)])
def test_mixup_equals_ultralytics(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    from ultralytics.data.augment import MixUp
    from ultralytics.utils.instance import Instances

    generator = np.random.default_rng(7)
    ratio = generator.beta(32, 32)
    samples = [
        Labelled(
            generator.integers(0, 256, shape, dtype=np.uint8),
            generator.uniform(0, 48, (count, 4)).astype(np.float32),
            generator.integers(0, 4, count),
        )
        for count in (3, 2)
    ]
    labels = [
        {
            "img": sample.image.copy(),
            "cls": sample.labels[:, None],
            "instances": Instances(sample.boxes.copy(), np.zeros((0, 1000, 2), np.float32), None, "xyxy", False),
        }
        for sample in samples
    ]
    drawn = []
    monkeypatch.setattr(np.random, "beta", lambda *parameters: drawn.append(parameters) or ratio)
    dataset = type("Dataset", (), {"__len__": lambda _: 2, "get_image_and_label": lambda _, index: labels[1]})()
    expected = MixUp(dataset, p=1.0)(labels[0])
    result = mixup(*samples, ratio)  # type: ignore[call-arg]
    assert drawn == [(32.0, 32.0)] == [(MIXUP_BETA, MIXUP_BETA)]
    assert result.image.dtype == expected["img"].dtype
    assert np.array_equal(result.image, expected["img"])
    assert np.array_equal(result.boxes, expected["instances"].bboxes)
    assert np.array_equal(result.labels, expected["cls"][:, 0])
