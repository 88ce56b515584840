"""What is done to a batch on the device, where it is cheap: the size of the input, one class for all."""

import math

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from yolo_lightning.data.batch import Batch
from yolo_lightning.data.boxes import STRIDE

SIZE_STREAM = 4
"""Keeps the random numbers of input sizes apart from those of the order and of the samples."""

ONE_CLASS = "object"
"""Name of the only class where all classes count as one."""


def training_size(image_size: int, spread: float, seed: int, step: int) -> int:
    """Side of the input in one training step, pixels; a function of (seed, step), drawn as Ultralytics draws it.

    Args:
        image_size: Configured side, pixels.
        spread: The side is at most this share smaller or larger, before it is rounded outwards to a multiple of the
            stride; 0 up to but not 1, 0 keeps it.
        seed: Seed of the run.
        step: Steps taken before this one since training began.
    """
    if not spread:
        return image_size
    smallest = max(STRIDE, int(image_size * (1 - spread)))
    generator = np.random.default_rng((SIZE_STREAM, seed, step))
    return int(generator.integers(smallest, int(image_size * (1 + spread) + STRIDE))) // STRIDE * STRIDE


def resized(images: Tensor, size: int) -> Tensor:
    """Images `(B, C, H, W)`, floating point, scaled bilinearly so that the longer side is `size` pixels.

    Sides are rounded up to multiples of the stride. Boxes are shares of the input and stay as they are.
    """
    height, width = images.shape[-2:]
    gain = size / max(height, width)
    if gain == 1:
        return images
    sides = [math.ceil(side * gain / STRIDE) * STRIDE for side in (height, width)]
    return nn.functional.interpolate(images, size=sides, mode="bilinear", align_corners=False)


def as_one_class(batch: Batch) -> Batch:
    """The batch with all boxes of class 0."""
    return msgspec.structs.replace(batch, labels=torch.zeros_like(batch.labels))
