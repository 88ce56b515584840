"""Image ids as text, month and clip of LTDv2's ids, and checks for ids that were rounded by a 64-bit float.

LTDv2's ids have 17 digits: YYYYMM, clip (3), DD, HHMMSS. At this size, float64 represents only multiples of four.
Rounding changes the seconds, so that up to five frames, one second apart, get the same id.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from yolo_lightning.errors import UserError

ID_DIGITS = 17
"""Digits of an LTDv2 image id: YYYYMM, clip (3), DD, HHMMSS. All 95,443 ids of two official lists have this form."""

CLIP_DIGITS = 11  # Digits of an LTDv2 image id that name the clip

EXACT_BELOW = 2**53  # Integers below this value are exact in float64
SPACING = 4
"""Distance of neighbouring float64 between 2^54 and 2^55, the range of 17-digit ids of the years 1801 to 3602."""

FLOAT_TEXT = re.compile(r"\d{16,}\.0*|\d(\.\d+)?[eE]\+?1[5-9]")

ADVICE = (
    "a 64-bit float (pandas, JavaScript, jq, a spreadsheet) does not hold 17 digits; use the official file, "
    "or convert it again with the ids as integers or text"
)

FLOAT = f"was converted to a float: {ADVICE}"


def id_text(value: int | float | str) -> str | None:
    """Return an id as text, or None for a float (or its text) that is too large to be exact."""
    if type(value) is int:  # the common case first: called for every box
        return str(value)
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < EXACT_BELOW else None
    if isinstance(value, str) and ("." in value or "e+" in value.lower()) and FLOAT_TEXT.fullmatch(value):
        return None
    return str(value)


def image_id_texts(path: Path, ids: Sequence[int | float | str], file_names: Sequence[str]) -> dict[str, int]:
    """Return the position of each image by its id as text."""
    positions: dict[str, int] = {}
    repeated: list[int] = []
    for number, value in enumerate(ids):
        text = id_text(value)
        if text is None:
            reason = "is not an integer" if isinstance(value, float) and abs(value) < EXACT_BELOW else FLOAT
            raise UserError(f"{path}: images[{number}] {file_names[number]!r} has id {value!r}, which {reason}")
        if positions.setdefault(text, number) != number:
            repeated.append(number)
    if repeated:
        second = repeated[0]
        first = positions[id_text(ids[second]) or ""]
        cause = ""
        if all(map(_is_rounded, positions)):
            cause = f". All ids are multiples of {SPACING}, so they were converted to floats: {ADVICE}"
        raise UserError(
            f"{path}: {len(repeated):,} image ids are not unique: images[{second}] {file_names[second]!r} has id "
            f"{ids[second]} of images[{first}] {file_names[first]!r}{cause}"
        )
    return positions


def _is_rounded(text: str) -> bool:
    """Return whether an id has LTDv2's length and is exact in float64."""
    return len(text) == ID_DIGITS and text.isdecimal() and int(text) % SPACING == 0


def month_of_digits(digits: str) -> int:
    """Return the month YYYYMM of six digits; 0 for other texts."""
    if len(digits) != 6 or not digits.isdecimal() or not 1 <= int(digits[4:]) <= 12:
        return 0
    return int(digits)


def month_of_id(image_id: str) -> int:
    """Return the month YYYYMM at the start of an LTDv2 image id; 0 for other ids."""
    if len(image_id) != ID_DIGITS:
        return 0
    return month_of_digits(image_id[:6])


def clip_of_id(image_id: str) -> str:
    """Return month, clip and day at the start of an LTDv2 image id; other ids are clips of a single frame."""
    return image_id[:CLIP_DIGITS] if month_of_id(image_id) else image_id


def unknown_image_hint(value: int | float | str) -> str:
    """Return an addition to the error message if an unknown image id may be a rounded id, else an empty text."""
    if id_text(value) is None:
        return f", which {FLOAT}"
    if _is_rounded(str(value)):
        return f", which may have been converted to a float: {ADVICE}"
    return ""
