"""Scores and pictures of single frames, and counts of box sizes, for the frame gallery."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
from torch import Tensor

from yolo_lightning.data.batch import Prediction, Target
from yolo_lightning.evaluation.class_colours import class_colour
from yolo_lightning.evaluation.matching import match

SIZE_EDGES = (0.0, *(round(2.0 ** (half / 2), 1) for half in range(2, 21)))
"""Lower edges of the size bins in pixels: two bins per factor of two, 2 to 1024; the last bin has no upper edge."""

SIDE_WIDTH = 640
"""Width of one half of a picture in pixels. Smaller frames are enlarged by an integer factor, larger ones reduced."""

GAP = 8
JPEG_QUALITY = 80
LINE_WIDTH = 2
FONT, FONT_SCALE = cv2.FONT_HERSHEY_SIMPLEX, 0.5

Image = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class FrameScore:
    """F1 of one frame and its counts."""

    image_id: str
    score: float  # F1, 0 to 1: twice the correct detections over objects plus detections
    objects: int  # number of annotated objects
    misses: int  # number of objects without a correct detection
    false_alarms: int  # number of incorrect detections

    def from_best(self) -> tuple[float, int, str]:
        """Return the sort key for best frames first; ties by most objects, then by id."""
        return -self.score, -self.objects, self.image_id

    def from_worst(self) -> tuple[float, int, str]:
        """Return the sort key for worst frames first; ties by most errors, then by id."""
        return self.score, -(self.misses + self.false_alarms), self.image_id


def above(prediction: Prediction, score_threshold: float) -> Prediction:
    """Return the detections with a score >= `score_threshold`, on the CPU."""
    chosen = prediction.scores >= score_threshold
    boxes, scores, labels = (part[chosen].cpu() for part in (prediction.boxes, prediction.scores, prediction.labels))
    return Prediction(prediction.image_id, boxes, scores, labels)


def frame_scores(predictions: Sequence[Prediction], targets: Sequence[Target], classes: int) -> list[FrameScore | None]:
    """Return F1 at IoU 0.5 of each frame, None for frames with neither objects nor detections."""
    matches = match(predictions, targets, classes)
    counts = matches.counts.numpy()
    owners, is_correct = (
        np.repeat(np.arange(len(counts)), counts),
        matches.hits.numpy() & 1,
    )  # the lowest bit is IoU 0.5
    correct = np.bincount(owners[is_correct > 0], minlength=len(counts))
    objects = matches.annotated.numpy().sum(axis=1)
    numbers = zip(targets, correct.tolist(), objects.tolist(), counts.tolist(), strict=True)
    return [
        FrameScore(target.image_id, 2 * found / (annotated + detected), annotated, annotated - found, detected - found)
        if annotated + detected
        else None
        for target, found, annotated, detected in numbers
    ]


class SizeCounts:
    """Numbers of boxes per size; the size of a box is the square root of its area in pixels of the frame."""

    def __init__(self) -> None:
        self.frames = 0
        self._counts = np.zeros((2, len(SIZE_EDGES)), np.int64)

    def add(self, prediction: Prediction, target: Target) -> None:
        self.frames += 1
        self._counts += by_size(target.boxes), by_size(prediction.boxes)

    def as_json(self) -> dict[str, Any]:
        """Return the number of frames, the lower edges of the bins and the counts per bin."""
        objects, detections = self._counts.tolist()
        return {"frames": self.frames, "edges_px": list(SIZE_EDGES), "objects": objects, "detections": detections}


def by_size(boxes: Tensor) -> Any:
    """Return the number of `(N, 4)` xyxy boxes in each bin, `(B,)` int64."""
    sides = (boxes[:, 2:] - boxes[:, :2]).clamp(min=0).double().cpu().numpy()
    sizes = np.sqrt(sides[:, 0] * sides[:, 1])
    return np.bincount(np.searchsorted(SIZE_EDGES, sizes, side="right") - 1, minlength=len(SIZE_EDGES))


def side_by_side(frame: Image, target: Target, prediction: Prediction) -> Image:
    """Draw annotated objects on the left and detections with their scores on the right, one colour per class.

    `frame` is `(H, W)` or `(H, W, 3)` RGB uint8; boxes are in its pixels. The result is BGR, as OpenCV expects.
    """
    gain = enlargement(frame.shape[1])
    size = (max(1, round(frame.shape[1] * gain)), max(1, round(frame.shape[0] * gain)))
    method = cv2.INTER_AREA if gain < 1 else cv2.INTER_CUBIC
    code = cv2.COLOR_GRAY2BGR if frame.ndim == 2 else cv2.COLOR_RGB2BGR
    plain = np.asarray(cv2.resize(cv2.cvtColor(frame, code), size, interpolation=method), dtype=np.uint8)
    left = with_boxes(plain, target.boxes * gain, target.labels, [""] * len(target.labels))
    words = [f"{score:.2f}" for score in prediction.scores.tolist()]
    right = with_boxes(plain, prediction.boxes * gain, prediction.labels, words)
    gap = np.full((size[1], GAP, 3), 128, np.uint8)
    return np.concatenate([left, gap, right], axis=1)


def enlargement(width: int) -> float:
    """Return the factor from the frame to one half of the picture; integers keep thermal pixels sharp."""
    return float(SIDE_WIDTH // width) if width <= SIDE_WIDTH else SIDE_WIDTH / width


def with_boxes(image: Image, boxes: Tensor, labels: Tensor, words: Sequence[str]) -> Image:
    """Return a copy of `image` with outlined boxes, the first one on top, and a word at each box."""
    drawn = image.copy()
    corners = boxes.round().int().tolist()
    for (left, top, right, bottom), label, word in reversed(list(zip(corners, labels.tolist(), words, strict=True))):
        red, green, blue = bytes.fromhex(class_colour(label)[1:])
        cv2.rectangle(drawn, (left, top), (right, bottom), (blue, green, red), LINE_WIDTH)
        if word:
            write(drawn, word, left, top, (blue, green, red))
    return drawn


def write(image: Image, word: str, left: int, top: int, colour: tuple[int, int, int]) -> None:
    """Write a word on black above a corner, or below the corner at the upper edge of the image."""
    (width, height), _ = cv2.getTextSize(word, FONT, FONT_SCALE, 1)
    left = max(0, min(left, image.shape[1] - width - 2))
    bottom = top - 3 if top - height - 5 >= 0 else top + height + 5
    cv2.rectangle(image, (left, bottom - height - 2), (left + width + 2, bottom + 2), (0, 0, 0), cv2.FILLED)
    cv2.putText(image, word, (left + 1, bottom), FONT, FONT_SCALE, colour, 1, cv2.LINE_AA)


def encode(image: Image) -> bytes:
    done, content = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])
    assert done, "OpenCV writes JPEG"
    return content.tobytes()
