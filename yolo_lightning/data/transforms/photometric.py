"""What drifts in a thermal camera over months, drawn onto a gray frame: optics, sensor, gain control, then polarity.

OpenCV and NumPy rather than albumentations: all changes of gray levels fold into one table, and at 640 x 640 its
Gaussian noise takes 4.9 ms and its defocus 6.8 ms against 0.6 and 1.3 ms here. `pixel_transforms` opens the door to
the rest of albumentations, `colour` sees to frames in colour. Every function draws from the generator it is given and
from nothing else.
"""

from functools import cache
from statistics import NormalDist

import cv2
import numpy as np
import numpy.typing as npt

from yolo_lightning.data.transforms.augmentation_settings import Augmentation
from yolo_lightning.data.transforms.colour import random_colour
from yolo_lightning.data.transforms.mosaic import PADDING, Image

Levels = npt.NDArray[np.float32]
"""`(256,)` float32: what each gray level becomes."""

TONE_SHARE, GAMMA_SHARE, NOISE_SHARE, PATTERN_SHARE, SHADING_SHARE, BLUR_SHARE = 0.8, 0.3, 0.2, 0.2, 0.2, 0.1
"""How often each effect occurs in a sample that drifts."""

TAIL = 0.02
"""Largest share of pixels that a stretch saturates at either end."""

LEAST_SPAN = 32
"""Gray levels. A scene flatter than this is stretched as if it spanned so many: its noise would become the picture."""

SHADING_WAVES = 3
"""Cosine waves per axis of the shading field; the coarsest is half a wave over the input."""

HISTOGRAM_STEP = 4
"""Every so many rows and columns count in a histogram."""


def reference_index(count: int, settings: Augmentation, generator: np.random.Generator) -> int | None:
    """Which of `count` frames lends the sample its histogram; None for most samples."""
    if settings.histogram_match and generator.random() < settings.histogram_match:
        return int(generator.integers(count))
    return None


def random_photometry(
    image: Image, settings: Augmentation, generator: np.random.Generator, reference: Image | None = None
) -> Image:
    """Change the pixels of a frame, gray or in colour, and apply the further transforms that the settings name.

    Args:
        image: `(H, W)` or `(H, W, 3)` uint8; left as it is.
        settings: Shares and strengths.
        generator: Source of all randomness.
        reference: As in `random_drift`; frames in colour have none.
    """
    if image.ndim == 3:
        image = random_colour(image, settings, generator)
    else:
        image = random_drift(image, settings, generator, reference)
    if settings.pixel_transforms:
        from yolo_lightning.data.transforms.pixel_transforms import apply_pixel_transforms

        image = apply_pixel_transforms(image, settings.pixel_transforms, generator)
    return image


def random_drift(
    image: Image, settings: Augmentation, generator: np.random.Generator, reference: Image | None = None
) -> Image:
    """Change gray levels as ambient heat, gain control, sensor noise and focus drift would.

    Args:
        image: `(H, W)` uint8; left as it is.
        settings: Shares and strengths.
        generator: Source of all randomness.
        reference: `(H, W)` uint8 frame of any size whose histogram the image takes over.
    """
    drifting, inverted = generator.random(2) < (settings.photometric, settings.inversion)
    if drifting:
        image = random_blur(image, settings, generator)
        image = random_pattern(image, settings, generator)
        image = random_noise(image, settings, generator)
    levels: Levels = np.arange(256, dtype=np.float32)
    if reference is not None:
        levels = matched_levels(histogram(image), histogram(reference))
    if drifting:
        levels = random_levels(levels, image, settings, generator)
    if inverted:
        levels = 255 - levels
    if drifting or inverted or reference is not None:
        image = np.asarray(cv2.LUT(image, np.clip(np.rint(levels), 0, 255).astype(np.uint8)), dtype=np.uint8)
    return image


def random_levels(levels: Levels, image: Image, settings: Augmentation, generator: np.random.Generator) -> Levels:
    """Put stretch, gain and offset, and gamma behind the table `levels` of `image`."""
    stretched, toned, curved = generator.random(3) < (settings.stretch, TONE_SHARE, GAMMA_SHARE)
    if stretched:
        low, high = percentile_levels(histogram(image), *generator.uniform(0, TAIL, size=2))
        low, high = levels[low], levels[high]
        levels = (levels - low) * np.float32(255 / max(high - low, LEAST_SPAN))
    if toned:
        gain = generator.uniform(1 - settings.gain, 1 + settings.gain)
        offset = generator.uniform(-settings.offset, settings.offset) * 255
        mean = levels[image[::HISTOGRAM_STEP, ::HISTOGRAM_STEP]].mean()
        levels = ((levels - mean) * gain + mean + offset).astype(np.float32)
    if curved:
        exponent = (1 + settings.gamma) ** generator.uniform(-1, 1)
        levels = (255 * (levels.clip(0, 255) / 255) ** exponent).astype(np.float32)
    return levels


