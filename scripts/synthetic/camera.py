"""Frames of the drawn dataset: objects over the background, boxes of the visible parts, temperature to gray levels.

Temperatures become 8-bit gray levels, or 16-bit values, in the last step only. Thus the seasonal drift follows from the
temperatures: in the summer sun the quay is warmer than a person, so the person appears dark.
"""

from collections.abc import Sequence
from typing import Literal

import cv2
import numpy as np
import numpy.typing as npt

from synthetic.objects import Actor, paint
from synthetic.scene import FloatImage, Scene, Weather, resized

GrayImage = npt.NDArray[np.uint8] | npt.NDArray[np.uint16]
Mask = npt.NDArray[np.bool_]
Box = tuple[int, int, int, int]  # Left, top, width, height in pixels
MINIMUM_BOX_SIDE = 6  # Pixels; smaller objects get no label
RAW_LOW, RAW_PER_LEVEL = 7000, 8
"""Value of gray level 0 in 16-bit frames, and values per gray level; values outside of the gray levels are kept."""

_MASK_COVERAGE = 0.4
_LEAST_VISIBLE = 0.3


def draw_frame(
    scene: Scene,
    background: FloatImage,
    actors: Sequence[Actor],
    weather: Weather,
    frame: int,
    rng: np.random.Generator,
    bits: Literal[8, 16] = 8,
) -> tuple[GrayImage, list[tuple[int, Box]]]:
    """Draw frame `frame` of a clip over `background`.

    Returns:
        The `(H, W)` uint8 or uint16 frame, and the class index and box of every labelled object, far to near.
    """
    heat = background.copy()
    covered: Mask = np.zeros(heat.shape, np.bool_)
    drawn: list[tuple[int, slice, slice, Mask, int]] = []
    for actor in sorted(actors, key=lambda item: item.ground):
        warm, coverage, x, y = paint(actor, weather, frame)
        whole = int(np.count_nonzero(coverage > _MASK_COVERAGE))
        rows, inner_rows = _overlap(y, coverage.shape[0], scene.height)
        columns, inner_columns = _overlap(x, coverage.shape[1], scene.width)
        warm, coverage = warm[inner_rows, inner_columns], coverage[inner_rows, inner_columns]
        heat[rows, columns] = heat[rows, columns] * (1 - coverage) + warm
        drawn.append((actor.class_index, rows, columns, coverage > _MASK_COVERAGE, whole))
    labels: list[tuple[int, Box]] = []
    for class_index, rows, columns, mask, whole in reversed(drawn):
        visible: Mask = mask & ~covered[rows, columns]
        covered[rows, columns] |= mask
        box = _box_of(visible, columns.start, rows.start)
        if box is not None and np.count_nonzero(visible) >= _LEAST_VISIBLE * whole:
            labels.append((class_index, box))
    return _expose(scene, heat, weather, rng, bits), labels[::-1]


def _overlap(start: int, length: int, size: int) -> tuple[slice, slice]:
    """Return, along one axis, the part of the frame that an object covers, and the visible part of the object."""
    first, last = (min(max(end, 0), size) for end in (start, start + length))
    return slice(first, last), slice(first - start, last - start)


def _box_of(mask: Mask, x: int, y: int) -> Box | None:
    """Return the tight box of a mask whose corner is at (x, y), or None if the box is too small for a label."""
    columns, rows = np.flatnonzero(mask.any(axis=0)), np.flatnonzero(mask.any(axis=1))
    if columns.size == 0:
        return None
    width, height = int(columns[-1] - columns[0]) + 1, int(rows[-1] - rows[0]) + 1
    if min(width, height) < MINIMUM_BOX_SIDE:
        return None
    return x + int(columns[0]), y + int(rows[0]), width, height


def _expose(
    scene: Scene, heat: FloatImage, weather: Weather, rng: np.random.Generator, bits: Literal[8, 16]
) -> GrayImage:
    """Turn temperatures into gray levels or raw values; the noise is independent of the objects."""
    ripples = rng.standard_normal((max(2, scene.height // 4), max(2, scene.width // 10)), dtype=np.float32)
    noise = rng.standard_normal((scene.height, scene.width), dtype=np.float32)
    heat = heat + 0.4 * scene.water * resized(ripples, scene.width, scene.height, cv2.INTER_LINEAR)
    blurred = np.asarray(cv2.GaussianBlur(heat, (0, 0), 0.75), np.float32)
    gray = 55 + weather.gain * blurred + weather.noise * noise + weather.pattern * scene.pattern
    if bits == 16:
        return np.asarray(np.clip(np.rint(RAW_LOW + gray * RAW_PER_LEVEL), 0, 2**16 - 1), np.uint16)
    return np.asarray(np.clip(np.rint(gray), 0, 255), np.uint8)
