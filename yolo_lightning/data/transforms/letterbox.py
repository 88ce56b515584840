"""Letterbox: a frame scaled to fit the gray input of the network, with its boxes."""

from typing import NamedTuple, Self

import cv2
import numpy as np

from yolo_lightning.data.array_types import Float32Array, Int64Array
from yolo_lightning.data.boxes import Letterbox, frame_to_input, scaled_shape
from yolo_lightning.data.image_size import ImageSize
from yolo_lightning.data.transforms.augmentation_settings import Image

PADDING = 114  # Gray level outside a frame, as in YOLOv8


class Labelled(NamedTuple):
    """An image `(H, W)` or `(H, W, C)` with boxes `(N, 4)` xyxy in its pixels and labels `(N,)`.

    The image is uint8, or float32 with 0 to 255 as the range of a 16-bit frame.
    `gain` is the scaling still to be applied, input pixels per pixel of `image`; it differs from 1 only between mosaic
    and affine map. `problem` is the reason why a frame could not be used, in whose place the image is gray.
    """

    image: Image
    boxes: Float32Array
    labels: Int64Array
    gain: float = 1.0
    problem: str | None = None

    @classmethod
    def without_boxes(cls, image: Image, problem: str | None = None) -> Self:
        return cls(image, np.zeros((0, 4), np.float32), np.zeros(0, np.int64), problem=problem)


def blank(size: tuple[int, int], like: Image) -> Image:
    """Return a gray image of the size `(height, width)` with the channels and the dtype of `like`."""
    return np.full((*size, *like.shape[2:]), PADDING, dtype=like.dtype)


def place(image: Image, canvas: Image, left: int, top: int) -> None:
    """Copy the part of an image at `(left, top)` of a canvas, which may be negative, that is inside of the canvas."""
    bottom = top + image.shape[0]
    right = left + image.shape[1]
    canvas[max(top, 0) : max(bottom, 0), max(left, 0) : max(right, 0)] = image[
        max(-top, 0) : max(canvas.shape[0] - top, 0), max(-left, 0) : max(canvas.shape[1] - left, 0)
    ]


def resize_frame(frame: Image, gain: float, *, shrink_by_area: bool) -> Image:
    """Scale a frame by `gain`; area averaging when shrinking is sharper and slower, used in evaluation."""
    height, width = scaled_shape(frame.shape[0], frame.shape[1], gain)
    if (height, width) == frame.shape[:2]:
        return frame
    interpolation = cv2.INTER_AREA if gain < 1 and shrink_by_area else cv2.INTER_LINEAR
    return np.asarray(cv2.resize(frame, (width, height), interpolation=interpolation), dtype=frame.dtype)


def letterbox(frame: Labelled, size: ImageSize, *, shrink_by_area: bool) -> tuple[Labelled, Letterbox]:
    """Place a frame centred in a gray image of the given size, as large as possible."""
    height, width = frame.image.shape[:2]
    placement = Letterbox.fit(height, width, size)
    resized = resize_frame(frame.image, placement.gain, shrink_by_area=shrink_by_area)
    canvas = blank(size, resized)
    place(resized, canvas, placement.left, placement.top)
    return Labelled(canvas, frame_to_input(frame.boxes, placement), frame.labels), placement
