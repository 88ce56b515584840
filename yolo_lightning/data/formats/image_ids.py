"""Image ids as text, and the signs that they once went through a 64-bit float.

LTDv2's ids have 17 digits: YYYYMM, clip (3), DD, HHMMSS. A float64 keeps every fourth integer of that size, so that
the seconds are rounded to multiples of four and up to five frames, one second apart, share an id.
"""

import re
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from yolo_lightning.data.formats.recording import ID_DIGITS, are_ltdv2_ids, number_at

EXACT_BELOW = 2**53
"""Integers below this survive a float64."""
SPACING = 4
"""Distance of neighbouring float64 between 2^54 and 2^55, where 17-digit ids of the years 1801 to 3602 lie."""

NAMED_RECORDS = 3
"""Records named in one message."""
FEWEST_WITNESSES = 3
"""Ids that differ from their date exactly by rounding before that is taken for more than chance."""
FEWEST_OWNERS = 64
"""Images with boxes, all multiples of four, before that is taken for more than chance."""

FLOAT_TEXT = re.compile(r"\d{16,}\.0*|\d(\.\d+)?[eE]\+?1[5-9]")

ADVICE = (
    "a 64-bit float (pandas, JavaScript, jq, a spreadsheet) does not hold 17 digits; take the official file, "
    "or convert it again with the ids as integers or text"
)


def id_text(value: int | float | str) -> str | None:
    """An id as text; None for a float (or text of one) too large to be exact."""
    if type(value) is int:  # the common case first: this is called for every box
        return str(value)
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < EXACT_BELOW else None
    if isinstance(value, str) and ("." in value or "e+" in value.lower()) and FLOAT_TEXT.fullmatch(value):
        return None
    return str(value)


def image_id_texts(path: Path, ids: Sequence[int | float | str], file_names: Sequence[str]) -> dict[str, int]:
    """Position of each image by its id as text.

    Raises:
        ValueError: If an id is written as a float or occurs more than once.
    """
    positions: dict[str, int] = {}
    repeated: list[tuple[int, int]] = []
    for number, value in enumerate(ids):
        text = id_text(value)
        if text is None:
            raise ValueError(
                f"{path}: images[{number}] {file_names[number]!r} has id {value!r}, "
                f"which went through a float: {ADVICE}"
            )
        first = positions.setdefault(text, number)
        if first != number:
            repeated.append((first, number))
    if repeated:
        named = "; ".join(
            f"images[{second}] {file_names[second]!r} has id {ids[second]} of images[{first}] {file_names[first]!r}"
            for first, second in repeated[:NAMED_RECORDS]
        )
        rounded = all(is_rounded(text) for text in positions)
        raise ValueError(
            f"{path}: {len(repeated):,} image ids occur more than once: {named}"
            + ("; and so on" if len(repeated) > NAMED_RECORDS else "")
            + (f". All ids are multiples of {SPACING}, they went through a float: {ADVICE}" if rounded else "")
        )
    return positions


def is_rounded(text: str) -> bool:
    """Whether an id of LTDv2's length is one that a float64 can hold."""
    return len(text) == ID_DIGITS and text.isdecimal() and int(text) % SPACING == 0


def refuse_rounded_ids(
    path: Path, image_ids: npt.NDArray[np.bytes_], dates: npt.NDArray[np.bytes_], file_names: Sequence[str]
) -> None:
    """Refuse ids of LTDv2's length that were rounded by a float64 without two of them becoming one.

    There are two sure signs. An id that ends in second 60, while all ids are multiples of four: 59 was rounded up. Or
    ids that are not the moment of `date_captured`, but the float64 nearest to it, while all others are that moment.

    Args:
        path: The annotation file, for the message.
        image_ids: `(N,)` ids as ASCII text.
        dates: `(N,)` `date_captured` as ISO text.
        file_names: For the message.

    Raises:
        ValueError: If there is a sign.
    """
    long = np.char.str_len(image_ids) == ID_DIGITS
    values = np.where(long, number_at(image_ids, range(ID_DIGITS)), -1)
    long = values >= 0
    if not long.any():
        return
    one_second_less = np.where(long, values - 1, 0).astype(f"S{ID_DIGITS}")
    second_60 = long & (values % 100 == 60) & are_ltdv2_ids(one_second_less)
    if second_60.any() and (values[long] % SPACING == 0).all():
        number = int(second_60.argmax())
        raise ValueError(
            f"{path}: images[{number}] {file_names[number]!r} has id {values[number]}, which ends in second 60, and "
            f"all ids are multiples of {SPACING}: they went through a float; {ADVICE}"
        )
    columns = (0, 1, 2, 3, 5, 6), (8, 9), (11, 12, 14, 15, 17, 18)
    month, day, time = (number_at(dates, chosen) for chosen in columns)
    dated = long & (month >= 0) & (day >= 0) & (time >= 0)
    clip = values // 10**8 % 1000
    exact = month * 10**11 + clip * 10**8 + day * 10**6 + time
    witnesses = dated & (values != exact) & (values == exact.astype(np.float64).astype(np.int64))
    if witnesses.sum() >= FEWEST_WITNESSES and (witnesses | (values == exact))[long].all():
        number = int(witnesses.argmax())
        raise ValueError(
            f"{path}: images[{number}] {file_names[number]!r} was captured {dates[number].decode()}, so its id is "
            f"{exact[number]}, but the file says {values[number]}, as for {int(witnesses.sum()):,} images: the ids "
            f"went through a float; {ADVICE}"
        )


def refuse_rounded_owners(
    path: Path, image_ids: npt.NDArray[np.bytes_], owners: npt.NDArray[np.int64], file_names: Sequence[str]
) -> None:
    """Refuse annotations whose `image_id` was rounded while the images kept theirs: most still find some image.

    Raises:
        ValueError: If many images have boxes and exactly those whose id is a multiple of four.
    """
    long = np.char.str_len(image_ids) == ID_DIGITS
    rounded = long & (number_at(image_ids, range(ID_DIGITS)) % SPACING == 0)
    owning = np.unique(owners)
    if len(owning) >= FEWEST_OWNERS and rounded[owning].all() and not rounded.all():
        number = int((~rounded).argmax())
        raise ValueError(
            f"{path}: only images whose id is a multiple of {SPACING} have annotations ({len(owning):,} of "
            f"{len(image_ids):,}; images[{number}] {file_names[number]!r} is the first without): the image_id of the "
            f"annotations went through a float; {ADVICE}"
        )


def unknown_image_hint(value: int | float | str, known: Collection[str]) -> str:
    """What to add to the report of an annotation whose image is unknown: whether a float explains it."""
    if id_text(value) is None:
        return f", which went through a float: {ADVICE}"
    text = str(value)
    if is_rounded(text):
        for candidate in range(int(text) - SPACING // 2, int(text) + SPACING // 2 + 1):
            if str(candidate) in known and int(float(candidate)) == int(text):
                return f", which is image {candidate} after it went through a float: {ADVICE}"
    return ""
