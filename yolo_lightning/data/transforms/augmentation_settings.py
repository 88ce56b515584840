"""Settings of the training augmentation, and the transforms of albumentations that they name."""

import json
import math
import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from yolo_lightning.errors import UserError
from yolo_lightning.utils.choices import AUTO, settings_group
from yolo_lightning.utils.offline import offline

Image = npt.NDArray[np.uint8 | np.float32]

PROBE = np.arange(64 * 64, dtype=np.uint8).reshape(64, 64, 1)
"""Gray image to which every transform of albumentations is applied once before training starts."""

SHARES = (
    "mosaic",
    "mixup",
    "translate",
    "flip_horizontal",
    "flip_vertical",
    "photometric",
    "offset",
    "stretch",
    "histogram_match",
    "inversion",
    "hsv_hue",
    "hsv_saturation",
    "hsv_value",
)
"""Settings from 0 to 1."""

CLOSE_MOSAIC_EPOCHS = 10  # Ultralytics' default


@settings_group("data.augmentation.paste", probability=">= 0, <= 1", count=">= 1")
class BoxPaste:
    """Objects of other frames pasted into training frames, before mosaic.

    An object is the rectangle of its box, and of the boxes that overlap it (a bicycle and its rider), from a training
    frame of the same month (of any month where months are unknown). It is pasted near its place in its own frame,
    beside all objects, with soft borders, with its labels, and with the brightness of its surroundings shifted to that
    of the new place. Objects at the border of their frame, and objects that cannot be separated from others, are
    not used. Each attempt that finds no valid place is repeated a few times.

    Attributes:
        probability: Fraction of frames that receive objects, 0 to 1; applies to each frame of a mosaic. 0 disables it.
        count: Maximum number of objects per frame, >= 1; the number is uniform from 1 to `count`. Each object reads one
            more frame.
        classes: Names of the classes of the objects; empty uses all. All classes that occur in the month are equally
            likely, so an object of a rare class is more likely than one of a frequent class.
    """

    probability: float = 0.0
    count: int = 2
    classes: tuple[str, ...] = ()


@settings_group(
    "data.augmentation",
    close_mosaic_epochs=">= 0",
    **dict.fromkeys(SHARES, ">= 0, <= 1"),
    degrees=">= 0, <= 180",
    scale=">= 0, <= 0.9",
    shear=">= 0, <= 45",
    gain=">= 0, <= 0.9",
    gamma=">= 0, <= 4",
    noise=">= 0, <= 64",
    fixed_pattern=">= 0, <= 64",
    shading=">= 0, <= 128",
    blur=">= 0, <= 10",
)
class Augmentation:
    """Strength of the training augmentation; the geometry has YOLOv8's defaults, and 0 disables each setting.

    Gray frames get the drift of thermal cameras, colour frames YOLOv8's jitter of hue, saturation and value.
    `photometric` is the fraction of samples with thermal drift. In these samples each effect from `gain` to `blur`
    occurs with a fixed probability (`photometric.py`), with a strength drawn uniformly up to its setting. The defaults
    stay within the yearly drift of one uncooled 8-bit camera: its gain control changes mean and contrast by tens of
    levels between seasons ("Seasons in Drift", Nikolov et al. 2021), a noise-equivalent temperature difference of 50 mK
    is one level of a 13 K scene and five levels of a flat 2.5 K scene, and fixed pattern and shading after a shutter
    correction amount to a few levels.

    Attributes:
        mosaic: Fraction of samples composed of four frames, 0 to 1.
        close_mosaic_epochs: Number of epochs at the end of training without mosaic, mixup and box paste, >= 0. `auto`:
            10, but at most a tenth of the training, rounded up.
        mixup: Fraction of samples blended with a second sample of other frames, 0 to 1. Both samples consist of mosaic
            and affine map; the ratio is drawn from Beta(32, 32), and the result has the boxes of both, as in
            Ultralytics. Doubles the time per such sample.
        paste: Objects of other frames pasted into each frame.
        degrees: Maximum rotation in either direction, degrees, 0 to 180. Doubles the time per sample if > 0.
        translate: Maximum shift in either direction as a fraction of the input size, 0 to 1.
        scale: Scaling by 1 - scale to 1 + scale, 0 to 0.9.
        shear: Maximum shear in either direction, degrees, 0 to 45. Doubles the time per sample if > 0.
        flip_horizontal: Fraction of samples mirrored left to right, 0 to 1.
        flip_vertical: Fraction of samples mirrored top to bottom, 0 to 1.
        photometric: Fraction of samples with thermal drift, 0 to 1.
        gain: Contrast about the mean level by 1 - gain to 1 + gain, 0 to 0.9; simulates gain control.
        offset: Maximum shift of all levels in either direction as a fraction of 255, 0 to 1; simulates ambient
            temperature.
        gamma: Exponent from 1 / (1 + gamma) to 1 + gamma, 0 to 4; simulates the display curve.
        stretch: Fraction of drifting samples that are stretched to the full range between two percentiles, 0 to 1;
            simulates gain control by the coldest and warmest pixels.
        histogram_match: Fraction of samples that receive the histogram of a random frame of the split, 0 to 1;
            simulates another month of the same scene. Reads one more frame.
        inversion: Fraction of samples with black-hot instead of white-hot polarity, 0 to 1.
        noise: Maximum standard deviation of Gaussian noise, gray levels, 0 to 64.
        fixed_pattern: Maximum standard deviation of row offsets and of column offsets, gray levels, 0 to 64; simulates
            microbolometer columns between two shutter corrections.
        shading: Maximum amplitude of a smooth additive field, gray levels, 0 to 128; simulates a warm lens.
        blur: Maximum standard deviation of a Gaussian, or radius of a defocus disc, pixels of the input, 0 to 10.
        hsv_hue: Maximum hue rotation in either direction as a fraction of a full turn, 0 to 1. Colour frames only.
        hsv_saturation: Saturation by 1 - hsv_saturation to 1 + hsv_saturation, 0 to 1. Colour frames only.
        hsv_value: Brightness (the V of HSV) by 1 - hsv_value to 1 + hsv_value, 0 to 1. Colour frames only.
        pixel_transforms: Further pixel-level transforms of albumentations, applied last, in order, to all samples. Each
            is a dictionary of `name` and arguments, such as `{name: CLAHE, clip_limit: [1.0, 3.0], p: 0.02}`. Workers
            import albumentations (1 s) only if there are any.
    """

    mosaic: float = 1.0
    close_mosaic_epochs: int | Literal["auto"] = CLOSE_MOSAIC_EPOCHS
    mixup: float = 0.0
    paste: BoxPaste = BoxPaste()
    degrees: float = 0.0
    translate: float = 0.1
    scale: float = 0.5
    shear: float = 0.0
    flip_horizontal: float = 0.5
    flip_vertical: float = 0.0
    photometric: float = 0.5
    gain: float = 0.3
    offset: float = 0.2
    gamma: float = 0.4
    stretch: float = 0.1
    histogram_match: float = 0.05
    inversion: float = 0.0
    noise: float = 5.0
    fixed_pattern: float = 2.0
    shading: float = 12.0
    blur: float = 1.2
    hsv_hue: float = 0.015
    hsv_saturation: float = 0.7
    hsv_value: float = 0.4
    pixel_transforms: tuple[dict[str, Any], ...] = ()

    def __post_init__(self) -> None:
        if self.pixel_transforms:
            _build_pipeline(json.dumps(self.pixel_transforms))

    def epochs_without_mosaic(self, epochs: int) -> int:
        """Return the number of epochs without mosaic at the end of a training of `epochs` epochs."""
        if self.close_mosaic_epochs == AUTO:
            return min(CLOSE_MOSAIC_EPOCHS, math.ceil(epochs / 10))
        return self.close_mosaic_epochs