def histogram(image: Image) -> npt.NDArray[np.int64]:
    """`(256,)` pixels per gray level of a thinned image; the level of the padding counts as its neighbours do."""
    counts = np.bincount(image[::HISTOGRAM_STEP, ::HISTOGRAM_STEP].ravel(), minlength=256)
    counts[PADDING] = (counts[PADDING - 1] + counts[PADDING + 1]) // 2
    return counts


def percentile_levels(counts: npt.NDArray[np.int64], low: float, high: float) -> tuple[int, int]:
    """The gray levels below and above which the shares `low` and `high` of the pixels lie."""
    cumulated = counts.cumsum()
    bounds = np.array([low, 1 - high]) * cumulated[-1]
    first, last = np.searchsorted(cumulated, bounds, side="right").clip(0, 255)
    return int(first), int(max(first, last))


def matched_levels(counts: npt.NDArray[np.int64], reference: npt.NDArray[np.int64]) -> Levels:
    """The table that gives an image the histogram of another (Gonzalez and Woods, histogram specification).

    Args:
        counts: `(256,)` pixels per level of the image.
        reference: `(256,)` pixels per level of the other image.
    """
    if not counts.any() or not reference.any():
        return np.arange(256, dtype=np.float32)
    present = reference > 0
    # The middle of each level's pixels: the ends of a cumulated histogram would pull all tables up.
    own, wanted = (values.cumsum() - values / 2 for values in (counts / counts.sum(), reference / reference.sum()))
    return np.asarray(np.interp(own, wanted[present], np.flatnonzero(present)), dtype=np.float32)


def random_blur(image: Image, settings: Augmentation, generator: np.random.Generator) -> Image:
    """Put the image out of focus, as a Gaussian or as a disc."""
    if not settings.blur or generator.random() >= BLUR_SHARE:
        return image
    width = generator.uniform(0.3, 1) * settings.blur
    if generator.random() < 0.5:
        blurred = cv2.GaussianBlur(image, (0, 0), width)
    else:
        blurred = cv2.filter2D(image, -1, disc(width))
    return np.asarray(blurred, dtype=np.uint8)


def disc(radius: float) -> npt.NDArray[np.float32]:
    """A defocus kernel: a disc of `radius` pixels with a soft edge, odd square, float32, of sum 1."""
    reach = int(np.ceil(radius))
    axis = np.arange(-reach, reach + 1, dtype=np.float32)
    kernel = np.clip(radius + 0.5 - np.hypot(axis[:, None], axis[None, :]), 0, 1)
    return np.asarray(kernel / kernel.sum(), dtype=np.float32)


def random_pattern(image: Image, settings: Augmentation, generator: np.random.Generator) -> Image:
    """Add row and column offsets and a smooth field, as one matrix product of low rank."""
    striped, shaded = generator.random(2) < (PATTERN_SHARE, SHADING_SHARE)
    height, width = image.shape
    left, right = [], []
    if striped and settings.fixed_pattern:
        rows, columns = generator.uniform(0, settings.fixed_pattern, size=2)
        left += [rows * generator.standard_normal((height, 1)), np.ones((height, 1))]
        right += [np.ones((1, width)), columns * generator.standard_normal((1, width))]
    if shaded and settings.shading:
        field = generator.standard_normal((SHADING_WAVES, SHADING_WAVES))
        field[0, 0] = 0  # a constant is no shading
        amplitude = generator.uniform(0, settings.shading) / np.abs(field).sum()
        left.append(waves(height))
        right.append(amplitude * field @ waves(width).T)
    if not left:
        return image
    pattern = np.hstack(left).astype(np.float32) @ np.vstack(right).astype(np.float32)
    return np.asarray(cv2.add(image, pattern, dtype=cv2.CV_8U), dtype=np.uint8)


@cache
def waves(length: int) -> npt.NDArray[np.float32]:
    """`(length, SHADING_WAVES)` cosines along an axis, from the constant on."""
    position = (np.arange(length, dtype=np.float32) + 0.5) / length
    return np.cos(np.pi * position[:, None] * np.arange(SHADING_WAVES)).astype(np.float32)


def random_noise(image: Image, settings: Augmentation, generator: np.random.Generator) -> Image:
    """Add Gaussian noise: random bytes, looked up in the 256 quantiles of the distribution."""
    if not settings.noise or generator.random() >= NOISE_SHARE:
        return image
    quantiles = np.rint(normal_quantiles() * generator.uniform(0, settings.noise)).clip(-127, 127).astype(np.int8)
    draws = np.frombuffer(generator.bytes(image.size), dtype=np.uint8).reshape(image.shape)
    return np.asarray(cv2.add(image, cv2.LUT(draws, quantiles), dtype=cv2.CV_8U), dtype=np.uint8)


@cache
def normal_quantiles() -> npt.NDArray[np.float64]:
    """`(256,)` values of equal chance that stand for a normal distribution of mean 0 and standard deviation 1."""
    values = np.array([NormalDist().inv_cdf((number + 0.5) / 256) for number in range(256)])
    return np.asarray(values / values.std(), dtype=np.float64)
