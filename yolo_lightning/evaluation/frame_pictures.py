"""One frame twice, side by side: what is annotated, and what was found."""

from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
from torch import Tensor

from yolo_lightning.data.batch import Prediction, Target
from yolo_lightning.evaluation.plots import COLOURS

SIDE_WIDTH = 640
"""Width of one of both sides, pixels; larger frames are made smaller, smaller ones larger by a whole factor."""

GAP = 8
JPEG_QUALITY = 80
LINE = 2
LETTERS = 0.5
"""Of OpenCV's font, whose letters are 22 pixels high at 1."""

Image = npt.NDArray[np.uint8]


def side_by_side(frame: Image, target: Target, prediction: Prediction) -> Image:
    """Annotated objects on the left, detections with their scores on the right, a colour per class.

    Args:
        frame: `(H, W)` or `(H, W, 3)` RGB, uint8.
        target: Boxes in pixels of `frame`.
        prediction: Boxes in pixels of `frame`.

    Returns:
        `(h, w, 3)` BGR uint8, as OpenCV writes it.
    """
    gain = enlargement(frame.shape[1])
    size = (max(1, round(frame.shape[1] * gain)), max(1, round(frame.shape[0] * gain)))
    method = cv2.INTER_AREA if gain < 1 else cv2.INTER_CUBIC
    code = cv2.COLOR_GRAY2BGR if frame.ndim == 2 else cv2.COLOR_RGB2BGR
    plain = np.asarray(cv2.resize(cv2.cvtColor(frame, code), size, interpolation=method), dtype=np.uint8)
    left = with_boxes(plain, target.boxes * gain, target.labels, [""] * len(target.labels))
    words = [f"{score:.2f}" for score in prediction.scores.tolist()]
    right = with_boxes(plain, prediction.boxes * gain, prediction.labels, words)
    gap = np.full((size[1], GAP, 3), 255, np.uint8)
    return np.concatenate([left, gap, right], axis=1)


def enlargement(width: int) -> float:
    """Factor from the frame to one side of the picture; whole numbers keep thermal pixels sharp."""
    return float(SIDE_WIDTH // width) if width <= SIDE_WIDTH else SIDE_WIDTH / width


def with_boxes(image: Image, boxes: Tensor, labels: Tensor, words: Sequence[str]) -> Image:
    """A copy with outlines, the first on top, and a word over each."""
    drawn = image.copy()
    corners = boxes.round().int().tolist()
    for (left, top, right, bottom), label, word in reversed(list(zip(corners, labels.tolist(), words, strict=True))):
        colour = blue_green_red(COLOURS[label % len(COLOURS)])
        cv2.rectangle(drawn, (left, top), (right, bottom), colour, LINE)
        if word:
            write(drawn, word, left, top, colour)
    return drawn


def write(image: Image, word: str, left: int, top: int, colour: tuple[int, int, int]) -> None:
    """A word above a corner, or below it at the upper edge, on a dark ground that keeps it readable."""
    (width, height), _ = cv2.getTextSize(word, cv2.FONT_HERSHEY_SIMPLEX, LETTERS, 1)
    left = max(0, min(left, image.shape[1] - width - 2))
    bottom = top - 3 if top - height - 5 >= 0 else top + height + 5
    cv2.rectangle(image, (left, bottom - height - 2), (left + width + 2, bottom + 2), (0, 0, 0), cv2.FILLED)
    cv2.putText(image, word, (left + 1, bottom), cv2.FONT_HERSHEY_SIMPLEX, LETTERS, colour, 1, cv2.LINE_AA)


def blue_green_red(colour: str) -> tuple[int, int, int]:
    """Of a colour as #rrggbb."""
    return int(colour[5:7], 16), int(colour[3:5], 16), int(colour[1:3], 16)


def encode(image: Image) -> bytes:
    """As JPEG."""
    parameters: list[Any] = [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY]
    done, content = cv2.imencode(".jpg", image, parameters)
    assert done, "OpenCV writes JPEG"
    return content.tobytes()
