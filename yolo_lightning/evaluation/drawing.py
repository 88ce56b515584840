"""Boxes drawn on images by OpenCV: for the frame gallery, the contact sheet and the results of a `Detector`."""

from collections.abc import Sequence

import cv2
import numpy as np
import torch

from yolo_lightning.data.array_types import Float32Array, Int64Array, UInt8Array
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
GALLERY_FONT_SCALE = 0.9  # of pictures of `SIDE_WIDTH`; legible in a report, which shows them at half their size

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


def side_by_side(frame: Image, target: Target, prediction: Prediction, class_names: Sequence[str]) -> Image:
    """Draw annotated objects on the left and detections with their scores on the right, one colour per class.

    `frame` is `(H, W)` or `(H, W, 3)` RGB uint8; boxes are in its pixels. The result is BGR, as OpenCV expects.
    """
    gain = min(enlargement(frame.shape[1]), LARGEST_HEIGHT / frame.shape[0])
    font_scale = max(FONT_SCALE, GALLERY_FONT_SCALE * gain * frame.shape[1] / SIDE_WIDTH)
    annotated, detected = _halves(frame, target, prediction, class_names, gain, font_scale)
    gap = np.full((len(annotated), GAP, 3), GRAY, np.uint8)
    return np.concatenate([annotated, gap, detected], axis=1)


def prediction_sheet(frames: Sequence[tuple[Image, Target, Prediction]], class_names: Sequence[str]) -> Image:
    """Draw one or more frames side by side: annotated objects in the upper row, detections in the lower one; BGR."""
    columns = []
    for frame, target, prediction in frames:
        gain = SHEET_CELL / max(frame.shape[:2])
        columns.append(_halves(frame, target, prediction, class_names, gain, FONT_SCALE))
    height = max(len(annotated) for annotated, _ in columns)
    rows = []
    for row in zip(*columns, strict=True):
        cells = [_padded(cell, height + GAP, SHEET_CELL + GAP) for cell in row]
        rows.append(np.concatenate(cells, axis=1))
    return np.concatenate(rows)[:-GAP, :-GAP]


def _halves(
    frame: Image, target: Target, prediction: Prediction, class_names: Sequence[str], gain: float, font_scale: float
) -> tuple[Image, Image]:
    """Return a frame enlarged by `gain`, once with its annotated objects and once with its detections."""
    width = max(1, round(frame.shape[1] * gain))
    plain = resized(frame, width, max(1, round(frame.shape[0] * gain)))
    annotated = target.labels.tolist()
    names = [(class_names[label],) for label in annotated]
    detected = prediction.labels.tolist()
    texts = detection_texts([class_names[label] for label in detected], prediction.scores.tolist())
    return (
        with_boxes(plain, (target.boxes * gain).numpy(), annotated, names, font_scale=font_scale),
        with_boxes(plain, (prediction.boxes * gain).numpy(), detected, texts, font_scale=font_scale),
    )


def detection_texts(names: Sequence[str], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Return the texts of detections for `with_boxes`: class name and score, or only the score."""
    return [(f"{name} {score:.2f}", f"{score:.2f}") for name, score in zip(names, scores, strict=True)]


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
    texts: Sequence[Sequence[str]] = (),
    *,
    width: int = 2,
    font_scale: float = FONT_SCALE,
) -> Image:
    """Return a copy of a BGR image with outlined boxes and their texts. Texts do not cover each other.

    Args:
        image: `(H, W, 3)` uint8, BGR.
        boxes: `(N, 4)` xyxy in pixels of the image. The first box is on top.
        labels: N class indices, which determine the colours.
        texts: Texts of each box. The first one with a free place at the box is written. The texts of the first boxes
            are placed first.
        width: Width of the outlines in pixels.
        font_scale: Size of the texts, OpenCV's factor.
    """
    drawn = image.copy()
    last_pixels = np.array([image.shape[1], image.shape[0]] * 2) - 1  # a box that ends at the border has all edges
    corners = boxes.round().clip(0, last_pixels).astype(int).tolist()
    colours = [bgr(class_colour(label)) for label in labels]
    for (x1, y1, x2, y2), colour in zip(reversed(corners), reversed(colours), strict=True):
        cv2.rectangle(drawn, (x1, y1), (x2, y2), colour, width)
    taken = np.zeros((0, 4), np.int64)
    for corner, colour, alternatives in zip(corners, colours, texts, strict=False):
        for text in alternatives:
            place = free_place(corner, text_size(text, font_scale), drawn.shape, taken)
            if place is not None:
                taken = np.vstack([taken, place])
                _write_at(drawn, text, place, colour, font_scale)
                break
    return drawn


def free_place(box: Sequence[int], size: tuple[int, int], shape: Sequence[int], taken: Int64Array) -> Int64Array | None:
    """Return the first free place of a text at a box: above, below, inside or beside it. None if no place is free.

    Args:
        box: Corners x1, y1, x2, y2 in pixels.
        size: Width and height of the text in pixels.
        shape: Height and width of the image.
        taken: `(N, 4)` int64, xyxy of the texts that are already written.

    Returns:
        `(4,)` int64, xyxy; within the image if the image is large enough.
    """
    x1, y1, x2, y2 = box
    width, height = size
    starts = [(left, top) for top in (y1 - height, y2, y1, y2 - height) for left in (x1, x2 - width)]
    starts += [(x1 - width, y1), (x2, y1)]
    room = np.maximum(0, [shape[1] - width, shape[0] - height])
    starts_inside = np.clip(starts, 0, room)
    for place in np.concatenate([starts_inside, starts_inside + size], axis=1):
        is_covered = (place[:2] < taken[:, 2:]) & (place[2:] > taken[:, :2])
        if not is_covered.all(axis=1).any():
            return np.asarray(place, np.int64)
    return None


def text_size(text: str, font_scale: float) -> tuple[int, int]:
    """Return width and height in pixels of a text with its black margin."""
    (width, height), baseline = cv2.getTextSize(one_line(text), FONT, font_scale, _line_width(font_scale))
    return width + 2, height + baseline + 2


def _line_width(font_scale: float) -> int:
    """Return the width of the lines of letters in pixels."""
    return max(1, round(font_scale))


def class_colour(label: int) -> str:
    """Return the colour `#rrggbb` of a class, by its label from 0."""
    return CLASS_COLOURS[label % len(CLASS_COLOURS)]


def bgr(colour: str) -> tuple[int, int, int]:
    """Return blue, green and red of a colour `#rrggbb`."""
    red, green, blue = bytes.fromhex(colour[1:])
    return blue, green, red


def _write_at(image: Image, text: str, place: Int64Array, colour: tuple[int, int, int], font_scale: float) -> None:
    """Write text on black into a place, xyxy, of the size that `text_size` returns."""
    x1, y1, x2, y2 = place.tolist()
    line_width = _line_width(font_scale)
    _, baseline = cv2.getTextSize(one_line(text), FONT, font_scale, line_width)
    cv2.rectangle(image, (x1, y1), (x2 - 1, y2 - 1), (0, 0, 0), cv2.FILLED)
    start = (x1 + 1, y2 - baseline - 1)
    cv2.putText(image, one_line(text), start, FONT, font_scale, colour, line_width, cv2.LINE_AA)


def encode(image: Image) -> bytes:
    done, content = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])
    assert done, "OpenCV writes JPEG"
    return content.tobytes()
