"""Settings of the training augmentation. Kept apart from the code that follows them: a worker receives them pickled."""

from dataclasses import dataclass
from typing import Any

RANGES: dict[str, tuple[float, float, str]] = {
    "mosaic": (0, 1, ""),
    "degrees": (0, 180, " degrees"),
    "translate": (0, 1, ""),
    "scale": (0, 0.9, ""),
    "shear": (0, 45, " degrees"),
    "flip_horizontal": (0, 1, ""),
    "flip_vertical": (0, 1, ""),
    "photometric": (0, 1, ""),
    "gain": (0, 0.9, ""),
    "offset": (0, 1, ""),
    "gamma": (0, 4, ""),
    "stretch": (0, 1, ""),
    "histogram_match": (0, 1, ""),
    "inversion": (0, 1, ""),
    "noise": (0, 64, " gray levels"),
    "fixed_pattern": (0, 64, " gray levels"),
    "shading": (0, 128, " gray levels"),
    "blur": (0, 10, " pixels"),
    "hsv_hue": (0, 1, ""),
    "hsv_saturation": (0, 1, ""),
    "hsv_value": (0, 1, ""),
}
"""Lowest and highest allowed value of each setting, and its unit."""


@dataclass(frozen=True)
class Augmentation:
    """Strength of the training augmentation; YOLOv8's defaults for the geometry, 0 is off throughout.

    Gray frames drift as thermal cameras do, frames in colour get YOLOv8's jitter of hue, saturation and value instead.
    `photometric` is the one knob for thermal drift: the share of samples that drift at all. In these, each effect below
    it occurs by chance (`photometric.py`), as strong as a uniform draw up to its setting says.
    The defaults stay within what one uncooled 8-bit camera shows over a year: its own gain control moves mean and
    contrast by tens of levels between seasons ("Seasons in Drift", Nikolov et al. 2021), a noise-equivalent temperature
    difference of 50 mK is one level of a 13 K scene and five of a flat 2.5 K one, and the fixed pattern and the shading
    that a shutter correction leaves behind stand at a few levels.

    Attributes:
        mosaic: Share of samples made of four frames, 0 to 1.
        close_mosaic_epochs: Mosaic is off for this many epochs at the end.
        degrees: Rotation up to this angle either way, degrees, 0 to 180. Not 0, samples take twice as long.
        translate: Shift up to this share of the input size either way, 0 to 1.
        scale: Scaling by 1 - scale to 1 + scale, 0 to 0.9.
        shear: Shear up to this angle either way, degrees, 0 to 45. As slow as rotation.
        flip_horizontal: Share of samples mirrored left to right, 0 to 1.
        flip_vertical: Share of samples mirrored top to bottom, 0 to 1.
        photometric: Share of samples with thermal drift, 0 to 1.
        gain: Contrast about the mean level, by 1 - gain to 1 + gain, 0 to 0.9: gain control.
        offset: Shift of all levels up to this share of the range of 255 either way, 0 to 1: ambient temperature.
        gamma: Exponent from 1 / (1 + gamma) to 1 + gamma, 0 to 4: display curve of the camera.
        stretch: Share of drifting samples stretched to the full range between two percentiles, 0 to 1: gain control
            that follows the coldest and warmest pixels.
        histogram_match: Share of samples that take over the histogram of a random frame of the split, 0 to 1: another
            month over the same scene. Costs one more frame to read.
        inversion: Share of samples with black-hot instead of white-hot polarity, 0 to 1.
        noise: Standard deviation of Gaussian noise up to this, gray levels, 0 to 64.
        fixed_pattern: Standard deviation of row and of column offsets up to this, gray levels, 0 to 64: microbolometer
            columns between two shutter corrections.
        shading: Amplitude of a smooth additive field up to this, gray levels, 0 to 128: warm lens, narcissus.
        blur: Standard deviation of a Gaussian, or radius of a defocus disc, up to this, pixels of the input, 0 to 10.
        hsv_hue: Hue turned by up to this share of a full turn either way, 0 to 1. Frames in colour only.
        hsv_saturation: Saturation scaled by 1 - this to 1 + this, 0 to 1. Frames in colour only.
        hsv_value: Brightness (the V of HSV) scaled by 1 - this to 1 + this, 0 to 1. Frames in colour only.
        pixel_transforms: Further pixel-level transforms of albumentations, applied last, in order, to all samples: per
            transform its `name` and its arguments, such as `{name: CLAHE, clip_limit: [1.0, 3.0], p: 0.02}`. Empty, no
            worker imports albumentations, which takes a second.
    """

    mosaic: float = 1.0
    close_mosaic_epochs: int = 10
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
        for name, (least, most, unit) in RANGES.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise ValueError(f"augmentation.{name} is {value}, allowed are {least} to {most}{unit}")
        if self.close_mosaic_epochs < 0:
            raise ValueError(f"augmentation.close_mosaic_epochs is {self.close_mosaic_epochs}, allowed are 0 and more")
        if self.pixel_transforms:
            from yolo_lightning.data.transforms.pixel_transforms import build_pipeline

            build_pipeline(self.pixel_transforms)