def apply_pixel_transforms(
    image: Image, transforms: Sequence[dict[str, Any]], generator: np.random.Generator, *, is_gray: bool = True
) -> Image:
    """Apply `transforms` to `image` `(H, W)` or `(H, W, C)` uint8; to each channel of `is_gray` with the same seed.

    The pipeline is seeded for each sample; otherwise albumentations has the same random stream in every loader worker.
    """
    pipeline = _build_pipeline(json.dumps(transforms))
    seed = int(generator.integers(2**32))
    channels = [image]
    if is_gray:
        stacked = np.atleast_3d(image)
        channels = np.split(stacked, stacked.shape[2], axis=2)
    changed = []
    for channel in channels:
        pipeline.set_random_seed(seed)
        changed.append(pipeline(image=np.ascontiguousarray(channel))["image"])
    return np.concatenate(changed, axis=2, dtype=np.uint8).reshape(image.shape)


@cache
def _build_pipeline(transforms: str) -> Any:
    """Return an `albumentations.Compose` of transforms in JSON, each of which has been applied to a gray image."""
    with offline():
        import albumentations  # takes 1 s

    return albumentations.Compose([_build_transform(albumentations, transform) for transform in json.loads(transforms)])


def _build_transform(albumentations: Any, transform: dict[str, Any]) -> Any:
    name = transform.pop("name", None)
    transform_class = getattr(albumentations, str(name), None)
    if not (isinstance(transform_class, type) and issubclass(transform_class, albumentations.ImageOnlyTransform)):
        raise UserError(
            "data.augmentation.pixel_transforms: name must be a pixel-level transform of albumentations, "
            f"such as CLAHE, MotionBlur or Sharpen, got {name!r}"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)  # albumentations only warns about unknown arguments
            tried = transform_class(**transform | {"p": 1.0})(image=PROBE)["image"]
            built = transform_class(**transform)
    except Exception as error:  # a transform may raise any exception; its arguments are the cause
        raise UserError(f"data.augmentation.pixel_transforms: {name} rejects {transform}: {error}") from error
    if tried.shape != PROBE.shape or tried.dtype != np.uint8:
        raise UserError(f"data.augmentation.pixel_transforms: {name} does not turn a gray image into a gray image")
    return built
