"""The pixel-level transforms of albumentations that a configuration names. Imported where there are any, not before."""

import json
import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any

import albumentations
import numpy as np
import numpy.typing as npt

Image = npt.NDArray[np.uint8]

PROBE = np.arange(64 * 64, dtype=np.uint8).reshape(64, 64)
"""A gray image on which every transform is tried once, before training starts."""


def apply_pixel_transforms(image: Image, transforms: Sequence[dict[str, Any]], generator: np.random.Generator) -> Image:
    """Run `image` `(H, W)` or `(H, W, 3)` uint8 through the pipeline of `transforms`.

    The pipeline is seeded for each sample: left alone, albumentations gives every loader worker the same random stream.
    """
    pipeline = cached_pipeline(json.dumps(list(transforms), sort_keys=True))
    pipeline.set_random_seed(int(generator.integers(2**32)))
    if image.ndim == 3:
        return np.asarray(pipeline(image=image)["image"], dtype=np.uint8)
    return np.asarray(pipeline(image=image[..., None])["image"][..., 0], dtype=np.uint8)


@cache
def cached_pipeline(transforms: str) -> Any:
    """The pipeline of this process for the transforms written as JSON."""
    return build_pipeline(json.loads(transforms))


def build_pipeline(transforms: Sequence[dict[str, Any]]) -> Any:
    """An `albumentations.Compose` of `transforms`, each of which has been tried on a gray image.

    Raises:
        ValueError: If a name or an argument is unknown, or a transform does not work on one channel.
    """
    return albumentations.Compose([build_transform(transform) for transform in transforms])


def build_transform(transform: dict[str, Any]) -> Any:
    """One transform, from its `name` and its arguments; see `build_pipeline`."""
    arguments = dict(transform)
    name = arguments.pop("name", None)
    transform_class = getattr(albumentations, str(name), None)
    if not (isinstance(transform_class, type) and issubclass(transform_class, albumentations.ImageOnlyTransform)):
        raise ValueError(
            f"augmentation.pixel_transforms: name is {name!r}, allowed are the pixel-level transforms of "
            "albumentations, such as CLAHE, MotionBlur or Sharpen"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)  # albumentations warns of unknown arguments and goes on
            certain = transform_class(**arguments | {"p": 1.0})
            tried = certain(image=PROBE[..., None])["image"]
            built = transform_class(**arguments)
    except Exception as error:  # whatever a foreign transform raises, its arguments are the reason
        raise ValueError(f"augmentation.pixel_transforms: {name} refuses {arguments}: {error}") from error
    if tried.shape != (*PROBE.shape, 1) or tried.dtype != np.uint8:
        raise ValueError(f"augmentation.pixel_transforms: {name} does not turn a gray image into a gray image")
    return built
