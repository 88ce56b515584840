"""Every setting has its documented effect, and results depend on the random generator only."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from yolo_lightning.data.image_size import ImageSize
from yolo_lightning.data.transforms import photometric
from yolo_lightning.data.transforms.augmentation_settings import Augmentation
from yolo_lightning.data.transforms.letterbox import PADDING, Labelled
from yolo_lightning.data.transforms.mosaic import Image, mosaic, random_affine, random_flip
from yolo_lightning.data.transforms.photometric import (
    disc,
    histogram,
    matched_levels,
    percentile_levels,
    random_blur,
    random_levels,
    random_noise,
    random_pattern,
    random_photometry,
    reference_index,
)

CALM = Augmentation(
    gain=0, offset=0, gamma=0, stretch=0, histogram_match=0, noise=0, fixed_pattern=0, shading=0, blur=0
)
"""Drifts in half of the samples, by nothing."""

IDENTITY = np.arange(256, dtype=np.float32)
SHARES = ("TONE_SHARE", "GAMMA_SHARE", "NOISE_SHARE", "PATTERN_SHARE", "SHADING_SHARE", "BLUR_SHARE")


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every effect occurs in every sample."""
    for name in SHARES:
        monkeypatch.setattr(photometric, name, 1.0)


def flat(level: int = 100, side: int = 64) -> Image:
    return np.full((side, side), level, dtype=np.uint8)


def ramp() -> Image:
    return np.tile(np.arange(256, dtype=np.uint8), (64, 1))


def scene(seed: int = 0, mean: float = 90, deviation: float = 20) -> Image:
    return np.random.default_rng(seed).normal(mean, deviation, (128, 128)).clip(0, 255).astype(np.uint8)


def whole_chain(seed: int) -> Labelled:
    generator = np.random.default_rng(seed)
    chosen = Augmentation(degrees=10, shear=2, photometric=1)
    frames = [Labelled(scene(label), np.array([[20, 16, 40, 32]], np.float32), np.array([label])) for label in range(4)]
    result = random_flip(
        random_affine(mosaic(frames, ImageSize(64, 64), generator), ImageSize(64, 64), chosen, generator),
        chosen,
        generator,
    )
    return result._replace(image=random_photometry(result.image, chosen, generator, scene(9)))


@pytest.mark.usefixtures("always")
def test_numpys_global_stream_is_neither_used_nor_advanced() -> None:
    first = whole_chain(5)
    np.random.seed(99)
    expected = np.random.random()
    np.random.seed(99)
    assert np.array_equal(whole_chain(5).image, first.image)
    assert np.random.random() == expected


@pytest.mark.usefixtures("always")
@given(seed=st.integers(0, 2**32 - 1), shape=st.tuples(st.integers(1, 70), st.integers(1, 70)))
@settings(max_examples=60, deadline=None)
def test_photometry_keeps_shape_type_and_input(seed: int, shape: tuple[int, int]) -> None:
    image = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    image.setflags(write=False)
    strongest = Augmentation(photometric=1, inversion=0.5, gain=0.9, gamma=4, stretch=1, noise=64, shading=128, blur=10)
    changed = random_photometry(image, strongest, np.random.default_rng(seed), scene() if seed % 2 else None)
    assert (changed.shape, changed.dtype) == (shape, np.uint8)


