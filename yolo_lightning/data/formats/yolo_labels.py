"""The label files of YOLO datasets: a line per object, `class x y width height` or `class x1 y1 x2 y2 x3 y3 ...`.

Coordinates are shares of the image's width and height. The rules are those of Ultralytics 8.4 (`verify_image_label`),
which drops an image whose labels break them; here they are errors that name file and line.
"""

from dataclasses import dataclass
from math import isfinite
from pathlib import Path

import numpy as np
import numpy.typing as npt

BOX_COLUMNS = 5
TOLERANCE = 0.01
"""So much may coordinates leave the image, as share of its side: rounding of whoever wrote the file."""

EXPECTED = "expected are a class and 4 coordinates of a box, or a class and 3 or more points of a polygon"


@dataclass(frozen=True, slots=True)
class Labels:
    """Objects of one image.

    Attributes:
        classes: `(N,)` int64, class index from 0.
        centres: `(N, 4)` float64, centre-x, centre-y, width, height as shares of the image, about 0 to 1.
        duplicates: Lines left out because another one says the same.
    """

    classes: npt.NDArray[np.int64]
    centres: npt.NDArray[np.float64]
    duplicates: int = 0


NO_LABELS = Labels(np.zeros(0, dtype=np.int64), np.zeros((0, 4)))


def read_labels(path: Path, classes: int, keypoint_columns: int = 0) -> Labels | None:
    """The labels in a file; None where there is no such file, which means a background image.

    Args:
        path: The label file.
        classes: Number of classes.
        keypoint_columns: Columns behind each box that hold keypoints, which are left out.

    Raises:
        ValueError: Names file and line.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text") from error
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from error
    rows: dict[tuple[float, ...], int] = {}
    count = 0
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if not words:
            continue
        count += 1
        if keypoint_columns and len(words) == BOX_COLUMNS + keypoint_columns:
            words = words[:BOX_COLUMNS]
        try:
            rows.setdefault(numbers(words), number)
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}: {shortened(line)}") from error
    return arrange(path, rows, count, classes)


def numbers(words: list[str]) -> tuple[float, ...]:
    """A line's columns as numbers.

    Raises:
        ValueError: If one is no number, or there are not as many as an object has.
    """
    row = tuple(float(word) for word in words)
    if len(row) != BOX_COLUMNS and (len(row) < 7 or len(row) % 2 == 0):
        raise ValueError(f"{len(row)} columns, {EXPECTED}")
    if not all(map(isfinite, row)):
        raise ValueError("not all columns are finite numbers")
    return row


def arrange(path: Path, rows: dict[tuple[float, ...], int], count: int, classes: int) -> Labels:
    """Rows, each with its line number, as arrays.

    Raises:
        ValueError: If one is out of range, or polygons stand beside boxes.
    """
    if not rows:
        return NO_LABELS
    kinds = {len(row) == BOX_COLUMNS for row in rows}
    if len(kinds) > 1:
        polygon = next(number for row, number in rows.items() if len(row) > BOX_COLUMNS)
        raise ValueError(f"{path}, line {polygon}: a polygon in a file that holds boxes too, allowed is one of them")
    centres = np.array([row[1:] if len(row) == BOX_COLUMNS else box_of_polygon(row[1:]) for row in rows])
    indices = np.array([row[0] for row in rows])
    sides = centres[:, 2:]
    outside = (centres > 1 + TOLERANCE).any(axis=1) | (centres < -TOLERANCE).any(axis=1) | (sides < 0).any(axis=1)
    unknown = (indices % 1 != 0) | (indices < 0) | (indices >= classes)
    if unknown.any() or outside.any():
        worst = int((unknown | outside).argmax())
        line = list(rows.values())[worst]
        if unknown[worst]:
            raise ValueError(f"{path}, line {line}: class {indices[worst]:g}, allowed are 0 to {classes - 1}")
        shown = ", ".join(f"{value:.6g}" for value in centres[worst])
        raise ValueError(
            f"{path}, line {line}: x, y, width, height are {shown}, allowed are 0 to 1: shares of the image, not pixels"
        )
    return Labels(indices.astype(np.int64), centres, count - len(rows))


def box_of_polygon(coordinates: tuple[float, ...]) -> tuple[float, float, float, float]:
    """Centre-x, centre-y, width, height of the smallest box around points x1, y1, x2, y2, ..."""
    left, right = min(coordinates[::2]), max(coordinates[::2])
    top, bottom = min(coordinates[1::2]), max(coordinates[1::2])
    return (left + right) / 2, (top + bottom) / 2, right - left, bottom - top


def shortened(line: str) -> str:
    """A line for a message."""
    return repr(line if len(line) <= 80 else line[:80] + " ...")
