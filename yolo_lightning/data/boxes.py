"""Box formats and letterbox geometry."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from yolo_lightning.data.array_types import Float32Array, Int64Array
from yolo_lightning.data.image_size import ImageSize

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Letterbox:
    """Position of a frame in the network input: scaled by `gain`, then shifted by `(left, top)`.

    A scaled frame has whole pixels: 512 rows with a gain of 0.65 become 333 instead of 332.8. `stretch` is the ratio of
    the two, which also applies to the boxes.
    """

    gain: float  # Input pixels per frame pixel, > 0
    left: int  # Columns of padding before the frame, input pixels
    top: int  # Rows of padding above the frame, input pixels
    stretch: tuple[float, float] = (1.0, 1.0)  # of width and height

    @staticmethod
    def fit(height: int, width: int, size: ImageSize) -> "Letterbox":
        """Return the largest centred placement of a `height` x `width` frame in the input."""
        gain = min(size.height / height, size.width / width)
        scaled_height, scaled_width = scaled_shape(height, width, gain)
        stretch = (scaled_width / width / gain, scaled_height / height / gain)
        return Letterbox(gain, (size.width - scaled_width) // 2, (size.height - scaled_height) // 2, stretch)

    @property
    def gains(self) -> list[float]:
        """Return input pixels per frame pixel for each value of an xyxy box."""
        return [self.gain * stretch for stretch in self.stretch] * 2


def scaled_shape(height: int, width: int, gain: float) -> tuple[int, int]:
    """Return the shape `(height, width)` of a frame after scaling by `gain`, at least 1 pixel per side."""
    return max(1, round(height * gain)), max(1, round(width * gain))


def xywh_to_xyxy(boxes: "Tensor") -> "Tensor":
    """Convert boxes `(N, 4)` from centre-x, centre-y, width, height to x1, y1, x2, y2; any unit."""
    x, y, width, height = boxes.unbind(-1)
    import torch  # only here: `prepare convert` needs the functions for arrays

    return torch.stack((x - width / 2, y - height / 2, x + width / 2, y + height / 2), -1)


def corners_to_centres(boxes: Float32Array) -> Float32Array:
    """Convert boxes `(N, 4)` from xyxy to centre-x, centre-y, width, height; any unit."""
    low = boxes[:, :2]
    high = boxes[:, 2:]
    return np.concatenate(((low + high) / 2, high - low), axis=1)


def frame_to_input(boxes: Float32Array, letterbox: Letterbox) -> Float32Array:
    """Convert boxes `(N, 4)`, xyxy, from pixels of the frame to pixels of the letterboxed input."""
    offset = np.array([letterbox.left, letterbox.top] * 2, dtype=np.float32)
    return boxes * np.array(letterbox.gains, dtype=np.float32) + offset


def input_to_frame(boxes: "Tensor", letterbox: Letterbox) -> "Tensor":
    """Convert boxes `(N, 4)`, xyxy, from pixels of the letterboxed input to pixels of the frame, without clipping."""
    offset = boxes.new_tensor([letterbox.left, letterbox.top] * 2)
    return (boxes - offset) / boxes.new_tensor(letterbox.gains)


def clip_to_frame(boxes: "Tensor", frame_shape: tuple[int, int]) -> "Tensor":
    """Clip boxes `(N, 4)`, xyxy, pixels of the frame, to a frame of `(height, width)` pixels."""
    height, width = frame_shape
    return boxes.clamp(min=boxes.new_zeros(4), max=boxes.new_tensor([width, height] * 2))


def first_of_equal_boxes(boxes: Float32Array) -> Int64Array:
    """Return the ascending positions of the boxes `(N, 4)` that differ, rounded to 0.1 pixels, from all before them."""
    _, positions = np.unique(boxes.round(1) + 0.0, axis=0, return_index=True)  # adding 0 turns -0 into 0
    return np.sort(positions)


def clip_boxes(boxes: Float32Array, height: int, width: int) -> Float32Array:
    """Clip boxes `(N, 4)`, xyxy, to an area of `height` x `width` in the same unit."""
    limits = np.array([width, height, width, height], dtype=np.float32)
    return np.clip(boxes, 0, limits)
