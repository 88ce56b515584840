"""Colour jitter of RGB frames: hue turned, saturation and value scaled, through one table, as in YOLOv8."""

import cv2
import numpy as np

from yolo_lightning.data.transforms.augmentation_settings import Augmentation
from yolo_lightning.data.transforms.mosaic import Image

HUES = 180
"""Hues of OpenCV's 8-bit images: one in two degrees."""


def random_colour(image: Image, settings: Augmentation, generator: np.random.Generator) -> Image:
    """Change hue, saturation and value by one random gain each.

    The table is that of Ultralytics 8.4 (`RandomHSV`); what has no colour stays without.

    Args:
        image: `(H, W, 3)` uint8, RGB; left as it is.
        settings: Strengths.
        generator: Source of all randomness.
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