@pytest.mark.usefixtures("always")
def test_effects_of_strength_zero_change_nothing() -> None:
    for seed in range(20):
        changed = random_photometry(ramp(), replace(CALM, photometric=1), np.random.default_rng(seed))
        assert np.array_equal(changed, ramp())


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(
    "changed",
    [
        {"gain": 0.5},
        {"offset": 0.3},
        {"gamma": 1.0},
        {"stretch": 1.0},
        {"noise": 8.0},
        {"fixed_pattern": 8.0},
        {"shading": 40.0},
        {"blur": 3.0},
        {"inversion": 1.0},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_each_effect_alone_changes_the_image(changed: dict[str, Any]) -> None:
    image = scene()
    result = random_photometry(image, replace(CALM, photometric=1, **changed), np.random.default_rng(0))
    assert not np.array_equal(result, image)


def test_inversion_turns_white_hot_into_black_hot() -> None:
    inverted = random_photometry(ramp(), replace(CALM, inversion=1), np.random.default_rng(0))
    assert np.array_equal(inverted, 255 - ramp())


def levels(seed: int, image: Image, **changed: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    return random_levels(IDENTITY, image, replace(CALM, **changed), np.random.default_rng(seed))


@pytest.mark.usefixtures("always")
def test_gain_changes_the_contrast_about_the_mean_within_its_range() -> None:
    slopes = []
    for seed in range(200):
        table = levels(seed, flat(100), gain=0.3)
        assert table[100] == pytest.approx(100, abs=0.01)
        slopes.append(float(table[101] - table[100]))
    assert 0.7 <= min(slopes) < 0.75
    assert 1.25 < max(slopes) <= 1.3001


@pytest.mark.usefixtures("always")
def test_offset_shifts_all_levels_within_its_range() -> None:
    shifts = [levels(seed, scene(), offset=0.1)[100] - 100 for seed in range(200)]
    assert -25.51 <= min(shifts) < -22
    assert 22 < max(shifts) <= 25.51


@pytest.mark.usefixtures("always")
def test_gamma_bends_between_fixed_ends() -> None:
    middles = []
    for seed in range(200):
        table = levels(seed, scene(), gamma=1.0)
        assert (table[0], table[255]) == (0, 255)
        assert (np.diff(table) > 0).all()
        middles.append(float(table[64]))
    assert min(middles) == pytest.approx(255 * (64 / 255) ** 2, abs=3)
    assert max(middles) == pytest.approx(255 * (64 / 255) ** 0.5, abs=3)


def test_stretch_spans_the_range() -> None:
    image = scene(mean=120, deviation=15)
    for seed in range(10):
        stretched = random_photometry(image, replace(CALM, photometric=1, stretch=1), np.random.default_rng(seed))
        assert np.percentile(stretched, 3) < 90
        assert np.percentile(stretched, 97) > 165
        assert stretched.max() == 255


def test_stretch_of_a_flat_scene_does_not_blow_up_its_noise() -> None:
    image = (100 + np.random.default_rng(0).integers(0, 2, (64, 64))).astype(np.uint8)
    stretched = random_photometry(image, replace(CALM, photometric=1, stretch=1), np.random.default_rng(0))
    assert np.ptp(stretched) <= 8


def test_percentiles_leave_the_asked_share_outside() -> None:
    counts = np.ones(256, dtype=np.int64)
    assert percentile_levels(counts, 0, 0) == (0, 255)
    assert percentile_levels(counts, 0.1, 0.2) == (25, 204)
    only = np.eye(256, dtype=np.int64)[77]
    assert percentile_levels(only, 0.02, 0.02) == (77, 77)


def test_histogram_counts_each_level_but_the_padding() -> None:
    image = flat(PADDING)
    image[:, :32] = 50
    counts = histogram(image)
    assert (counts[50], counts.sum()) == (128, 128)


def test_matched_image_takes_over_the_reference_histogram() -> None:
    reference = scene(1, mean=180, deviation=10)
    changed = random_photometry(scene(), replace(CALM, photometric=0), np.random.default_rng(0), reference)
    assert changed.mean() == pytest.approx(180, abs=1)
    assert changed.std() == pytest.approx(10, abs=1)


def test_level_of_a_flat_image_becomes_the_middle_of_the_reference() -> None:
    levels_present = np.eye(256, dtype=np.int64)
    table = matched_levels(levels_present[100] * 9, levels_present[50] + levels_present[150])
    assert table[100] == 100


def test_matching_with_nothing_changes_nothing() -> None:
    empty = np.zeros(256, dtype=np.int64)
    assert np.array_equal(matched_levels(empty, histogram(scene())), IDENTITY)
    assert np.array_equal(matched_levels(histogram(scene()), empty), IDENTITY)


@given(
    st.lists(st.integers(0, 1000), min_size=256, max_size=256), st.lists(st.integers(0, 9), min_size=256, max_size=256)
)
@settings(max_examples=50, deadline=None)
def test_matched_levels_rise_and_stay_in_range(counts: list[int], reference: list[int]) -> None:
    table = matched_levels(np.array(counts), np.array(reference))
    assert (np.diff(table) >= 0).all()
    assert 0 <= table[0] <= table[-1] <= 255


def test_reference_is_drawn_in_its_share_of_samples_from_all_frames() -> None:
    drawn = [reference_index(7, Augmentation(histogram_match=0.3), np.random.default_rng(seed)) for seed in range(1000)]
    chosen = [index for index in drawn if index is not None]
    assert 240 < len(chosen) < 360
    assert set(chosen) == set(range(7))


def test_without_histogram_match_no_reference_is_drawn_and_no_number_used() -> None:
    generator = np.random.default_rng(0)
    assert all(reference_index(7, Augmentation(histogram_match=0), generator) is None for _ in range(20))
    assert generator.random() == np.random.default_rng(0).random()


@pytest.mark.usefixtures("always")
def test_noise_is_normal_and_as_strong_as_drawn() -> None:
    strengths = []
    for seed in range(40):
        noise = random_noise(flat(128, 200), replace(CALM, noise=10), np.random.default_rng(seed)).astype(float) - 128
        assert abs(noise.mean()) < 0.3
        strengths.append(noise.std())
    assert max(strengths) == pytest.approx(10, abs=1)
    assert min(strengths) < 1


@pytest.mark.usefixtures("always")
def test_fixed_pattern_is_the_same_along_rows_and_columns() -> None:
    deviations = []
    for seed in range(60):
        pattern = random_pattern(flat(), replace(CALM, fixed_pattern=10), np.random.default_rng(seed)).astype(int)
        mixed = pattern[1:, 1:] - pattern[:-1, 1:] - pattern[1:, :-1] + pattern[:-1, :-1]
        assert np.abs(mixed).max() <= 2  # rounding; what is left of a sum of a row and a column vector
        deviations.append((pattern.mean(axis=0).std(), pattern.mean(axis=1).std()))
    columns, rows = np.array(deviations).T
    for strengths in (columns, rows):
        assert strengths.min() < 1
        assert 8 < strengths.max() < 13


@pytest.mark.usefixtures("always")
def test_shading_is_smooth_and_within_its_amplitude() -> None:
    widest = 0
    for seed in range(60):
        field = random_pattern(flat(), replace(CALM, shading=30), np.random.default_rng(seed)).astype(int) - 100
        assert max(np.abs(np.diff(field, axis=axis)).max() for axis in (0, 1)) <= 4
        widest = max(widest, int(np.abs(field).max()))
    assert 20 < widest <= 30


@pytest.mark.usefixtures("always")
def test_blur_keeps_the_mean_and_smooths() -> None:
    image = scene()
    for seed in range(20):
        blurred = random_blur(image, replace(CALM, blur=3), np.random.default_rng(seed))
        assert blurred.mean() == pytest.approx(image.mean(), abs=1)
        assert blurred.std() < 0.8 * image.std()


@pytest.mark.parametrize("radius", [0.3, 1.0, 2.5, 10.0])
def test_defocus_disc_is_symmetric_and_of_sum_one(radius: float) -> None:
    kernel = disc(radius)
    assert kernel.sum() == pytest.approx(1, abs=1e-5)
    assert np.array_equal(kernel, kernel.T)
    assert np.array_equal(kernel, kernel[::-1])
    assert 1 / kernel.max() == pytest.approx(np.pi * radius**2, rel=0.1, abs=1)


@pytest.mark.parametrize(
    ("effect", "share", "changed"),
    [
        (random_noise, "NOISE_SHARE", {"noise": 40.0}),
        (random_blur, "BLUR_SHARE", {"blur": 5.0}),
        (random_pattern, "PATTERN_SHARE", {"fixed_pattern": 40.0}),
        (random_pattern, "SHADING_SHARE", {"shading": 100.0}),
    ],
)
def test_effect_occurs_in_its_share_of_samples(
    effect: Callable[..., Image], share: str, changed: dict[str, float]
) -> None:
    image, chosen = scene(), replace(CALM, **changed)
    occurred = sum(not np.array_equal(effect(image, chosen, np.random.default_rng(s)), image) for s in range(400))
    assert occurred / 400 == pytest.approx(getattr(photometric, share), abs=0.07)
