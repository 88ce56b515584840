"""Reader of YOLO label files: one object per line, `class x y width height` or `class x1 y1 x2 y2 x3 y3 ...`.

Coordinates are fractions of the image's width and height. The rules are those of Ultralytics 8.4
(`verify_image_label`), except that invalid labels raise an error with file and line, while Ultralytics drops the image.
"""

from dataclasses import dataclass
from math import isfinite
from pathlib import Path

import numpy as np

from yolo_lightning.data.array_types import Float64Array, Int64Array
from yolo_lightning.errors import UserError
from yolo_lightning.utils.plain_text import one_line, undecodable
from yolo_lightning.utils.regular_files import read_regular

BOX_COLUMNS = 5
TOLERANCE = 0.01
"""Tolerated distance of coordinates from the image, as a fraction of its side: rounding errors of the labels."""
MOST_FRACTIONS = 2.0  # Largest coordinate that is more likely a wrong fraction than a number of pixels
SHOWN_CHARACTERS = 80
LARGEST_FILE = 64 << 20  # Bytes


@dataclass(frozen=True, slots=True)
class Labels:
    """Objects of one image."""

    classes: Int64Array  # `(N,)` int64, class index from 0
    # `(N, 4)` float64, centre-x, centre-y, width, height as fractions of the image, about 0 to 1
    centres: Float64Array
    duplicates: int = 0  # Number of duplicate lines, which are left out
    polygons: int = 0  # Number of polygons and oriented boxes, of which the boxes around them are used


NO_LABELS = Labels(np.zeros(0, dtype=np.int64), np.zeros((0, 4)))


def read_labels(path: Path, classes: int, keypoint_columns: int = 0) -> Labels | None:
    """Read a label file, without its keypoints; a missing file (None) means a background image."""
    try:
        text = read_regular(path, LARGEST_FILE).decode("utf-8-sig")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: {undecodable(error)}") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    lines: dict[tuple[float, ...], int] = {}
    count = 0
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if not words:
            continue
        count += 1
        if keypoint_columns and len(words) == BOX_COLUMNS + keypoint_columns:
            words = words[:BOX_COLUMNS]
        try:
            lines.setdefault(_parsed(words), number)
        except UserError as error:
            reason = one_line(str(error), 2 * SHOWN_CHARACTERS)
            raise UserError(f"{path}, line {number}: {reason}: {line[:SHOWN_CHARACTERS]!r}") from error
    if not lines:
        return NO_LABELS
    polygons = [number for row, number in lines.items() if len(row) > BOX_COLUMNS]
    if 0 < len(polygons) < len(lines):
        box = next(number for row, number in lines.items() if len(row) == BOX_COLUMNS)
        raise UserError(
            f"{path}, line {polygons[0]}: a file must not contain both polygons and boxes, and line {box} is a box; "
            "replace each polygon by the box around it: class, center x, center y, width, height"
        )
    centres = np.array([box_of_polygon(row[1:]) if polygons else row[1:] for row in lines])
    indices = np.array([row[0] for row in lines])
    _refuse_outside(path, list(lines.values()), indices, centres, classes, are_polygons=bool(polygons))
    return Labels(indices.astype(np.int64), centres, count - len(lines), len(polygons))


def _refuse_outside(
    path: Path, numbers: list[int], indices: Float64Array, centres: Float64Array, classes: int, *, are_polygons: bool
) -> None:
    """Raise a UserError for the first line with an unknown class or a box outside of the image."""
    outside = ((centres > 1 + TOLERANCE) | (centres < -TOLERANCE)).any(axis=1) | (centres[:, 2:] < 0).any(axis=1)
    unknown = (indices % 1 != 0) | (indices < 0) | (indices >= classes)
    if not (unknown | outside).any():
        return
    row = int((unknown | outside).argmax())
    place = f"{path}, line {numbers[row]}"
    if unknown[row]:
        accepted = f"an integer from 0 to {classes - 1}" if classes > 1 else "0, as there is one class in the data.yaml"
        raise UserError(f"{place}: class must be {accepted}, got {indices[row]:g}{_remedy_of_class(indices, classes)}")
    shown = ", ".join(f"{value:.6g}" for value in centres[row])
    numbers_of = "x, y, width, height"
    remedy = ""
    if centres[row].min() >= 0 and centres[row].max() > MOST_FRACTIONS:
        remedy = "; divide pixels by the width and the height of the image"
    if are_polygons:
        numbers_of = "x, y, width, height of the box around a polygon"
        remedy = "; if the columns behind a box are keypoints, the data.yaml needs kpt_shape, such as [17, 3]"
    raise UserError(f"{place}: {numbers_of} must be fractions of the image from 0 to 1, got {shown}{remedy}")


def _remedy_of_class(indices: Float64Array, classes: int) -> str:
    """Return what to do about the class of a line that is larger than the number of classes; "" for other classes."""
    if indices.max() < classes or (indices % 1).any():
        return ""
    if indices.min() > 0 and indices.max() == classes:
        return ": the class numbers begin at 0, in the order of 'names'; subtract 1 from numbers that begin at 1"
    return ": the class numbers begin at 0, in the order of 'names'; add the missing names to the data.yaml"


def _parsed(words: list[str]) -> tuple[float, ...]:
    try:
        row = tuple(float(word) for word in words)
    except ValueError as error:
        raise UserError(f"the columns must be numbers separated by spaces{_reason_of_text(words)}") from error
    if len(row) == BOX_COLUMNS + 1 and 0 <= row[-1] <= 1:
        raise UserError(
            "a line must have a class and 4 coordinates of a box, got a sixth column, which is the score in text files "
            "of predictions: remove the score to use predictions as labels"
        )
    if len(row) != BOX_COLUMNS and (len(row) < 7 or len(row) % 2 == 0):
        raise UserError(
            "a line must have a class and 4 coordinates of a box, or a class and 3 or more points of a polygon, got "
            f"{len(row)} columns"
        )
    if not all(map(isfinite, row)):
        raise UserError("all columns must be finite numbers")
    return row


def _reason_of_text(words: list[str]) -> str:
    """Return why a line is likely not a list of numbers; "" if the reason is unknown."""
    if len(words) == 1 and "," in words[0]:
        return ", got commas between them"
    if any("," in word for word in words):
        return " with a decimal point, got a comma"
    if len(words) >= BOX_COLUMNS and all(map(_is_number, words[1:])):
        return f", the first one the class number from 0, got the text {words[0]!r}"
    return ""


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def box_of_polygon(coordinates: tuple[float, ...]) -> tuple[float, float, float, float]:
    """Return centre-x, centre-y, width, height of the smallest box around points x1, y1, x2, y2, ..."""
    x1 = min(coordinates[::2])
    x2 = max(coordinates[::2])
    y1 = min(coordinates[1::2])
    y2 = max(coordinates[1::2])
    return (x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1
