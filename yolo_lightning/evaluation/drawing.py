"""Boxes drawn on images by OpenCV: for the frame gallery, the contact sheet and the results of a `Detector`."""

from collections.abc import Sequence

import cv2
import numpy as np
import torch

from yolo_lightning.data.array_types import Float32Array, UInt8Array
from yolo_lightning.data.batch import Batch, Prediction, Target
from yolo_lightning.data.boxes import scaled_shape
from yolo_lightning.utils.plain_text import one_line

SIDE_WIDTH = 640
"""Width of one half of a picture in pixels. Smaller frames are enlarged by an integer factor, larger ones reduced."""

LARGEST_HEIGHT = 8192
"""Height of a picture in pixels; JPEG has at most 65,500."""

SHEET_CELL = 320
"""Longer side of a frame of a sheet in pixels."""

GAP = 8
GRAY = 128
JPEG_QUALITY = 80
FONT = cv2.FONT_HERSHEY_SIMPLEX
FONT_SCALE = 0.5
GALLERY_FONT_SCALE = 0.9  # legible in a report, which shows the pictures at half their size

CLASS_COLOURS = ("#2ba6de", "#e8a90c", "#f0383b", "#6cab3f", "#b067ea", "#f07d1a", "#2f9c7e", "#f25597")
"""Colours of the first classes in all pictures and curves, visible on gray frames and on light and dark pages; further
classes repeat them."""

Image = UInt8Array


def original_frame(batch: Batch, position: int) -> Image:
    """Return a frame in its original size, cropped from the letterboxed image.

    The frame is `(H, W)` or `(H, W, 3)` uint8, without a difference from the background.
    """
    height, width = batch.frame_shapes[position]
    placement = batch.letterboxes[position]
    channels = batch.images[position].cpu().clamp(0, 255).to(torch.uint8)
    image = channels[0].numpy()
    if len(channels) == 3:
        image = channels.permute(1, 2, 0).contiguous().numpy()
    rows, columns = scaled_shape(height, width, placement.gain)
    inside = image[placement.top : placement.top + rows, placement.left : placement.left + columns]
    return np.asarray(cv2.resize(inside, (width, height)), dtype=np.uint8)


def resized(image: Image, width: int, height: int) -> Image:
    """Return a gray or RGB image in another size as BGR, which OpenCV expects."""
    method = cv2.INTER_AREA if width < image.shape[1] else cv2.INTER_CUBIC
    code = cv2.COLOR_GRAY2BGR if image.ndim == 2 or image.shape[2] == 1 else cv2.COLOR_RGB2BGR
    return np.asarray(cv2.resize(cv2.cvtColor(image, code), (width, height), interpolation=method), dtype=np.uint8)


def side_by_side(frame: Image, target: Target, prediction: Prediction) -> Image:
    """Draw annotated objects on the left and detections with their scores on the right, one colour per class.

    `frame` is `(H, W)` or `(H, W, 3)` RGB uint8; boxes are in its pixels. The result is BGR, as OpenCV expects.
    """
    gain = min(enlargement(frame.shape[1]), LARGEST_HEIGHT / frame.shape[0])
    annotated, detected = _halves(frame, target, prediction, gain, GALLERY_FONT_SCALE)
    gap = np.full((len(annotated), GAP, 3), GRAY, np.uint8)
    return np.concatenate([annotated, gap, detected], axis=1)


def prediction_sheet(frames: Sequence[tuple[Image, Target, Prediction]]) -> Image:
    """Draw one or more frames side by side: annotated objects in the upper row, detections in the lower one; BGR."""
    columns = []
    for frame, target, prediction in frames:
        gain = SHEET_CELL / max(frame.shape[:2])
        columns.append(_halves(frame, target, prediction, gain, FONT_SCALE))
    height = max(len(annotated) for annotated, _ in columns)
    rows = []
    for row in zip(*columns, strict=True):
        cells = [_padded(cell, height + GAP, SHEET_CELL + GAP) for cell in row]
        rows.append(np.concatenate(cells, axis=1))
    return np.concatenate(rows)[:-GAP, :-GAP]


def _halves(
    frame: Image, target: Target, prediction: Prediction, gain: float, font_scale: float
) -> tuple[Image, Image]:
    """Return a frame enlarged by `gain`, once with its annotated objects and once with its detections."""
    width = max(1, round(frame.shape[1] * gain))
    plain = resized(frame, width, max(1, round(frame.shape[0] * gain)))
    words = [f"{score:.2f}" for score in prediction.scores.tolist()]
    boxes = (prediction.boxes * gain).numpy()
    detected = with_boxes(plain, boxes, prediction.labels.tolist(), words, font_scale=font_scale)
    return with_boxes(plain, (target.boxes * gain).numpy(), target.labels.tolist()), detected


def _padded(image: Image, height: int, width: int) -> Image:
    """Return an image with a gray margin at its right and lower edge."""
    padding = ((0, height - image.shape[0]), (0, width - image.shape[1]), (0, 0))
    return np.pad(image, padding, constant_values=GRAY)


def enlargement(width: int) -> float:
    """Return the factor from the frame to one half of the picture; integers keep thermal pixels sharp."""
    if width <= SIDE_WIDTH:
        return float(SIDE_WIDTH // width)
    return SIDE_WIDTH / width


def with_boxes(
    image: Image,
    boxes: Float32Array,
    labels: Sequence[int],
    words: Sequence[str] = (),
    *,
    width: int = 2,
    font_scale: float = FONT_SCALE,
) -> Image:
    """Return a copy of a BGR image with outlined boxes, the first one on top, and a word at each box.

    `boxes` are `(N, 4)` xyxy in pixels of the image; without `words`, boxes have no text.
    """
    drawn = image.copy()
    corners = boxes.round().astype(int).tolist()
    for number in reversed(range(len(corners))):
        x1, y1, x2, y2 = corners[number]
        colour = bgr(class_colour(labels[number]))
        cv2.rectangle(drawn, (x1, y1), (x2, y2), colour, width)
        if words and words[number]:
            write(drawn, words[number], x1, y1, colour, font_scale)
    return drawn


def class_colour(label: int) -> str:
    """Return the colour `#rrggbb` of a class, by its label from 0."""
    return CLASS_COLOURS[label % len(CLASS_COLOURS)]


def bgr(colour: str) -> tuple[int, int, int]:
    """Return blue, green and red of a colour `#rrggbb`."""
    red, green, blue = bytes.fromhex(colour[1:])
    return blue, green, red


def write(
    image: Image, text: str, left: int, top: int, colour: tuple[int, int, int], font_scale: float = FONT_SCALE
) -> None:
    """Write text on black above a corner, or below the corner at the upper edge of the image."""
    text = one_line(text)
    (width, height), _ = cv2.getTextSize(text, FONT, font_scale, 1)
    x = max(0, min(left, image.shape[1] - width - 2))
    bottom = top - 3 if top - height - 5 >= 0 else top + height + 5
    cv2.rectangle(image, (x, bottom - height - 2), (x + width + 2, bottom + 2), (0, 0, 0), cv2.FILLED)
    cv2.putText(image, text, (x + 1, bottom), FONT, font_scale, colour, 1, cv2.LINE_AA)


def encode(image: Image) -> bytes:
    done, content = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])
    assert done, "OpenCV writes JPEG"
    return content.tobytes()
