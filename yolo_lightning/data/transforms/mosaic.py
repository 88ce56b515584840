"""Geometric augmentation of a gray or RGB image with its boxes: mosaic, affine map, mixup, flips.

Follows YOLOv8's recipe: mosaic of four frames on a canvas of twice the input size, random affine map that crops the
canvas, flips. The canvas has the resolution of the frames, so that every pixel is resampled once. All randomness comes
from the generator argument.
"""

from dataclasses import replace

import cv2
import numpy as np

from yolo_lightning.data.array_types import BoolArray, Float32Array, Float64Array
from yolo_lightning.data.boxes import Letterbox, clip_boxes, frame_to_input
from yolo_lightning.data.image_size import ImageSize
from yolo_lightning.data.transforms.augmentation_settings import Augmentation, Image
from yolo_lightning.data.transforms.letterbox import PADDING, Labelled, blank, place, resize_frame

# YOLOv8's limits for boxes after an affine map
MINIMUM_SIDE = 2.0  # Pixels
MINIMUM_AREA_SHARE = 0.1  # Remaining fraction of the area
MAXIMUM_ASPECT = 100.0

LARGEST_CUT = 2  # Image sides. A larger part is warped instead of cropped, because most of it is padding.


def mosaic(frames: list[Labelled], size: ImageSize, generator: np.random.Generator) -> Labelled:
    """Place four frames around a random centre of a canvas of twice the height and width of the input.

    Every frame is as large as in a letterbox of the input. If all frames are smaller, the canvas has the resolution of
    the largest, and `gain` of the result is the remaining enlargement.
    """
    shapes = [frame.image.shape[:2] for frame in frames]
    enlargement = max(1.0, min(Letterbox.fit(height, width, size).gain for height, width in shapes))
    tile_size = ImageSize(round(size.height / enlargement), round(size.width / enlargement))
    canvas = blank((2 * tile_size.height, 2 * tile_size.width), frames[0].image)
    centre_x = int(generator.integers(tile_size.width // 2, tile_size.width + tile_size.width // 2))
    centre_y = int(generator.integers(tile_size.height // 2, tile_size.height + tile_size.height // 2))
    boxes = []
    for corner, frame in enumerate(frames):
        height, width = frame.image.shape[:2]
        fitted = Letterbox.fit(height, width, tile_size)
        tile = resize_frame(frame.image, fitted.gain, shrink_by_area=False)
        x = centre_x
        y = centre_y
        if corner % 2 == 0:
            x -= tile.shape[1]
        if corner < 2:
            y -= tile.shape[0]
        place(tile, canvas, x, y)
        boxes.append(frame_to_input(frame.boxes, replace(fitted, left=x, top=y)))
    clipped = clip_boxes(np.concatenate(boxes), *canvas.shape[:2])
    labels = np.concatenate([frame.labels for frame in frames])
    keep = ((clipped[:, 2:] - clipped[:, :2]) > 0).all(axis=1)
    return Labelled(canvas, clipped[keep], labels[keep], enlargement)


def random_affine(
    labelled: Labelled, size: ImageSize, settings: Augmentation, generator: np.random.Generator
) -> Labelled:
    """Rotate, scale, shear and shift the image about its centre into an output of the given size.

    Without rotation and shear, the map of image and boxes is rounded to whole pixels of the image (scale by less than
    1/256, position by half a pixel), because a crop and a resize take a fifth of the time of a warp.
    """
    height, width = labelled.image.shape[:2]
    angle = generator.uniform(-settings.degrees, settings.degrees)
    gain = generator.uniform(1 - settings.scale, 1 + settings.scale) * labelled.gain
    shear_x, shear_y = np.tan(np.deg2rad(generator.uniform(-settings.shear, settings.shear, size=2)))
    shift_x, shift_y = generator.uniform(0.5 - settings.translate, 0.5 + settings.translate, size=2) * size[::-1]
    part = ImageSize(*(max(1, round(side / gain)) for side in size))
    gains = np.array([gain, gain])  # along x and y
    if settings.degrees == settings.shear == 0 and max(part) <= LARGEST_CUT * max(height, width):
        gains = np.array([size.width / part.width, size.height / part.height])
        x = round(width / 2 - shift_x / gains[0])
        y = round(height / 2 - shift_y / gains[1])
        image = cv2.resize(cut(labelled.image, x, y, part), size[::-1], interpolation=cv2.INTER_LINEAR)
        edges = np.diag([*gains, 1]) @ translation(-x, -y)
    else:
        rotate = np.vstack((cv2.getRotationMatrix2D((0, 0), angle, gain), (0, 0, 1)))
        shear = np.array([[1, shear_x, 0], [shear_y, 1, 0], [0, 0, 1]])
        edges = translation(shift_x, shift_y) @ shear @ rotate @ translation(-width / 2, -height / 2)
        # Coordinates of boxes refer to pixel edges, those of OpenCV to pixel centres.
        centres = (translation(-0.5, -0.5) @ edges @ translation(0.5, 0.5))[:2]
        image = cv2.warpAffine(labelled.image, centres, size[::-1], flags=cv2.INTER_LINEAR, borderValue=(PADDING,) * 4)
    moved = clip_boxes(map_boxes(labelled.boxes, edges[:2]), *size)
    keep = still_visible(labelled.boxes * np.tile(gains, 2).astype(np.float32), moved)
    return Labelled(np.asarray(image, dtype=labelled.image.dtype), moved[keep], labelled.labels[keep])


def translation(x: float, y: float) -> Float64Array:
    """Return the 3 x 3 matrix of a shift by `(x, y)`."""
    return np.array([[1, 0, x], [0, 1, y], [0, 0, 1]])


def cut(image: Image, left: int, top: int, size: ImageSize) -> Image:
    """Return the part of the given size at `(left, top)`, which may be negative; gray outside the image."""
    height, width = image.shape[:2]
    if 0 <= left <= width - size.width and 0 <= top <= height - size.height:
        return image[top : top + size.height, left : left + size.width]
    part = blank(size, image)
    place(image, part, -left, -top)
    return part


def map_boxes(boxes: Float32Array, matrix: Float64Array) -> Float32Array:
    """Return the axis-aligned bounds of `boxes` `(N, 4)` xyxy after the 2 x 3 affine `matrix`."""
    corners = boxes[:, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(-1, 4, 2) @ matrix[:, :2].T + matrix[:, 2]
    return np.concatenate((corners.min(axis=1), corners.max(axis=1)), axis=1).astype(np.float32)


def still_visible(before: Float32Array, after: Float32Array) -> BoolArray:
    """Return `(N,)` bool: boxes within the limits after clipping; both `(N, 4)` xyxy at the same scale."""
    old_sides = before[:, 2:] - before[:, :2]
    sides = after[:, 2:] - after[:, :2]
    tiny = np.float32(1e-9)
    aspect = sides.max(axis=1, initial=0) / (sides.min(axis=1, initial=np.inf) + tiny)
    share = sides.prod(axis=1) / (old_sides.prod(axis=1) + tiny)
    return np.asarray((sides > MINIMUM_SIDE).all(axis=1) & (share > MINIMUM_AREA_SHARE) & (aspect < MAXIMUM_ASPECT))


def mixup(first: Labelled, second: Labelled, ratio: float) -> Labelled:
    """Return `ratio` x `first` + (1 - `ratio`) x `second`, rounded down, with the boxes of both, as in Ultralytics."""
    blended = (first.image * ratio + second.image * (1 - ratio)).astype(first.image.dtype)
    boxes = np.concatenate((first.boxes, second.boxes))
    return Labelled(blended, boxes, np.concatenate((first.labels, second.labels)))


def random_flip(labelled: Labelled, settings: Augmentation, generator: np.random.Generator) -> Labelled:
    """Mirror the image along each axis with the probabilities of the settings."""
    image = labelled.image
    boxes = labelled.boxes
    for axis, share in ((1, settings.flip_horizontal), (0, settings.flip_vertical)):
        if generator.random() < share:
            image = np.asarray(cv2.flip(image, axis), dtype=image.dtype)
            ends = [1 - axis, 3 - axis]  # columns of the lower and the upper ends of the boxes along the axis
            boxes = boxes.copy()
            boxes[:, ends] = image.shape[axis] - boxes[:, ends[::-1]]
    return Labelled(image, boxes, labelled.labels)
