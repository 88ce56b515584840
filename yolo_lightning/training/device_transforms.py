"""Batch transforms that are cheap on the device: multi-scale input, one class for all boxes."""

import math

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from yolo_lightning.data.batch import Batch
from yolo_lightning.data.image_size import STRIDE

SIZE_STREAM = 4
"""Separates the random numbers of input sizes from those of sample order and augmentation, which use the same seed."""

ONE_CLASS = "object"  # class name of a network with `single_class`


def training_size(longer: int, spread: float, seed: int, step: int, stride: int = STRIDE) -> int:
    """Return the longer side of the input of one training step, pixels, drawn as Ultralytics does.

    It depends on (seed, step) alone. `longer` is the longer side of the images. `spread` is the largest relative
    difference from it before rounding outwards to a multiple of the stride, > 0 and < 1.
    """
    smallest = max(stride, int(longer * (1 - spread)))
    generator = np.random.default_rng((SIZE_STREAM, seed, step))
    return int(generator.integers(smallest, int(longer * (1 + spread) + stride))) // stride * stride


def resized(images: Tensor, size: int, stride: int = STRIDE) -> Tensor:
    """Resize floating-point images `(B, C, H, W)` bilinearly, so that the longer side has `size` pixels.

    Sides are rounded up to multiples of the stride. Boxes are relative to the input and do not change.
    """
    height, width = images.shape[-2:]
    gain = size / max(height, width)
    if gain == 1:
        return images
    sides = [math.ceil(side * gain / stride) * stride for side in (height, width)]
    return nn.functional.interpolate(images, size=sides, mode="bilinear", align_corners=False)


def as_one_class(batch: Batch) -> Batch:
    return msgspec.structs.replace(batch, labels=torch.zeros_like(batch.labels))
