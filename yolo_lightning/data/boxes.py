"""Box formats and the letterbox geometry, one direction per function."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor
from torch import stack as torch_stack

FloatArray = npt.NDArray[np.float32]

STRIDE = 32
"""Pixels. The coarsest stride of YOLOv8; sides of the input are multiples of it."""


def check_image_size(name: str, side: int, least: int = STRIDE) -> None:
    """Refuse a side of the input, pixels, that the network cannot take.

    Raises:
        ValueError: If it is no multiple of the stride, or below `least`.
    """
    if side < least or side % STRIDE:
        bound = f" from {least}" if least > STRIDE else ""
        raise ValueError(f"{name} is {side}, allowed are multiples of {STRIDE}{bound}")


@dataclass(frozen=True, slots=True)
class Letterbox:
    """How a frame was placed in the square network input: scaled by `gain`, then shifted by `(left, top)`.

    Attributes:
        gain: Input pixels per frame pixel, > 0.
        left: Columns of padding before the frame, input pixels.
        top: Rows of padding above the frame, input pixels.
    """

    gain: float
    left: int
    top: int

    @staticmethod
    def fit(height: int, width: int, size: int) -> "Letterbox":
        """Largest centred placement of a `height` x `width` frame in a `size` x `size` input."""
        gain = size / max(height, width)
        scaled_height, scaled_width = scaled_shape(height, width, gain)
        return Letterbox(gain, (size - scaled_width) // 2, (size - scaled_height) // 2)


def scaled_shape(height: int, width: int, gain: float) -> tuple[int, int]:
    """Shape `(height, width)` of a frame after scaling by `gain`, whole pixels, at least 1."""
    return max(1, round(height * gain)), max(1, round(width * gain))


def xywh_to_xyxy(boxes: Tensor) -> Tensor:
    """Boxes `(N, 4)` centre-x, centre-y, width, height to corners x1, y1, x2, y2; any unit."""
    x, y, width, height = boxes.unbind(-1)
    return torch_stack((x - width / 2, y - height / 2, x + width / 2, y + height / 2), -1)


def corners_to_centres(boxes: FloatArray) -> FloatArray:
    """Boxes `(N, 4)` xyxy to centre-x, centre-y, width, height; any unit."""
    low, high = boxes[:, :2], boxes[:, 2:]
    return np.concatenate(((low + high) / 2, high - low), axis=1)


def frame_to_input(boxes: FloatArray, letterbox: Letterbox) -> FloatArray:
    """Boxes `(N, 4)` xyxy from pixels of the frame to pixels of the letterboxed input."""
    offset = np.array([letterbox.left, letterbox.top] * 2, dtype=np.float32)
    return boxes * np.float32(letterbox.gain) + offset


def input_to_frame(boxes: Tensor, letterbox: Letterbox) -> Tensor:
    """Convert boxes from pixels of the letterboxed input to pixels of the frame, without clipping.

    Args:
        boxes: `(N, 4)` float, xyxy, pixels of the letterboxed input.
        letterbox: The placement that made the input.
    """
    offset = boxes.new_tensor([letterbox.left, letterbox.top] * 2)
    return (boxes - offset) / letterbox.gain


def clip_to_frame(boxes: Tensor, frame_shape: tuple[int, int]) -> Tensor:
    """Clip boxes to the frame.

    Args:
        boxes: `(N, 4)` float, xyxy, pixels of the frame.
        frame_shape: `(height, width)` of the frame, pixels.
    """
    height, width = frame_shape
    return boxes.clamp(min=boxes.new_zeros(4), max=boxes.new_tensor([width, height] * 2))


def clip_boxes(boxes: FloatArray, height: int, width: int) -> FloatArray:
    """Boxes `(N, 4)` xyxy cut to the `height` x `width` area they lie in, same unit."""
    limits = np.array([width, height, width, height], dtype=np.float32)
    return np.clip(boxes, 0, limits)
