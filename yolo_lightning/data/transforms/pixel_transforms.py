"""Pixel-level transforms of albumentations named by the configuration. Imported only if there are any."""

import json
import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any

import albumentations
import numpy as np
import numpy.typing as npt

Image = npt.NDArray[np.uint8]

PROBE = np.arange(64 * 64, dtype=np.uint8).reshape(64, 64, 1)
"""Gray image to which every transform is applied once before training starts."""


def apply_pixel_transforms(image: Image, transforms: Sequence[dict[str, Any]], generator: np.random.Generator) -> Image:
    """Apply `transforms` to `image` `(H, W)` or `(H, W, 3)` uint8.

    The pipeline is seeded for each sample; otherwise albumentations has the same random stream in every loader worker.
    """
    pipeline = build_pipeline(json.dumps(transforms))
    pipeline.set_random_seed(int(generator.integers(2**32)))
    if image.ndim == 3:
        return np.asarray(pipeline(image=image)["image"], dtype=np.uint8)
    return np.asarray(pipeline(image=image[..., None])["image"][..., 0], dtype=np.uint8)


@cache
def build_pipeline(transforms: str) -> Any:
    """Return an `albumentations.Compose` of transforms in JSON, each of which has been applied to a gray image."""
    return albumentations.Compose([build_transform(transform) for transform in json.loads(transforms)])


def build_transform(transform: dict[str, Any]) -> Any:
    name = transform.pop("name", None)
    transform_class = getattr(albumentations, str(name), None)
    if not (isinstance(transform_class, type) and issubclass(transform_class, albumentations.ImageOnlyTransform)):
        raise ValueError(
            "data.augmentation.pixel_transforms: name must be a pixel-level transform of albumentations, "
            f"such as CLAHE, MotionBlur or Sharpen, got {name!r}"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)  # albumentations only warns about unknown arguments
            tried = transform_class(**transform | {"p": 1.0})(image=PROBE)["image"]
            built = transform_class(**transform)
    except Exception as error:  # a transform may raise any exception; its arguments are the cause
        raise ValueError(f"data.augmentation.pixel_transforms: {name} rejects {transform}: {error}") from error
    if tried.shape != PROBE.shape or tried.dtype != np.uint8:
        raise ValueError(f"data.augmentation.pixel_transforms: {name} does not turn a gray image into a gray image")
    return built
