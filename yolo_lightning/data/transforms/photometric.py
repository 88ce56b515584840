"""Photometric augmentation: drift of a thermal camera on gray frames, YOLOv8's colour jitter on colour frames.

Implemented with OpenCV and NumPy instead of albumentations, because all changes of gray levels combine into one lookup
table, and at 640 x 640 albumentations' Gaussian noise takes 4.9 ms and its defocus 6.8 ms, compared with 0.6 ms and
1.3 ms here. `pixel_transforms` applies further transforms of albumentations. All randomness comes from the generator
argument.
"""

from functools import cache
from statistics import NormalDist

import cv2
import numpy as np

from yolo_lightning.data.array_types import AnyArray, Float32Array, Float64Array, Int64Array
from yolo_lightning.data.transforms.augmentation_settings import Augmentation, Image, apply_pixel_transforms
from yolo_lightning.data.transforms.letterbox import PADDING
from yolo_lightning.data.transforms.pixel_range import Drift

Levels = Float32Array  # `(256,)` float32: new value of each gray level, or of each quantile of a float image
# Probability of each effect in a drifting sample
TONE_SHARE = 0.8
GAMMA_SHARE = 0.3
NOISE_SHARE = 0.2
PATTERN_SHARE = 0.2
SHADING_SHARE = 0.2
BLUR_SHARE = 0.1

TAIL = 0.02  # Maximum fraction of pixels that a stretch saturates at either end
LEAST_SPAN = 32
"""Gray levels. A scene with a smaller range is stretched as if it had this range, to limit the gain of its noise."""

SHADING_WAVES = 3  # Cosine waves per axis of the shading field; the coarsest is half a wave over the input
HISTOGRAM_STEP = 4  # A histogram counts every fourth row and column
HUES = 180  # Hues of OpenCV's 8-bit images, two degrees each


def reference_index(count: int, settings: Augmentation, generator: np.random.Generator) -> int | None:
    """Return the index of the frame, of `count`, whose histogram the sample receives; None for most samples."""
    if settings.histogram_match and generator.random() < settings.histogram_match:
        return int(generator.integers(count))
    return None


def random_photometry(
    image: Image,
    settings: Augmentation,
    generator: np.random.Generator,
    reference: Image | None = None,
    is_gray: bool | None = None,
) -> Image:
    """Return an image after drift or colour jitter and `settings.pixel_transforms`.

    Args:
        image: `(H, W)` gray, `(H, W, 3)` RGB, or `(H, W, C)` with `is_gray`: gray frames of one clip, which get the
            same drift and transforms, and independent noise.
        settings: Strength of the changes.
        generator: Source of all randomness.
        reference: As in `_random_drift`; None for colour frames.
        is_gray: Whether the channels are gray frames; None for images with two dimensions.
    """
    if is_gray is None:
        is_gray = image.ndim == 2
    if is_gray:
        image = _random_drift(image, settings, generator, reference)
    else:
        image = random_colour(image, settings, generator)
    if settings.pixel_transforms:
        image = apply_pixel_transforms(image, settings.pixel_transforms, generator, is_gray=is_gray)
    return image


def random_colour(image: Image, settings: Augmentation, generator: np.random.Generator) -> Image:
    """Change hue, saturation and value of an `(H, W, 3)` uint8 RGB image by one random gain each.

    Equals `RandomHSV` of Ultralytics 8.4, except that gray pixels stay gray.
    """
    strengths = (settings.hsv_hue, settings.hsv_saturation, settings.hsv_value)
    if not any(strengths):
        return image
    hue, saturation, value = generator.uniform(-1, 1, size=3) * strengths
    levels = np.arange(256, dtype=np.float64)
    table = np.stack(
        (
            (levels + hue * HUES) % HUES,
            np.clip(levels * (1 + saturation), 0, 255),
            np.clip(levels * (1 + value), 0, 255),
        ),
        axis=-1,
    ).astype(np.uint8)
    changed = cv2.LUT(cv2.cvtColor(image, cv2.COLOR_RGB2HSV), table[None])
    return np.asarray(cv2.cvtColor(changed, cv2.COLOR_HSV2RGB), dtype=np.uint8)


