"""What is done to a frame before the network sees it, on one channel.

Geometry follows YOLOv8's recipe (mosaic of four on a double canvas, then a random affine map that crops it, then
flips); photometry stands for what drifts in a thermal camera over months. Every function draws from the generator it
is given and from nothing else.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

from yolo_lightning.boxes import FloatArray, Letterbox, clip_boxes, frame_to_input, scaled_shape

Image = npt.NDArray[np.uint8]

PADDING = 114
"""Gray level of what lies outside a frame, as in YOLOv8."""

HALF_PIXEL_ON = np.array([[1, 0, 0.5], [0, 1, 0.5], [0, 0, 1]])
HALF_PIXEL_BACK = np.array([[1, 0, -0.5], [0, 1, -0.5], [0, 0, 1]])

MINIMUM_SIDE = 2.0
"""Pixels. Boxes that an affine map leaves narrower are dropped (YOLOv8's value)."""

MINIMUM_AREA_SHARE = 0.1
"""Boxes of which an affine map leaves less than this share are dropped (YOLOv8's value)."""

MAXIMUM_ASPECT = 100.0
"""Boxes that an affine map leaves more elongated than this are dropped (YOLOv8's value)."""


@dataclass(frozen=True)
class Augmentation:
    """Strength of the training augmentation; YOLOv8's defaults for the geometry.

    Attributes:
        mosaic: Share of samples made of four frames, 0 to 1.
        close_mosaic_epochs: Mosaic is off for this many epochs at the end.
        degrees: Rotation up to this angle either way, degrees.
        translate: Shift up to this share of the input size either way, 0 to 1.
        scale: Scaling by 1 - scale to 1 + scale, 0 to 0.9.
        shear: Shear up to this angle either way, degrees.
        flip_horizontal: Share of samples mirrored left to right, 0 to 1.
        flip_vertical: Share of samples mirrored top to bottom, 0 to 1.
        photometric: Share of samples whose gray levels are changed (gain, offset, gamma, noise, blur), 0 to 1.
        inversion: Share of samples with black-hot instead of white-hot polarity, 0 to 1.
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
    inversion: float = 0.0

    def __post_init__(self) -> None:
        for name in ("mosaic", "translate", "flip_horizontal", "flip_vertical", "photometric", "inversion"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"augmentation.{name} is {getattr(self, name)}, allowed are 0 to 1")
        if not 0 <= self.scale <= 0.9:
            raise ValueError(f"augmentation.scale is {self.scale}, allowed are 0 to 0.9")
        if self.close_mosaic_epochs < 0:
            raise ValueError(f"augmentation.close_mosaic_epochs is {self.close_mosaic_epochs}, allowed are 0 and more")
        for name, most in (("degrees", 180), ("shear", 45)):
            if not 0 <= getattr(self, name) <= most:
                raise ValueError(f"augmentation.{name} is {getattr(self, name)}, allowed are 0 to {most} degrees")


class Labelled(NamedTuple):
    """An image `(H, W)` uint8 with boxes `(N, 4)` xyxy in its pixels and labels `(N,)`."""

    image: Image
    boxes: FloatArray
    labels: npt.NDArray[np.int64]


def resize_frame(frame: Image, gain: float, *, shrink_by_area: bool) -> Image:
    """Scale a frame by `gain`; averaging areas when shrinking is sharper but slower, so only evaluation asks for it."""
    height, width = frame.shape
    height, width = scaled_shape(height, width, gain)
    if (height, width) == frame.shape:
        return frame
    interpolation = cv2.INTER_AREA if gain < 1 and shrink_by_area else cv2.INTER_LINEAR
    return np.asarray(cv2.resize(frame, (width, height), interpolation=interpolation), dtype=np.uint8)


def letterbox(frame: Labelled, size: int, *, shrink_by_area: bool) -> tuple[Labelled, Letterbox]:
    """Place a frame centred in a `size` x `size` gray square, as large as fits."""
    height, width = frame.image.shape
    placement = Letterbox.fit(height, width, size)
    resized = resize_frame(frame.image, placement.gain, shrink_by_area=shrink_by_area)
    canvas = np.full((size, size), PADDING, dtype=np.uint8)
    height, width = resized.shape
    canvas[placement.top : placement.top + height, placement.left : placement.left + width] = resized
    return Labelled(canvas, frame_to_input(frame.boxes, placement), frame.labels), placement


def mosaic(frames: list[Labelled], size: int, generator: np.random.Generator) -> Labelled:
    """Four frames, each scaled to `size`, around a random centre of a `2 size` x `2 size` canvas."""
    canvas = np.full((2 * size, 2 * size), PADDING, dtype=np.uint8)
    centre_x, centre_y = generator.integers(size // 2, size + size // 2, size=2)
    boxes = []
    for corner, frame in enumerate(frames):
        gain = size / max(frame.image.shape)
        tile = resize_frame(frame.image, gain, shrink_by_area=False)
        height, width = tile.shape
        left = int(centre_x) - (width if corner % 2 == 0 else 0)
        top = int(centre_y) - (height if corner < 2 else 0)
        x1, y1, x2, y2 = max(left, 0), max(top, 0), min(left + width, 2 * size), min(top + height, 2 * size)
        canvas[y1:y2, x1:x2] = tile[y1 - top : y2 - top, x1 - left : x2 - left]
        boxes.append(frame_to_input(frame.boxes, Letterbox(gain, left, top)))
    clipped = clip_boxes(np.concatenate(boxes), 2 * size, 2 * size)
    labels = np.concatenate([frame.labels for frame in frames])
    keep = ((clipped[:, 2:] - clipped[:, :2]) > 0).all(axis=1)
    return Labelled(canvas, clipped[keep], labels[keep])


def random_affine(labelled: Labelled, size: int, settings: Augmentation, generator: np.random.Generator) -> Labelled:
    """Rotate, scale, shear and shift the image about its centre into a `size` x `size` output."""
    height, width = labelled.image.shape
    angle = generator.uniform(-settings.degrees, settings.degrees)
    gain = generator.uniform(1 - settings.scale, 1 + settings.scale)
    shear_x, shear_y = np.tan(np.deg2rad(generator.uniform(-settings.shear, settings.shear, size=2)))
    shift_x, shift_y = generator.uniform(0.5 - settings.translate, 0.5 + settings.translate, size=2) * size
    centre = np.array([[1, 0, -width / 2], [0, 1, -height / 2], [0, 0, 1]])
    rotate = np.vstack((cv2.getRotationMatrix2D((0, 0), angle, gain), (0, 0, 1)))
    shear = np.array([[1, shear_x, 0], [shear_y, 1, 0], [0, 0, 1]])
    shift = np.array([[1, 0, shift_x], [0, 1, shift_y], [0, 0, 1]])
    edges = shift @ shear @ rotate @ centre
    matrix = edges[:2]
    # Boxes count from a pixel's edge, OpenCV from its centre.
    centres = (HALF_PIXEL_BACK @ edges @ HALF_PIXEL_ON)[:2]
    image = cv2.warpAffine(labelled.image, centres, (size, size), flags=cv2.INTER_LINEAR, borderValue=(PADDING,))
    moved = clip_boxes(map_boxes(labelled.boxes, matrix), size, size)
    keep = still_visible(labelled.boxes * np.float32(gain), moved)
    return Labelled(np.asarray(image, dtype=np.uint8), moved[keep], labelled.labels[keep])


def map_boxes(boxes: FloatArray, matrix: npt.NDArray[np.float64]) -> FloatArray:
    """The upright boxes around the images of `boxes` `(N, 4)` xyxy under the 2 x 3 affine `matrix`."""
    corners = boxes[:, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(-1, 4, 2) @ matrix[:, :2].T + matrix[:, 2]
    return np.concatenate((corners.min(axis=1), corners.max(axis=1)), axis=1).astype(np.float32)


def still_visible(before: FloatArray, after: FloatArray) -> npt.NDArray[np.bool_]:
    """Which boxes are still worth learning after an affine map cut them; both `(N, 4)` xyxy at the same scale."""
    old_sides, sides = before[:, 2:] - before[:, :2], after[:, 2:] - after[:, :2]
    tiny = np.float32(1e-9)
    aspect = sides.max(axis=1, initial=0) / (sides.min(axis=1, initial=np.inf) + tiny)
    share = sides.prod(axis=1) / (old_sides.prod(axis=1) + tiny)
    visible: npt.NDArray[np.bool_] = (
        (sides > MINIMUM_SIDE).all(axis=1) & (share > MINIMUM_AREA_SHARE) & (aspect < MAXIMUM_ASPECT)
    )
    return visible


def random_flip(labelled: Labelled, settings: Augmentation, generator: np.random.Generator) -> Labelled:
    """Mirror the image along each axis with the settings' chances."""
    image, boxes, labels = labelled
    height, width = image.shape
    if generator.random() < settings.flip_horizontal:
        image, boxes = image[:, ::-1], np.stack((width - boxes[:, 2], boxes[:, 1], width - boxes[:, 0], boxes[:, 3]), 1)
    if generator.random() < settings.flip_vertical:
        image, boxes = image[::-1], np.stack((boxes[:, 0], height - boxes[:, 3], boxes[:, 2], height - boxes[:, 1]), 1)
    return Labelled(np.ascontiguousarray(image), boxes, labels)


def random_photometry(image: Image, settings: Augmentation, generator: np.random.Generator) -> Image:
    """Change gray levels as ambient heat, gain control, sensor noise and focus drift would."""
    photometric, inverted = generator.random(2) < (settings.photometric, settings.inversion)
    if photometric:
        stage = photometric_stage()
        # Left alone, albumentations gives every loader worker the same random stream.
        stage.set_random_seed(int(generator.integers(2**32)))
        image = np.asarray(stage(image=image[..., None])["image"][..., 0], dtype=np.uint8)
    return 255 - image if inverted else image


@cache
def photometric_stage() -> Any:
    """The albumentations pipeline of this process: gain and offset, gamma, sensor noise, defocus."""
    import albumentations

    return albumentations.Compose(
        [
            albumentations.RandomBrightnessContrast(brightness_limit=0.2, contrast_limit=0.3, p=0.8),
            albumentations.RandomGamma(gamma_limit=(70, 140), p=0.3),
            albumentations.GaussNoise(std_range=(0.01, 0.03), p=0.1),
            albumentations.GaussianBlur(blur_limit=(3, 5), p=0.05),
        ]
    )
