"""Mapping of 16-bit pixel values to gray levels: exact rule, percentiles, drift, bad values."""

import json
from typing import Any

import numpy as np
import pytest

from yolo_lightning.data.transforms.augmentation_settings import Augmentation
from yolo_lightning.data.transforms.photometric import random_range_drift
from yolo_lightning.data.transforms.pixel_range import Drift, PixelRange, Span, value_counts

FRAME = np.random.default_rng(0).normal(8000, 700, (48, 64)).clip(0, 65535).astype(np.uint16)
FRAME[0, :4] = (0, 65535, 7000, 9040)


@pytest.mark.parametrize(("low", "high"), [(7000, 9040), (0, 65535), (7999.5, 8100.25), (0, 16383)])
def test_fixed_range_is_the_documented_rule(low: float, high: float) -> None:
    gain = np.float32(255 / max(high - low, 1))
    expected = np.rint((FRAME.astype(np.float32) - np.float32(low)) * gain).clip(0, 255).astype(np.uint8)
    levels = PixelRange("fixed", low, high).of_frame(FRAME).levels(FRAME)
    assert levels.dtype == np.uint8
    assert np.array_equal(levels, expected)
    exact = (np.clip(FRAME.astype(float), low, high) - low) * 255 / max(high - low, 1)
    assert np.abs(levels - exact).max() < 0.5 + 1e-3


@pytest.mark.parametrize("percentiles", [(0.5, 99.5), (0, 100), (10, 33.3)])
def test_percentiles_are_those_of_numpy(percentiles: tuple[float, float]) -> None:
    expected = np.percentile(FRAME, percentiles, method="inverted_cdf")
    assert PixelRange("frame", *percentiles).of_frame(FRAME) == tuple(expected)
    both = value_counts(FRAME) + value_counts(FRAME // 2)
    expected = np.percentile([FRAME, FRAME // 2], percentiles, method="inverted_cdf")
    assert PixelRange("frame", *percentiles).percentiles(both) == tuple(expected)


def test_frame_of_one_value_is_black() -> None:
    flat = np.full((4, 4), 8000, np.uint16)
    assert not PixelRange("frame").of_frame(flat).levels(flat).any()


def test_drift_of_the_range_equals_drift_of_the_pixels() -> None:
    span, drift = Span(7000, 9040), Drift(0.8, 0.1)
    drifted = 8020 + 0.8 * (FRAME.astype(float) - 8020) + 0.1 * 2040
    expected = (drifted.clip(7000, 9040) - 7000) * 255 / 2040
    assert np.abs(span.drifted(drift).levels(FRAME) - expected).max() < 0.5 + 1e-3


def test_drift_is_as_strong_and_frequent_as_configured() -> None:
    generator = np.random.default_rng(0)
    drawn = [random_range_drift(Augmentation(gain=0.2, offset=0.1), generator) for _ in range(500)]
    drifts = np.array([drift for drift in drawn if drift is not None])
    assert 0.3 < len(drifts) / 500 < 0.5
    assert drifts.min(axis=0) == pytest.approx([0.8, -0.1], abs=0.01)
    assert drifts.max(axis=0) == pytest.approx([1.2, 0.1], abs=0.01)
    assert random_range_drift(Augmentation(photometric=0), generator) is None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (("auto",), r"mode must be fixed, frame, full or null, got 'auto'"),
        (("fixed",), r"low must be a pixel value .* got None and None"),
        (("fixed", 7000), r"got 7000 and None"),
        (("fixed", 9000, 7000), r"low must be a pixel value >= 0 and less than .*high.* <= 65535.* got 9000 and 7000"),
        (("fixed", 0, 65536), r"<= 65535"),
        (("frame", 1, 101), r"low must be a percentile .* <= 100, with .*mode frame, got 1 and 101"),
        (("frame", float("nan")), r"got nan and 99.5"),
    ],
)
def test_bad_values_are_refused(values: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        PixelRange(*values)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("recorded", [[], {"mode": "fixed", "width": 1}, {"mode": "frame", "low": "1"}, {"mode": []}])
def test_damaged_record_is_refused(recorded: object) -> None:
    with pytest.raises(ValueError, match=r"pixel_range.* must be .*got"):
        PixelRange.of(json.loads(json.dumps(recorded)))