def _random_drift(
    image: Image, settings: Augmentation, generator: np.random.Generator, reference: Image | None = None
) -> Image:
    """Simulate ambient heat, gain control, sensor noise and focus drift on `(H, W)` or `(H, W, C)` gray frames.

    The frames are uint8, or float32, which are neither rounded nor limited. If `reference`, a gray image of any size,
    is given, the image receives its histogram.
    """
    drifting, inverted = generator.random(2) < (settings.photometric, settings.inversion)
    if drifting:
        image = random_blur(image, settings, generator)
        image = random_pattern(image, settings, generator)
        image = random_noise(image, settings, generator)
    if not (drifting or inverted or reference is not None):
        return image
    if image.dtype == np.float32:
        positions = quantiles(image)
        levels = positions if reference is None else quantiles(reference)
    else:
        levels = np.arange(256, dtype=np.float32)
        if reference is not None:
            levels = matched_levels(histogram(image), histogram(reference))
    if drifting:
        levels = random_levels(levels, image, settings, generator)
    if inverted:
        levels = 255 - levels
    if image.dtype == np.float32:
        return interpolated(image, positions, levels)
    return np.asarray(cv2.LUT(image, np.clip(np.rint(levels), 0, 255).astype(np.uint8)), dtype=np.uint8)


def quantiles(image: Image) -> Levels:
    """Return 256 quantiles of a float image, the smallest and the largest value included, without the padding."""
    values = image[::HISTOGRAM_STEP, ::HISTOGRAM_STEP]
    values = values[values != PADDING]
    if not values.size:
        return np.arange(256, dtype=np.float32)
    return np.asarray(np.quantile(values, np.linspace(0, 1, 256)), dtype=np.float32)


def interpolated(image: Image, positions: Levels, levels: Levels) -> Image:
    """Return a float image in which the values `positions`, ascending, have become `levels`.

    Values beyond the positions are continued with the mean slope.
    """
    extent = max(float(positions[-1] - positions[0]), 1.0)
    beyond = image - np.clip(image, positions[0], positions[-1])
    inside = np.interp(image, positions, levels)
    return np.asarray(inside + beyond * ((levels[-1] - levels[0]) / extent), dtype=np.float32)


def random_levels(levels: Levels, image: Image, settings: Augmentation, generator: np.random.Generator) -> Levels:
    """Apply stretch, gain and offset, and gamma to the table `levels` of `image`."""
    stretched, toned, curved = generator.random(3) < (settings.stretch, TONE_SHARE, GAMMA_SHARE)
    if stretched:
        tails = generator.uniform(0, TAIL, size=2)
        if image.dtype == np.float32:  # the levels are those of equally frequent values
            low, high = np.interp((255 * tails[0], 255 * (1 - tails[1])), np.arange(256), levels)
        else:
            low, high = levels[list(percentile_levels(histogram(image), *tails))]
        levels = (levels - low) * np.float32(255 / max(high - low, LEAST_SPAN))
    if toned:
        gain = generator.uniform(1 - settings.gain, 1 + settings.gain)
        offset = generator.uniform(-settings.offset, settings.offset) * 255
        mean = levels.mean()
        if image.dtype == np.uint8:
            mean = levels[image[::HISTOGRAM_STEP, ::HISTOGRAM_STEP].astype(np.uint8)].mean()
        levels = ((levels - mean) * gain + mean + offset).astype(np.float32)
    if curved:
        exponent = (1 + settings.gamma) ** generator.uniform(-1, 1)
        levels = (255 * (levels.clip(0, 255) / 255) ** exponent).astype(np.float32)
    return levels


def histogram(image: Image) -> Int64Array:
    """Return `(256,)` pixels per gray level; the level of the padding gets the mean count of its two neighbours."""
    counts = np.bincount(image[::HISTOGRAM_STEP, ::HISTOGRAM_STEP].astype(np.uint8).ravel(), minlength=256)
    counts[PADDING] = (counts[PADDING - 1] + counts[PADDING + 1]) // 2
    return counts


def percentile_levels(counts: Int64Array, low: float, high: float) -> tuple[int, int]:
    """Return the gray levels below and above which the fractions `low` and `high` of the pixels lie."""
    cumulated = counts.cumsum()
    bounds = np.array([low, 1 - high]) * cumulated[-1]
    first, last = np.searchsorted(cumulated, bounds, side="right").clip(0, 255)
    return int(first), int(max(first, last))


def matched_levels(counts: Int64Array, reference: Int64Array) -> Levels:
    """Return the table that gives an image with histogram `counts` the histogram `reference`, both `(256,)`.

    This is histogram specification (Gonzalez and Woods).
    """
    if not counts.any() or not reference.any():
        return np.arange(256, dtype=np.float32)
    present = reference > 0
    # Cumulated to the middle of each level; the upper ends would raise all levels.
    shares, reference_shares = (
        values.cumsum() - values / 2 for values in (counts / counts.sum(), reference / reference.sum())
    )
    return np.asarray(np.interp(shares, reference_shares[present], np.flatnonzero(present)), dtype=np.float32)


