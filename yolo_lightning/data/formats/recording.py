"""Month, clip, position in the clip and weather of LTDv2's frames."""

import re
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

WEATHER = (
    "Temperature",
    "Humidity",
    "Precipitation",
    "Dew Point",
    "Wind Direction",
    "Wind Speed",
    "Sun Radiation Intensity",
    "Min of sunshine latest 10 min",
)
"""LTDv2's names of the weather measurements in the `meta` of a frame."""

TEMPERATURE = WEATHER[0]  # Degrees Celsius
ID_DIGITS = 17
"""Digits of an LTDv2 image id: YYYYMM, clip (3), DD, HHMMSS. All 95,443 ids of two official lists have this form."""

MOMENT = (
    ((0, 4), (1900, 2099)),
    ((4, 6), (1, 12)),
    ((9, 11), (1, 31)),
    ((11, 13), (0, 23)),
    ((13, 15), (0, 59)),
    ((15, 17), (0, 59)),
)
"""Columns of year, month, day, hour, minute and second in an LTDv2 id, and their valid ranges."""

IMAGE_NUMBER = re.compile(r"(\d{1,18})\D*$")
LARGEST_FLOAT32 = float(np.finfo(np.float32).max)
LEADING_NUMBER = re.compile(r"\s*([-+]?\d+(?:[.,]\d+)?(?:[eE][-+]?\d+)?)")


def number_at(texts: npt.NDArray[np.bytes_], columns: Sequence[int]) -> npt.NDArray[np.int64]:
    """Return `(N,)` int64, the decimal number in the given columns of each text, -1 if one of them is not a digit."""
    wide = np.ascontiguousarray(texts.astype(f"S{max(columns) + 1}"))
    characters = wide.view(np.uint8).reshape(len(texts), -1)
    digits = characters[:, list(columns)].astype(np.int64) - ord("0")
    powers = 10 ** np.arange(len(columns) - 1, -1, -1, dtype=np.int64)
    return np.where(((digits >= 0) & (digits <= 9)).all(axis=1), digits @ powers, -1)


def months(image_ids: npt.NDArray[np.bytes_], dates: npt.NDArray[np.bytes_]) -> npt.NDArray[np.int32]:
    """Return `(N,)` int32 months, YYYYMM, 0 if unknown: from the id if it is an LTDv2 id, else from the ISO date."""
    by_id = np.where(are_ltdv2_ids(image_ids), number_at(image_ids, range(6)), 0)
    by_date = number_at(dates, (0, 1, 2, 3, 5, 6))
    by_date = np.where(within(by_date % 100, 1, 12) & (by_date >= 0), by_date, 0)
    return np.where(by_id > 0, by_id, by_date).astype(np.int32)


def are_ltdv2_ids(image_ids: npt.NDArray[np.bytes_]) -> npt.NDArray[np.bool_]:
    """Return `(N,)` bool: ids of 17 digits with a valid date and time between 1900 and 2099."""
    valid: npt.NDArray[np.bool_] = np.char.str_len(image_ids) == ID_DIGITS
    valid &= number_at(image_ids, range(ID_DIGITS)) >= 0
    for columns, limits in MOMENT:
        valid &= within(number_at(image_ids, range(*columns)), *limits)
    return valid


def within(values: npt.NDArray[np.int64], lowest: int, highest: int) -> npt.NDArray[np.bool_]:
    return (values >= lowest) & (values <= highest)


def clips(file_names: Sequence[str]) -> tuple[npt.NDArray[np.int32], list[str]]:
    """Number the clips: frames whose files are in the same folder form one clip.

    Returns:
        `(N,)` int32 clip numbers from 0 in order of first appearance, and the folder of each clip.
    """
    numbers: dict[str, int] = {}
    clip_of = [numbers.setdefault(name.rpartition("/")[0], len(numbers)) for name in file_names]
    return np.array(clip_of, dtype=np.int32), list(numbers)


def positions_in_clip(file_names: Sequence[str], clip_numbers: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Return `(N,)` int32, rank of each frame in its clip from 0, ordered by the last number in its file name.

    Frames without a number are first. Frames with equal numbers keep the order of the file.
    """
    found = [IMAGE_NUMBER.search(name.rpartition("/")[2].rpartition(".")[0]) for name in file_names]
    image_numbers = np.array([-1 if match is None else int(match[1]) for match in found], dtype=np.int64)
    order = np.lexsort((image_numbers, clip_numbers))
    lengths = np.bincount(clip_numbers)
    first = np.repeat(np.cumsum(lengths) - lengths, lengths)
    positions = np.empty(len(order), dtype=np.int32)
    positions[order] = np.arange(len(order)) - first
    return positions


def weather(metas: Sequence[msgspec.Raw]) -> npt.NDArray[np.float32]:
    """Return `(8, N)` float32, the `WEATHER` measurements in each frame's `meta`; NaN if missing or not a number."""
    columns = {name.lower(): column for column, name in enumerate(WEATHER)}
    table = np.full((len(metas), len(WEATHER)), np.nan)
    decode = msgspec.json.Decoder().decode
    for row, raw in enumerate(metas):
        meta = decode(raw)
        if not isinstance(meta, dict):
            continue
        for key, value in meta.items():
            column = columns.get(key.strip().lower())
            if column is not None:
                table[row, column] = measurement(value)
    return np.ascontiguousarray(table.T.astype(np.float32))


def measurement(value: object) -> float:
    """Return a number, or the leading number of a text (decimal point or comma); NaN for any other value."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) if abs(value) < LARGEST_FLOAT32 else float("nan")
    match = LEADING_NUMBER.match(value) if isinstance(value, str) else None
    return float("nan") if match is None else measurement(float(match[1].replace(",", ".")))