def random_blur(image: Image, settings: Augmentation, generator: np.random.Generator) -> Image:
    if not settings.blur or generator.random() >= BLUR_SHARE:
        return image
    width = generator.uniform(0.3, 1) * settings.blur
    if generator.random() < 0.5:
        blurred = cv2.GaussianBlur(image, (0, 0), width)
    else:
        blurred = cv2.filter2D(image, -1, disc(width))
    return np.asarray(blurred, dtype=image.dtype)


def disc(radius: float) -> Float32Array:
    """Return a defocus kernel: a disc of `radius` pixels with a soft edge; square, odd side, float32, sum 1."""
    reach = int(np.ceil(radius))
    axis = np.arange(-reach, reach + 1, dtype=np.float32)
    kernel = np.clip(radius + 0.5 - np.hypot(axis[:, None], axis[None, :]), 0, 1)
    return np.asarray(kernel / kernel.sum(), dtype=np.float32)


def random_pattern(image: Image, settings: Augmentation, generator: np.random.Generator) -> Image:
    """Add row offsets, column offsets and a smooth field, as one low-rank matrix product."""
    striped, shaded = generator.random(2) < (PATTERN_SHARE, SHADING_SHARE)
    height, width = image.shape[:2]
    column_factors = []
    row_factors = []
    if striped and settings.fixed_pattern:
        rows, columns = generator.uniform(0, settings.fixed_pattern, size=2)
        column_factors += [rows * generator.standard_normal((height, 1)), np.ones((height, 1))]
        row_factors += [np.ones((1, width)), columns * generator.standard_normal((1, width))]
    if shaded and settings.shading:
        field = generator.standard_normal((SHADING_WAVES, SHADING_WAVES))
        field[0, 0] = 0  # no constant offset
        amplitude = generator.uniform(0, settings.shading) / np.abs(field).sum()
        column_factors.append(_waves(height))
        row_factors.append(amplitude * field @ _waves(width).T)
    if not row_factors:
        return image
    pattern = np.hstack(column_factors).astype(np.float32) @ np.vstack(row_factors).astype(np.float32)
    if image.ndim == 3:
        pattern = np.asarray(cv2.merge([pattern] * image.shape[2]))
    return _sum(image, pattern)


@cache
def _waves(length: int) -> Float32Array:
    """Return `(length, SHADING_WAVES)` cosines along an axis, the first constant."""
    position = (np.arange(length, dtype=np.float32) + 0.5) / length
    return np.cos(np.pi * position[:, None] * np.arange(SHADING_WAVES)).astype(np.float32)


def random_noise(image: Image, settings: Augmentation, generator: np.random.Generator) -> Image:
    """Add Gaussian noise: random bytes, mapped to 256 quantiles of the distribution."""
    if not settings.noise or generator.random() >= NOISE_SHARE:
        return image
    table = normal_quantiles() * generator.uniform(0, settings.noise)
    draws = np.frombuffer(generator.bytes(image.size), dtype=np.uint8).reshape(image.shape)
    if image.dtype == np.float32:
        return _sum(image, cv2.LUT(draws, table.astype(np.float32)))
    return _sum(image, cv2.LUT(draws, np.rint(table).clip(-127, 127).astype(np.int8)))


def _sum(image: Image, change: AnyArray) -> Image:
    """Return image plus change with the dtype of the image; uint8 is rounded and limited."""
    depth = cv2.CV_8U if image.dtype == np.uint8 else cv2.CV_32F
    return np.asarray(cv2.add(image, change, dtype=depth), image.dtype)


@cache
def normal_quantiles() -> Float64Array:
    """Return `(256,)` equally probable values of a normal distribution with mean 0 and standard deviation 1."""
    values = np.array(NormalDist().quantiles(512)[::2])
    return np.asarray(values / values.std(), dtype=np.float64)


def random_range_drift(settings: Augmentation, generator: np.random.Generator) -> Drift | None:
    """Draw the drift of all 16-bit frames of a sample with `gain` and `offset` of the settings; None for no drift.

    It is as frequent as gain and offset of 8-bit images, which 16-bit frames do not receive after the mapping.
    """
    drifting, toned = generator.random(2) < (settings.photometric, TONE_SHARE)
    gain = generator.uniform(1 - settings.gain, 1 + settings.gain)
    offset = generator.uniform(-settings.offset, settings.offset)
    if drifting and toned:
        return Drift(gain, offset)
    return None
